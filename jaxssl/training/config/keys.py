"""Find the keys of a config by their dotted names, such as "optim.lr"."""

from typing import Any

from ml_collections import ConfigDict

from jaxssl.errors import UserError, closest_key
from jaxssl.training.config.types import is_schedule


def flat_keys(config: ConfigDict) -> dict[str, Any]:
    """Return the values of a config by dotted key, such as "optim.lr". A schedule is one value."""
    values = {}
    for name, value in config.items():
        if isinstance(value, ConfigDict) and not is_schedule(value):
            values |= {f"{name}.{key}": inner for key, inner in flat_keys(value).items()}
        else:
            values[name] = value
    return values


def full_key(config: ConfigDict, key: str) -> str:
    """Add the group to a key that only one group has: "lr" is "optim.lr".

    Raises:
        UserError: if several groups have the key.
    """
    if "." in key or key in config or key in ("name", "preset"):
        return key
    full = sorted(one for one in flat_keys(config) if one.rpartition(".")[2] == key)
    if len(full) > 1:
        raise UserError(f"config key {key!r} is in several groups; write {' or '.join(full)}")
    return full[0] if full else key


def find_group(config: ConfigDict, key: str) -> ConfigDict:
    """Return the config group that holds a key, and raise UserError for an unknown key."""
    node, prefix = config, ""
    while True:
        name, dot, _ = key.removeprefix(prefix).partition(".")
        child: Any = node.get(name)
        is_group = isinstance(child, ConfigDict) and "schedule" not in child
        if is_group and not dot:
            names = ", ".join(child)
            raise UserError(f"config key {key!r} is a group; set one of its keys: {names}")
        if name not in node or is_group != bool(dot):
            keys = [prefix + name for name in node]
            close = closest_key(name, keys) or closest_key(name, flat_keys(config))
            hint = f"; did you mean {close!r}?" if close else ";"
            raise UserError(f"config key {key!r} is unknown{hint} valid: {', '.join(keys)}")
        if not dot:
            return node
        node, prefix = child, f"{prefix}{name}."
