"""Override keys of a config by texts of the command line or by Python objects."""

import ast
import typing
from collections.abc import Sequence
from inspect import signature
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from jaxssl import components
from jaxssl.components import Settings
from jaxssl.errors import UserError, closest_key, one_line
from jaxssl.training.config import schedules
from jaxssl.training.config.groups import GROUPS, VIEW_GROUPS, argument_types, arguments
from jaxssl.training.config.values import (
    MEASURED_KEYS,
    TYPES,
    UNIONS,
    fits,
    flat_keys,
    is_schedule,
    require,
    time_as_text,
)

# Keys that only some optimisers or schedules use.
USED_BY = {
    "optim.momentum": ("sgd", "lars", "larc"),
    "optim.nesterov": ("sgd", "lars", "larc"),
    "optim.trust_coefficient": ("lars", "larc"),
    "schedule.end_factor": ("cosine", "linear"),
    "schedule.gamma": ("step",),
}


def apply_overrides(config: ConfigDict, overrides: Sequence[tuple[str, object]]) -> None:
    """Set existing config keys to the values of command-line or Python overrides.

    Args:
        config: changed in place.
        overrides: pairs (dotted key, value), where texts are parsed.

    Raises:
        UserError: on an unknown key, a value of another type, or a setting that has no effect,
            such as one of small crops if there are none.
    """
    for key, text in overrides:
        group, _, leaf = key.rpartition(".")
        # A group for some of the views may set any argument of the augmentation.
        is_new = group in VIEW_GROUPS and leaf not in config[group]
        if is_new and leaf in arguments(config.augment):
            with config.unlocked():
                config[group][leaf] = config.augment[leaf]
        node = _find_group(config, key)
        kind = TYPES.get(key, type(node[leaf]))
        if group in (*GROUPS, *VIEW_GROUPS) and key not in TYPES:
            kind = argument_types(config, group).get(leaf, Any)
        with node.ignore_type():  # A preset may have set a value of another valid type.
            node[leaf] = _convert(key, text, kind)
    for key, _ in overrides:
        if key.startswith("crops.") and key != "crops.number" and not config.crops.number:
            raise UserError(f"{key} has no effect without small crops; set crops.number")
        if key.startswith("second_view.") and config.views == 1:
            raise UserError(f"{key} has no effect with a single view; set views=2")
        if key == "init_projector" and config.init_projector and not config.init:
            raise UserError(f"{key} has no effect without init; set init to a run")
        group = key.partition(".")[0]
        if key in USED_BY and (name := config[group].name) not in USED_BY[key]:
            names = " or ".join(USED_BY[key])
            raise UserError(f"{key} has no effect with {group}.name={name}, only with {names}")


def full_key(config: ConfigDict, key: str) -> str:
    """Add the group to a key that only one group has: "lr" is "optim.lr".

    Raises:
        UserError: if several groups have the key, or it is the name or preset of a component.
    """
    if "." in key or key in config:
        return key
    full = sorted(k for k in flat_keys(config) if k.rpartition(".")[2] == key)
    if len(full) > 1 or (full and key in ("name", "preset")):
        raise UserError(f"config key {key!r} lacks its group; write {' or '.join(full)}")
    return full[0] if full else key


def _find_group(config: ConfigDict, key: str) -> ConfigDict:
    """Return the config group that holds a key.

    Raises:
        UserError: if the key is unknown, or names a group.
    """
    node, prefix = config, ""
    while True:
        name, dot, _ = key.removeprefix(prefix).partition(".")
        child: Any = node.get(name)
        is_group = isinstance(child, ConfigDict) and "schedule" not in child
        if is_group and not dot:
            first = f"{key}.name, or another" if "name" in child else "one"
            names = ", ".join(child)
            raise UserError(f"config key {key!r} is a group; set {first} of its keys: {names}")
        if name not in node or is_group != bool(dot):
            keys = [prefix + name for name in node]
            if prefix[:-1] in VIEW_GROUPS:  # They may set any argument of the augmentation.
                keys = sorted({*keys, *(prefix + name for name in arguments(config.augment))})
            all_keys = [] if key in MEASURED_KEYS else flat_keys(config)
            close = closest_key(name, keys) or closest_key(name, all_keys)
            hint, others = f"; did you mean {close!r}?" if close else ";", ""
            if not close and prefix in ("augment.", "loss.", "method.", "net."):
                hint = f" to {prefix}name={str(node.name)!r};"
                others = _others_with(name, prefix[:-1])
            raise UserError(f"config key {key!r} is unknown{hint} valid: {', '.join(keys)}{others}")
        if not dot:
            return node
        node, prefix = child, f"{prefix}{name}."


def _others_with(argument: str, group: str) -> str:
    """Say which components of a group have an argument, or return ""."""
    factories = {name: components.factory(group, name) for name in components.names(group)}
    names = [name for name, make in factories.items() if argument in signature(make).parameters]
    return f"; {group}.name with {argument!r}: {', '.join(names)}" if names else ""


def _convert(key: str, given: object, kind: object) -> object:
    """Convert a command-line text, or a value from Python, to the type of a config key.

    Args:
        key: the dotted key, for messages.
        given: the text or value.
        kind: annotation of the key, see `jaxssl.training.config.values.fits`.

    Raises:
        UserError: if the text or the value is of another type.
    """
    value = _parse(given) if isinstance(given, str) else _plain(given)
    is_union = typing.get_origin(kind) in UNIONS
    alternatives = typing.get_args(kind) if is_union else (kind,)
    if str in alternatives and (kind is str or isinstance(value, str)):
        return given
    if isinstance(value, str) and any(typing.get_origin(x) in (tuple, list) for x in alternatives):
        value = tuple(value.split(","))
    if is_schedule(value) and not fits(value, kind):
        raise UserError(
            f"config key {key!r} cannot be a schedule; numbers of the groups loss and method, and "
            "optim.weight_decay, can (the group schedule sets the learning rate's)"
        )
    require(key, value, kind)
    if is_schedule(value):
        return _schedule(key, value)
    return float(value) if float in alternatives and type(value) is int else value


def _schedule(key: str, value: Settings) -> ConfigDict:
    """Return a schedule in the form that a config holds.

    Raises:
        UserError: if a key of the schedule is unknown, or not a string.
    """
    valid = {"schedule", "unit"}.union(*schedules.KEYS.values())
    unknown = [member for member in value if member not in valid]
    if unknown:
        raise UserError(
            f"config key {key!r}: unknown schedule key {unknown[0]!r}; valid: "
            f"{', '.join(sorted(valid))}"
        )
    times = value.get("values")
    for time in times if isinstance(times, dict) else ():
        time_as_text(key, time)  # A ConfigDict has no keys with a dot.
    try:
        return ConfigDict(value)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise UserError(f"config key {key!r} is not a valid schedule: {one_line(error)}") from error


def _plain(value: object) -> object:
    """Return a value from Python in the types that a config holds."""
    if isinstance(value, list):
        return tuple(value)
    return value.item() if isinstance(value, np.generic) else value


def _parse(text: str) -> object:
    """Parse a command-line text as a Python literal, a bool in any case, or a string."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text  # Unhashable keys raise TypeError; deep nesting raises the last two errors.
    return _plain(value)
