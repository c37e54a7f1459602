"""Check the ranges of config values that no component checks."""

import operator
from typing import Any

from ml_collections import ConfigDict

from jaxssl.errors import UserError
from jaxssl.training.config.types import is_schedule

# In these groups integers are sizes, not hyper-parameters.
NETWORKS = ("net", "text", "head", "predictor")
# Limits of the keys that every run reads. Losses and methods compile operations for each pair of
# views, which takes hours for hundreds of views.
LIMITS = {
    ">= -1": "data.workers",
    ">= 0": "total_steps epochs seed crops.number data.test_fraction optim.weight_decay "
    "optim.clip_norm optim.trust_coefficient optim.freeze_blocks optim.lora "
    "optim.momentum schedule.warmup_epochs schedule.warmup_start schedule.gamma "
    "schedule.end_factor",
    ">= 1": "batch_size views log_every accumulate_steps max_skipped data.context data.frame_size",
    "> 0": "optim.lr optim.backbone_lr optim.layer_decay eval.every checkpoint.every",
    "< 1": "optim.momentum",
    "<= 1": "optim.layer_decay",
    "<= 64": "views crops.number",
}
COMPARE = {">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt}
MOST_LAYERS = 1000
MOST_WIDTH = 2**20  # in any other size of a network
# in the side of a view, because JAX counts the pixels of an image in 32 bits
MOST_PIXELS = 2**15


def check_common_ranges(config: ConfigDict) -> None:
    """Raise UserError if a key that every run reads is out of its range."""
    for limit, keys in LIMITS.items():
        symbol, bound = limit.split()
        for key in keys.split():
            group, _, name = key.rpartition(".")
            values: Any = config[group] if group else config
            if name not in values:
                continue  # The config of a run of an older version lacks newer keys.
            value = values[name]
            if not is_schedule(value) and not COMPARE[symbol](value, float(bound)):
                raise UserError(f"config key {key!r} must be {limit}, got {value}")
    if not config.total_steps and not config.epochs:
        raise UserError("one of the config keys 'epochs' and 'total_steps' must be > 0")


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
