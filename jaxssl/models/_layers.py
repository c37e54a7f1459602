"""A convolution and initialisers that several networks use."""

from functools import partial

import flax.linen as nn
import jax

# PyTorch initialises Conv2d and Linear like this by default: uniform with variance 1 / (3 fan_in).
TORCH_KERNEL_INIT = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")

exact_gelu = partial(jax.nn.gelu, approximate=False)


def square_conv(
    width: int,
    side: int,
    stride: int = 1,
    padding: int | None = None,
    *,
    kernel_init: nn.initializers.Initializer,
    groups: int = 1,
) -> nn.Conv:
    """Return a bias-free convolution with equal padding on all sides (default ``side // 2``)."""
    # The padding is explicit, as in PyTorch. "SAME" would pad a strided convolution on one side
    # only.
    return nn.Conv(
        width,
        (side, side),
        strides=stride,
        padding=side // 2 if padding is None else padding,
        use_bias=False,
        kernel_init=kernel_init,
        feature_group_count=groups,
    )
