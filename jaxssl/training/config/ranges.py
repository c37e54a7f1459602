"""Check the ranges of config values that no component checks."""

from functools import reduce
from operator import getitem
from typing import Any

from ml_collections import ConfigDict

from jaxssl.errors import UserError

# In these groups integers are sizes, not hyper-parameters.
NETWORKS = ("net", "text", "head", "predictor")
LOWEST = {"total_steps": 0, "epochs": 0, "seed": 0, "crops.number": 0}
LOWEST |= dict.fromkeys(("batch_size", "views", "log_every", "accumulate_steps", "max_skipped"), 1)
LOWEST |= {"data.test_fraction": 0, "data.workers": -1, "data.context": 1, "data.frame_size": 1}
LOWEST |= {"optim.clip_norm": 0, "optim.trust_coefficient": 0, "schedule.warmup_epochs": 0}
LOWEST |= {"schedule.warmup_start": 0, "schedule.gamma": 0, "schedule.end_factor": 0}
# Losses and methods compile operations for each pair of views, which takes hours for hundreds.
MOST_VIEWS = 64
MOST_LAYERS = 1000
MOST_WIDTH = 2**20  # in any other size of a network
# in the side of a view, because JAX counts the pixels of an image in 32 bits
MOST_PIXELS = 2**15


def check_common_ranges(config: ConfigDict) -> None:
    """Raise UserError if a key that every run reads is out of its range."""
    values: dict[str, Any] = {key: reduce(getitem, key.split("."), config) for key in LOWEST}
    for key, value in values.items():
        if value < LOWEST[key]:
            raise UserError(f"config key {key!r} must be >= {LOWEST[key]}, got {value}")
    for key in ("views", "crops.number"):
        if values[key] > MOST_VIEWS:
            raise UserError(f"config key {key!r} must be <= {MOST_VIEWS}, got {values[key]}")
    if not config.total_steps and not config.epochs:
        raise UserError("one of the config keys 'epochs' and 'total_steps' must be > 0")
    for group, name in (("optim", "lr"), ("eval", "every"), ("checkpoint", "every")):
        if not config[group][name] > 0:
            raise UserError(f"config key '{group}.{name}' must be > 0, got {config[group][name]}")


def check_argument(key: str, component: str, value: Any) -> None:
    """Check a size of a network, or a number of the augmentation. None of them is negative.

    Args:
        key: dotted config key of the argument.
        component: group of the component that takes the argument, such as "net" or "augment".
        value: of the right type.

    Raises:
        UserError: if it is out of its range.
    """
    name = key.rpartition(".")[2]
    in_list = isinstance(value, tuple | list)
    numbers = [x for x in (value if in_list else (value,)) if type(x) in (int, float)]
    if component in NETWORKS:
        numbers = [x for x in numbers if type(x) is int]
        most = MOST_LAYERS if name.endswith("layers") else MOST_WIDTH
        if any(x > most for x in numbers):
            raise UserError(f"config key {key!r} must be <= {most}, got {str(value):.80}")
        if in_list and len(value) > MOST_LAYERS:
            raise UserError(f"config key {key!r} must have at most {MOST_LAYERS} numbers")
    elif component != "augment" or in_list:
        return
    lowest = 1 if in_list or name in ("size", "frames", "stride") else 0
    if any(x < lowest for x in numbers):
        raise UserError(f"config key {key!r} must be >= {lowest}, got {value}")
    if name == "size" and any(x > MOST_PIXELS for x in numbers):
        raise UserError(f"config key {key!r} must be <= {MOST_PIXELS}, got {value}")
