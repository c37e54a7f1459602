"""A small network of strided convolutions: the fast choice on CPUs."""

import flax.linen as nn
from jax import Array
from jax import numpy as jnp

from jaxssl.nets.norms import batch_norm


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
            x = nn.Conv(width, (3, 3), strides=stride, padding=1, use_bias=False)(x)
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
