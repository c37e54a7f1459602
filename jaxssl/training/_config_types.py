"""Whether the values of a config are of the types that its readers expect."""

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from jax import Array
from ml_collections import ConfigDict

from jaxssl.errors import UserError

LARGEST = 2**31  # of whole numbers; JAX counts in 32 bits
INTS = (
    "seed batch_size total_steps views accumulate_steps log_every max_skipped data.split_seed "
    "data.context data.frame_size data.workers"
)
FLOATS = (
    "epochs data.test_fraction optim.lr optim.momentum optim.trust_coefficient optim.clip_norm "
    "schedule.warmup_epochs schedule.warmup_start schedule.gamma schedule.end_factor eval.every "
    "checkpoint.every"
)
TEXTS = (
    "precision data.name data.path data.dir data.train_split data.bank_split data.test_split "
    "data.classes data.labels data.on_error data.cache optim.name optim.lr_scaling schedule.name "
    "eval.knn"
)
# Of the keys that are no component's argument.
KINDS: dict[str, Any] = {
    **dict.fromkeys(INTS.split(), int),
    **dict.fromkeys(FLOATS.split(), float),
    **dict.fromkeys(TEXTS.split(), str),
    **dict.fromkeys(("optim.nesterov", "optim.lars_clip", "optim.sharded"), bool),
    "optim.weight_decay": float | Callable,
    "schedule.milestones": tuple[float, ...],
    "eval.protocols": tuple[str, ...],
    "crops.number": int,
}


def check(config: ConfigDict) -> None:
    """Raise UserError if a key that every run reads is missing or of another type."""
    for key, kind in KINDS.items():
        node: Any = config
        for name in key.split("."):
            if not isinstance(node, ConfigDict) or name not in node:
                raise UserError(f"config key {key!r} is missing")
            node = node[name]
        require(key, node, kind)


def check_arguments(
    group: str, values: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter]
) -> None:
    """Raise UserError if a value is not of the type of the factory's argument."""
    for name, value in values.items():
        kind, default = parameters[name].annotation, parameters[name].default
        if kind is inspect.Parameter.empty:
            kind = tuple[str, ...] if isinstance(default, tuple) else Any
        require(f"{group}.{name}", value, kind)


def require(key: str, value: Any, kind: Any) -> None:
    """Raise UserError if the value of a key is not of a type, given as an annotation."""
    if not fits(value, kind):
        got = " ".join(repr(value).split())[:80]
        raise UserError(f"config key {key!r} expects {_name(kind)}, got {got}")


def fits(value: Any, kind: Any) -> bool:
    """Whether a value of a config may be handed to an argument that is annotated so."""
    origin, inner = typing.get_origin(kind) or kind, typing.get_args(kind)
    if kind is Any:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, one) for one in inner)
    if origin is Callable or kind is Callable:  # a schedule
        return isinstance(value, Mapping | ConfigDict) and "schedule" in value
    if origin is tuple:
        if not isinstance(value, tuple | list):
            return False
        of = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        return len(of) == len(value) and all(map(fits, value, of))
    if kind in (None, types.NoneType):
        return value is None
    if kind is int:
        return type(value) is int and abs(value) < LARGEST
    if kind in (float, Array):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and value == value and abs(value) < 10**300
    return isinstance(value, kind)


def _name(kind: Any) -> str:
    """For messages: "float", "int or None", "tuple of float"."""
    origin = typing.get_origin(kind)
    if Callable in (kind, origin):
        return "a schedule"
    inner = [_name(one) for one in typing.get_args(kind) if one not in (Ellipsis, Array)]
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(inner))
    if origin is tuple:
        return f"tuple of {inner[0]}"
    return {types.NoneType: "None", Array: "float"}.get(kind) or getattr(
        kind, "__name__", str(kind)
    )
