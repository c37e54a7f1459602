"""A small network of strided convolutions: the fast choice on CPUs."""

from typing import Any

import flax.linen as nn
from jax import Array, lax
from jax import numpy as jnp

from jaxssl.models._norms import batch_norm


class ConvNet(nn.Module):
    """Convolution, BatchNorm and ReLU per stage, then the mean over positions.

    Attributes:
        widths: channels of each stage.
        strides: stride of each stage.
    """

    widths: tuple[int, ...]
    strides: tuple[int, ...]

    @nn.compact
    def __call__(
        self, x: Array, *, train: bool, axis_name: str | None = None, keys: Array | None = None
    ) -> Array:
        """Images [n, h, w, c] to features [n, f]; ``keys`` are not used."""
        del keys
        for width, stride in zip(self.widths, self.strides, strict=True):
            conv = nn.Conv(
                width,
                (3, 3),
                strides=stride,
                padding=1,
                use_bias=False,
                conv_general_dilated=strided_conv,
            )
            x = conv(x)
            x = nn.relu(batch_norm(x, train=train, axis_name=axis_name))
        return jnp.mean(x, axis=(1, 2))


def net(
    *, widths: tuple[int, ...] = (32, 64, 128), strides: tuple[int, ...] = (2, 2, 2)
) -> nn.Module:
    """A `ConvNet`.

    Args:
        widths: channels of each stage, >= 1; the last is the size of the features.
        strides: stride of each stage, >= 1.

    Raises:
        ValueError: if ``widths`` and ``strides`` differ in length.
    """
    if len(widths) != len(strides):
        raise ValueError(f"net.widths {widths} and net.strides {strides} must have equal lengths")
    return ConvNet(tuple(widths), tuple(strides))


def strided_conv(
    x: Array, kernel: Array, strides: tuple[int, int], padding: Any, **options: Any
) -> Array:
    """Convolution with the arguments of `jax.lax.conv_general_dilated`.

    XLA's gradient of a strided convolution is slow on CPUs when images are small. There, the
    shifted copies of the input are concatenated and multiplied by the kernel as one matrix, which
    makes the gradient of a 16 x 16 network four times as fast. Accelerators keep the convolution.

    Args:
        x: [n, h, w, c].
        kernel: [kh, kw, c, k].
        strides: stride along height and width, >= 1.
        padding: zeros before and after each of the two axes.
        **options: further arguments of `jax.lax.conv_general_dilated`, for accelerators and for
            convolutions of stride 1.

    Returns:
        [n, h', w', k], equal on every platform up to rounding.
    """

    def convolution(x: Array, kernel: Array) -> Array:
        return lax.conv_general_dilated(x, kernel, strides, padding, **options)

    def matrix_product(x: Array, kernel: Array) -> Array:
        patches = _patches(x, kernel.shape[:2], strides, padding)
        matrix = kernel.reshape(-1, kernel.shape[-1])
        precision = options.get("precision")
        y = jnp.matmul(patches.reshape(-1, len(matrix)), matrix, precision=precision)
        return y.reshape(*patches.shape[:3], -1)

    if max(strides) == 1:  # nothing is gained there
        return convolution(x, kernel)
    return lax.platform_dependent(x, kernel, cpu=matrix_product, default=convolution)


def _patches(x: Array, window: tuple[int, int], strides: tuple[int, int], padding: Any) -> Array:
    """[n, h', w', kh * kw * c]: under each position of the window, the inputs that it covers."""
    x = jnp.pad(x, ((0, 0), *padding, (0, 0)))
    n, h, w, c = x.shape
    rows, cols = h - window[0] + 1, w - window[1] + 1  # positions of a window with stride 1
    shifted = [
        lax.slice(x, (0, i, j, 0), (n, i + rows, j + cols, c), (1, *strides, 1))
        for i in range(window[0])
        for j in range(window[1])
    ]
    return jnp.concatenate(shifted, axis=3)
