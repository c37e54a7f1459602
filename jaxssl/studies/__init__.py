"""The papers' claims as commands, a file each; see `jaxssl.studies.study` for what such a file has."""

import pkgutil


def names() -> list[str]:
    """The files of this folder that are studies."""
    return sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name[0] != "_")
