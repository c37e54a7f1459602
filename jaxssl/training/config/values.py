"""Check the types and the ranges of the values of a config."""

import inspect
import math
import operator
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

from jax import Array
from ml_collections import ConfigDict

from jaxssl.components import Settings
from jaxssl.configs import base
from jaxssl.data.decoders.decoding import MAX_CHANNELS
from jaxssl.errors import UserError, suggest
from jaxssl.models.encoder import PRECISIONS
from jaxssl.models.transfer import Transfer

LARGEST = 2**31  # Integers must be smaller, because JAX counts in 32 bits.
MEASURED_KEYS = ("data.mean", "data.std")  # written by a run, never set
# Configs of earlier versions lack these keys, which then have these values.
LATER: dict[str, object] = {
    **dict.fromkeys(("eval.held_out_loss", "eval.online_linear", "init_projector"), False),
    "optim.decay_all": False,
    "optim.sharding": "none",
    "init": "",
    "batch_norm_group": 0,
    "data.channels": 0,
    "data.normalise": "auto",
    **{f"optim.{key}": value for key, value in Transfer._field_defaults.items()},
    "log": ("tensorboard",),
}
# Groups of the config in which integers are sizes of networks, not hyper-parameters.
NETWORKS = ("net", "text", "head", "predictor")
# Relation and bound of the keys that every run reads. Losses and training schemes compile
# operations for each pair of views, which takes hours for hundreds of views.
LIMITS = {
    (">=", -1): "data.workers",
    (">=", 0): "total_steps epochs seed crops.number data.channels data.test_fraction "
    "optim.weight_decay batch_norm_group optim.clip_norm optim.freeze_blocks optim.lora "
    "optim.momentum schedule.warmup_epochs schedule.warmup_start schedule.gamma "
    "schedule.end_factor",
    # A batch of one example has no negatives, and its BatchNorm has no variance.
    (">=", 2): "batch_size",
    (">=", 1): "views log_every accumulate_steps max_skipped data.frame_size",
    (">=", 3): "data.context",
    (">", 0): "optim.lr optim.backbone_lr optim.layer_decay optim.trust_coefficient eval.every "
    "checkpoint.every",
    ("<", 1): "optim.momentum data.test_fraction",
    ("<=", 1): "optim.layer_decay",
    ("<=", MAX_CHANNELS): "data.channels",
    ("<=", 64): "views crops.number",
}
CHOICES = {
    "data.cache": ("auto", "device", "none"),
    "data.normalise": ("auto", "half", "measured"),
    "data.on_error": ("stop", "skip"),
    "optim.sharding": ("none", "optimizer", "all"),
    "precision": tuple(PRECISIONS),
}
UNIONS = (typing.Union, types.UnionType)  # origins of "int | None" and Optional[int]
COMPARE = {">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt}
MOST_LAYERS = 1000  # limit on numbers of layers, and on the length of lists
MOST_WIDTH = 2**20  # limit on every other integer of a network's config
MOST_PIXELS = 2**15  # limit on a view's side, because JAX counts an image's pixels in 32 bits


def is_schedule(value: object) -> TypeGuard[Settings]:
    """Return True for a mapping that describes a schedule."""
    return isinstance(value, Mapping | ConfigDict) and "schedule" in value


def flat_keys(config: ConfigDict) -> dict[str, Any]:
    """Return a config's values by dotted key, such as "optim.lr". A schedule is a single value."""
    values = {}
    for name, value in config.items():
        if isinstance(value, ConfigDict) and not is_schedule(value):
            values |= {f"{name}.{key}": inner for key, inner in flat_keys(value).items()}
        else:
            values[name] = value
    return values


# Types of keys that every run reads: the types of their defaults, with the exceptions below.
# The types of all other keys are the annotations of a component's factory.
TYPES: dict[str, object] = {
    **{
        k: type(v)
        for k, v in flat_keys(base.get_config()).items()
        if k.split(".")[0] not in base.COMPONENTS
    },
    **dict.fromkeys(("eval.protocols", "log", "optim.freeze"), tuple[str, ...]),
    "epochs": float,
    "optim.weight_decay": float | Callable,
    "schedule.milestones": tuple[float, ...],
}


def check_common_keys(config: ConfigDict) -> None:
    """Raise UserError if a key of every run is missing, or has a wrong type or range."""
    values = flat_keys(config)
    for key, kind in TYPES.items():
        if key not in values:
            raise UserError(f"config key {key!r} is missing")
        require(key, values[key], kind)
    check_ranges(values)
    if not config.total_steps and not config.epochs:
        raise UserError("one of the config keys 'epochs' and 'total_steps' must be > 0")


def check_ranges(values: Mapping[str, Any]) -> None:
    """Raise UserError if a value, by dotted key, is not in `CHOICES`, or is out of its `LIMITS`."""
    for key, valid in CHOICES.items():
        if key in values and values[key] not in valid:
            raise UserError(f"{key}={values[key]!r} is unknown{suggest(values[key], valid)}")
    for (relation, bound), keys in LIMITS.items():
        for key in filter(values.__contains__, keys.split()):
            value = values[key]
            for number in schedule_numbers(value) if is_schedule(value) else [value]:
                if not COMPARE[relation](number, bound):
                    raise UserError(f"config key {key!r} must be {relation} {bound}, got {number}")


def schedule_numbers(value: Any) -> list[float]:
    """Return the numbers between which a schedule moves, or [] if the value is not a schedule."""
    if not is_schedule(value):
        return []
    constants: Any = value.get("values")
    inner = constants.values() if isinstance(constants, Mapping | ConfigDict) else ()
    numbers: list[Any] = [value.get("start"), value.get("end"), *inner]
    if value.get("warmup"):
        numbers.append(value.get("warmup_from", 0.0))
    return [number for number in numbers if fits(number, float)]


def time_as_text(key: str, time: object) -> str:
    """Return a time of a "steps" schedule as a text, because JSON has no other keys.

    Raises:
        UserError: if it is not a whole number. The message names the config key ``key``.
    """
    if isinstance(time, float) and time.is_integer():
        time = int(time)
    if isinstance(time, float) or "." in str(time):
        raise UserError(
            f"config key {key!r}: times of a schedule must be whole numbers, got {time}; give them "
            'in steps, with unit="steps"'
        )
    return str(time)


def add_later_keys(config: Any) -> None:
    """Add the keys of `LATER` to an earlier version's config, and rename optim.sharded."""
    if "sharded" in config.get("optim", ()):
        config["optim"]["sharding"] = "optimizer" if config["optim"]["sharded"] else "none"
        del config["optim"]["sharded"]
    for key, value in LATER.items():
        group, dot, name = key.rpartition(".")
        node = config.get(group) if dot else config
        if isinstance(node, dict | ConfigDict) and name not in node:
            node[name] = value


def check_argument(key: str, component: str, value: Any) -> None:
    """Check the range of an argument that sets a network's size or an augmentation.

    Args:
        key: dotted config key of the argument.
        component: group of the component that takes the argument, such as "net" or "augment".
        value: of the right type.

    Raises:
        UserError: if it is out of its range.
    """
    is_list, is_network = isinstance(value, tuple | list), component in NETWORKS
    if not is_network and (component != "augment" or is_list):
        return
    name, allowed = key.rpartition(".")[2], (int,) if is_network else (int, float)
    numbers = [x for x in (value if is_list else (value,)) if type(x) in allowed]
    lowest = 1 if is_list or name in ("size", "frames", "stride") else 0
    most = MOST_LAYERS if name.endswith("layers") else MOST_WIDTH if is_network else math.inf
    most = MOST_PIXELS if name == "size" else most
    if min(numbers, default=lowest) < lowest:
        raise UserError(f"config key {key!r} must be >= {lowest}, got {str(value):.80}")
    if max(numbers, default=lowest) > most:
        raise UserError(f"config key {key!r} must be <= {most}, got {str(value):.80}")
    if is_list and len(value) > MOST_LAYERS:
        raise UserError(f"config key {key!r} must have at most {MOST_LAYERS} numbers")


def argument_types(factory: Callable[..., object]) -> dict[str, object]:
    """Return the annotation of each argument of a component's factory function."""
    return {name: p.annotation for name, p in inspect.signature(factory).parameters.items()}


def require(key: str, value: object, kind: object) -> None:
    """Raise UserError if a value does not fit the type of a config key."""
    if not fits(value, kind):
        text = " ".join(repr(value).split())[:80]
        if type(value) is int and abs(value) >= LARGEST:
            text += f"; integers must be below {LARGEST}"
        raise UserError(f"config key {key!r} expects {describe_type(kind)}, got {text}")


def fits(value: Any, kind: Any) -> bool:
    """Return True if a config value can be passed to an argument with this annotation.

    Annotations that a config cannot check, such as a `TypeVar`, allow every value.
    """
    origin, inner = typing.get_origin(kind) or kind, typing.get_args(kind)
    if origin in UNIONS:
        return any(fits(value, alternative) for alternative in inner)
    if origin is typing.Literal:
        return value in inner
    if origin is Callable:  # A config value is callable only as a schedule.
        return is_schedule(value)
    if origin in (tuple, list):  # JSON has lists only.
        if not isinstance(value, tuple | list):
            return False
        if origin is list or Ellipsis in inner:
            inner = inner[:1] * len(value)
        return not inner or (len(inner) == len(value) and all(map(fits, value, inner)))
    if kind in (None, types.NoneType):
        return value is None
    if kind is int:
        return type(value) is int and abs(value) < LARGEST
    if kind in (float, Array):  # NaN and infinity do not fit.
        return type(value) in (int, float) and abs(value) < 10**300
    return kind is Any or not isinstance(origin, type) or isinstance(value, origin)


def describe_type(kind: object) -> str:
    """Return the type of a config key in words, such as "float" or "tuple of float"."""
    origin, inner = typing.get_origin(kind) or kind, typing.get_args(kind)
    if origin is Callable:
        return "a schedule"
    if origin is typing.Literal:
        return " or ".join(map(repr, inner))
    words = [describe_type(x) for x in inner if x not in (Ellipsis, Array)]
    if origin in UNIONS:
        return " or ".join(dict.fromkeys(words))
    if origin in (tuple, list):
        count = f"{len(inner)} " if origin is tuple and Ellipsis not in inner else ""
        return f"tuple of {count}{words[0]}" if words else "tuple"
    names = {types.NoneType: "None", Array: "float"}
    return names.get(kind) or getattr(kind, "__name__", str(kind))
