"""Check the types of the values of a config."""

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

from jax import Array
from ml_collections import ConfigDict

from jaxssl.errors import UserError
from jaxssl.training.transfer import Transfer

LARGEST = 2**31  # Integers must be smaller, because JAX counts in 32 bits.
_INTS = (
    "seed batch_size total_steps views accumulate_steps log_every max_skipped data.split_seed "
    "data.context data.frame_size data.workers crops.number"
)
_FLOATS = (
    "epochs data.test_fraction optim.lr optim.momentum optim.trust_coefficient optim.clip_norm "
    "schedule.warmup_epochs schedule.warmup_start schedule.gamma schedule.end_factor eval.every "
    "checkpoint.every"
)
_TEXTS = (
    "precision data.name data.path data.dir data.train_split data.bank_split data.test_split "
    "data.classes data.labels data.on_error data.cache optim.name optim.lr_scaling schedule.name "
    "eval.knn"
)
# Every run reads these config keys. The types of all other keys are the annotations of a
# component's factory.
TYPES: dict[str, Any] = {
    **dict.fromkeys(_INTS.split(), int),
    **dict.fromkeys(_FLOATS.split(), float),
    **dict.fromkeys(_TEXTS.split(), str),
    **dict.fromkeys(("optim.nesterov", "optim.lars_clip", "optim.sharded"), bool),
    "optim.weight_decay": float | Callable,
    "schedule.milestones": tuple[float, ...],
    "eval.protocols": tuple[str, ...],
    **dict.fromkeys(("log", "optim.freeze"), tuple[str, ...]),
}
# Configs of earlier versions lack these keys, which then have these values.
LATER: dict[str, Any] = {
    **dict.fromkeys(("eval.held_out_loss", "eval.online_linear", "init_projector"), False),
    "optim.decay_all": False,
    "init": "",
    "data.channels": 0,
    "data.normalise": "auto",
    **{f"optim.{key}": value for key, value in Transfer._field_defaults.items()},
    "log": ("tensorboard",),
}
TYPES |= {key: type(value) for key, value in LATER.items() if key not in TYPES}


def check_common_keys(config: ConfigDict) -> None:
    """Raise UserError if a config key of every run is missing or has a wrong type."""
    for key, kind in TYPES.items():
        node: Any = config
        for name in key.split("."):
            if not isinstance(node, ConfigDict) or name not in node:
                if key in LATER:
                    node = LATER[key]
                    break
                raise UserError(f"config key {key!r} is missing")
            node = node[name]
        require(key, node, kind)


def add_later_keys(config: Any) -> None:
    """Add the keys of `LATER` that the groups of a config lack."""
    for key, value in LATER.items():
        group, dot, name = key.rpartition(".")
        node = config.get(group) if dot else config
        if isinstance(node, dict | ConfigDict) and name not in node:
            node[name] = value


def argument_types(factory: Callable[..., Any]) -> dict[str, Any]:
    """Return the type of each argument of a component's factory function.

    The type of an argument without an annotation is Any, or a tuple of str if its default is one.
    """
    kinds = {}
    for name, parameter in inspect.signature(factory).parameters.items():
        kinds[name] = parameter.annotation
        if parameter.annotation is inspect.Parameter.empty:
            kinds[name] = tuple[str, ...] if isinstance(parameter.default, tuple) else Any
    return kinds


def require(key: str, value: Any, kind: Any) -> None:
    """Raise UserError if the value of a config key does not fit its type."""
    if not fits(value, kind):
        text = " ".join(repr(value).split())[:80]
        raise UserError(f"config key {key!r} expects {describe_type(kind)}, got {text}")


def fits(value: Any, kind: Any) -> bool:
    """Return True if a config value can be passed to an argument with this annotation."""
    origin, inner = typing.get_origin(kind) or kind, typing.get_args(kind)
    if kind is Any:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, one) for one in inner)
    if origin is Callable:  # A config value is callable only as a schedule.
        return is_schedule(value)
    if origin is tuple:
        if not isinstance(value, tuple | list):
            return False
        items = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        return len(items) == len(value) and all(map(fits, value, items))
    if kind in (None, types.NoneType):
        return value is None
    if kind is int:
        return type(value) is int and abs(value) < LARGEST
    if kind in (float, Array):
        return type(value) in (int, float) and value == value and abs(value) < 10**300
    return isinstance(value, kind)


def is_schedule(value: Any) -> TypeGuard[Mapping[str, Any]]:
    """Return True for a mapping that describes a schedule."""
    return isinstance(value, Mapping | ConfigDict) and "schedule" in value


def describe_type(kind: Any) -> str:
    """Return a type in words, such as "float", "int or None", "tuple of float"."""
    origin = typing.get_origin(kind) or kind
    if origin is Callable:
        return "a schedule"
    inner = [describe_type(one) for one in typing.get_args(kind) if one not in (Ellipsis, Array)]
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(inner))
    if origin is tuple:
        return f"tuple of {inner[0]}"
    names = {types.NoneType: "None", Array: "float"}
    return names.get(kind) or getattr(kind, "__name__", str(kind))
