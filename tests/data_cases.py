"""The group `data` of a config, for tests."""

from jaxssl.configs import base


def data_config(**changes: object) -> dict[str, object]:
    """Return the group `data` of a config: the defaults with changes."""
    return base.get_config().data.to_dict() | changes
