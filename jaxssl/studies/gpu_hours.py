"""Hours that training with a config takes on a GPU, from XLA's count of a step's operations."""

import functools
from typing import Any

import jax
from ml_collections import ConfigDict, FrozenConfigDict

from jaxssl.training.config import arguments, factory
from jaxssl.training.config.method import run_length
from jaxssl.training.dry_run import COMMON, open_training_split

# Operations a second of an H200 in bf16 matrix products (docs/performance.md).
PEAK = 790e12
# Share of them that training reaches, as docs/scaling.md assumes.
SHARE, VIT_SHARE = 0.2, 0.4
# Numbers of training examples of data sets that `COMMON` lacks: CC3M, and split 1 of UCF-101.
SIZES = {"captions": 2_890_000, "video": 9_537}


def estimate_hours(config: ConfigDict) -> float:
    """Estimate the hours of training on a data set of `COMMON` or `SIZES`.

    An image costs three times the operations of its forward pass, and once more if a momentum
    network encodes it. Heads, text networks and evaluation are not counted.

    Args:
        config: complete, with views of `augment.size` pixels.

    Raises:
        KeyError: if the number of training examples is unknown.
    """
    name, size, scheme = config.data.name, config.augment.size, config.method
    if name in COMMON:
        train = open_training_split(config)
        number, channels = len(train), train.shape[-1]
    else:
        number, channels = SIZES[name], 3
    has_target = scheme.name == "momentum" and scheme.momentum != 0
    one_query = has_target and not scheme.symmetric  # The other view is the key.
    crops = config.crops.number * (config.crops.get("size", 0) / size) ** 2
    queries = (1 if one_query else config.views) + crops
    keys = has_target and (1 if one_query else config.views)
    frames = (config.augment.frames,) if "frames" in config.augment else ()
    net: Any = FrozenConfigDict(config.net)  # hashable, although its annotations do not say so
    forward = _count(net, (1, *frames, size, size, channels))
    rate = PEAK * (VIT_SHARE if config.net.name == "vit" else SHARE)
    examples = run_length(config, number).total_steps * config.batch_size
    return examples * (3 * queries + keys) * forward / rate / 3600


@functools.cache
def _count(net: FrozenConfigDict, shape: tuple[int, ...]) -> float:
    """Return the operations of a network's forward pass.

    Args:
        net: the group `net` of a config, frozen so that it can be a key of the cache.
        shape: of the input, [1, ..., h, w, c].
    """
    network = factory("net", net.name)(**arguments(net))
    x = jax.ShapeDtypeStruct(shape, "float32")
    variables = jax.eval_shape(lambda x: network.init(jax.random.key(0), x, train=False), x)
    call = jax.jit(lambda variables, x: network.apply(variables, x, train=False))
    with jax.default_device(jax.devices("cpu")[0]):  # Other clients count only compiled programs.
        analysis: Any = call.lower(variables, x).cost_analysis()
    return analysis["flops"]
