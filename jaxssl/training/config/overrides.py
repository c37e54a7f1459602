"""Convert the values of overrides, texts or Python objects, to config values."""

import ast
import types
import typing
from collections.abc import Mapping
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from jaxssl.errors import UserError, one_line
from jaxssl.training.config import schedules
from jaxssl.training.config.types import fits, is_schedule, require


def convert(key: str, given: Any, kind: Any) -> Any:
    """Convert a command-line text, or a value from Python, to the type of its config key.

    Raises:
        UserError: if the text or the value is of another type.
    """
    value = _parse(given) if isinstance(given, str) else _plain(given)
    is_union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    alternatives = typing.get_args(kind) if is_union else (kind,)
    if str in alternatives and (kind is str or isinstance(value, str)):
        return given
    if isinstance(value, str) and any(typing.get_origin(one) is tuple for one in alternatives):
        value = tuple(value.split(","))
    if is_schedule(value) and not fits(value, kind):
        raise UserError(
            f"config key {key!r} takes no schedule; numbers of loss and method, and "
            "optim.weight_decay, do (the learning rate has the group schedule)"
        )
    require(key, value, kind)
    if is_schedule(value):
        return _make_schedule(key, value)
    return float(value) if float in alternatives and type(value) is int else value


def _make_schedule(key: str, value: Mapping[Any, Any]) -> ConfigDict:
    """Return a schedule as a config group, and raise UserError for unknown members."""
    valid = {"schedule", "unit"}.union(*schedules.KEYS.values())
    unknown = [member for member in value if member not in valid]
    if unknown:
        raise UserError(
            f"config key {key!r}: a schedule has no {unknown[0]!r}, but {', '.join(sorted(valid))}"
        )
    try:
        return ConfigDict(value)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise UserError(f"config key {key!r} is no schedule: {one_line(error)}") from error


def _plain(value: Any) -> Any:
    """Return a value from Python in the types that a config holds."""
    if isinstance(value, list):
        return tuple(value)
    return value.item() if isinstance(value, np.generic) else value


def _parse(text: str) -> Any:
    """Parse a command-line text as a Python literal, a bool in any case, or a string."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text  # The last three errors come from unhashable keys and from deep nesting.
    return _plain(value)
