"""A small network of strided convolutions, fast on CPUs."""

from typing import Any

import flax.linen as nn
from jax import Array, lax
from jax import numpy as jnp

from jaxssl.models._layers import batch_norm, require_min


class ConvNet(nn.Module):
    """Small convolutional network: 3x3 convolution, BatchNorm and ReLU per stage, then pooling.

    See `net` for the attributes.
    """

    widths: tuple[int, ...]
    strides: tuple[int, ...]

    @nn.compact
    def __call__(
        self, x: Array, *, train: bool, axis_name: str | None = None, keys: Array | None = None
    ) -> Array:
        """Map images [n, h, w, c] to features [n, f]. ``keys`` are not used."""
        for width, stride in zip(self.widths, self.strides, strict=True):
            conv = nn.Conv(
                width,
                (3, 3),
                strides=stride,
                padding=1,
                use_bias=False,
                conv_general_dilated=strided_conv,
            )
            x = nn.relu(batch_norm(conv(x), train=train, axis_name=axis_name))
        return jnp.mean(x, axis=(1, 2))


def net(
    *, widths: tuple[int, ...] = (32, 64, 128), strides: tuple[int, ...] = (2, 2, 2)
) -> nn.Module:
    """Build the small convolutional network, one stage for each entry of ``widths``.

    Args:
        widths: channels of each stage, >= 1. The last one is the feature dimension. There is at
            least one stage.
        strides: stride of each stage, >= 1.

    Raises:
        ValueError: if a value is below 1, or ``widths`` and ``strides`` differ in length.
    """
    if len(widths) != len(strides):
        raise ValueError(f"net.widths {widths} and net.strides {strides} must have equal lengths")
    require_min(1, widths=min(widths, default=0), strides=min(strides, default=0))
    return ConvNet(tuple(widths), tuple(strides))


def strided_conv(
    x: Array, kernel: Array, strides: tuple[int, int], padding: Any, **options: Any
) -> Array:
    """Convolve as `jax.lax.conv_general_dilated` does, but faster on CPUs.

    XLA's gradient of a strided convolution is slow on CPUs if the images are small. On CPUs, this
    function therefore multiplies a matrix of image patches by the kernel, which makes the gradient
    of a network for 16 x 16 pixels four times as fast. Other devices run XLA's convolution.

    Args:
        x: [n, h, w, c].
        kernel: [kh, kw, c, k].
        strides: stride along height and width, >= 1.
        padding: zeros before and after each of the two axes.
        **options: further arguments of `jax.lax.conv_general_dilated`. Matrix products use only
            ``precision``.

    Returns:
        [n, h', w', k], equal on all platforms up to rounding.
    """

    def convolution(x: Array, kernel: Array) -> Array:
        return lax.conv_general_dilated(x, kernel, strides, padding, **options)

    def matrix_product(x: Array, kernel: Array) -> Array:
        height, width, _, channels = kernel.shape
        patches = _extract_patches(x, (height, width), strides, padding)
        matrix = kernel.reshape(-1, channels)
        precision = options.get("precision")
        y = jnp.matmul(patches.reshape(-1, len(matrix)), matrix, precision=precision)
        return y.reshape(*patches.shape[:3], -1)

    if max(strides) == 1:  # XLA's convolution is as fast at stride 1.
        return convolution(x, kernel)
    return lax.platform_dependent(x, kernel, cpu=matrix_product, default=convolution)


def _extract_patches(
    x: Array, window: tuple[int, int], strides: tuple[int, int], padding: Any
) -> Array:
    """Return the inputs under the window at each position, [n, h', w', kh * kw * c]."""
    x = jnp.pad(x, ((0, 0), *padding, (0, 0)))
    n, h, w, c = x.shape
    rows, columns = h - window[0] + 1, w - window[1] + 1  # number of window positions at stride 1
    shifted = [
        lax.slice(x, (0, i, j, 0), (n, i + rows, j + columns, c), (1, *strides, 1))
        for i in range(window[0])
        for j in range(window[1])
    ]
    return jnp.concatenate(shifted, axis=3)
