"""CLIP's ResNets: a stem of three convolutions, anti-aliased strides, attention in place of a mean.

References:
    Radford et al., Learning Transferable Visual Models From Natural Language Supervision, 2021,
    section 2.4 and table 19; He et al., Bag of Tricks for Image Classification, 2019 (ResNet-D);
    Zhang, Making Convolutional Networks Shift-Invariant Again, 2019 (pooling before strides).
"""

import math
from functools import partial

import flax.linen as nn
from jax import Array
from jax import numpy as jnp

from jaxssl.models._attention import attend
from jaxssl.models._norms import batch_norm

# size: blocks per stage, width, dim of the features
SIZES = {
    "50": ((3, 4, 6, 3), 64, 1024),
    "101": ((3, 4, 23, 3), 64, 512),
    "50x4": ((4, 6, 10, 6), 80, 640),
}
# stem: the least pixels a side, which the stem and three stages make one
STEMS = {"cifar": 8, "imagenet": 32}
# PyTorch's own for convolutions, which the released code leaves as it is: 1 / (3 fan_in).
KERNEL_INIT = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")
ATTENTION_INIT = nn.initializers.variance_scaling(1.0, "fan_in", "normal")


class Block(nn.Module):
    """A 1x1, 3x3, 1x1 bottleneck of expansion 4 plus the shortcut; it starts as the shortcut.

    A stride is an average over squares of its size: in the bottleneck between the 3x3 and the last
    convolution, in the shortcut before its own.

    Attributes:
        width: channels inside the block.
        stride: >= 1.
    """

    width: int
    stride: int

    @nn.compact
    def __call__(self, x: Array, *, train: bool, axis_name: str | None = None) -> Array:
        """Feature maps [n, h, w, c] to feature maps [n, h // stride, w // stride, 4 width]."""
        norm = partial(batch_norm, train=train, axis_name=axis_name)
        out = 4 * self.width
        y = nn.relu(norm(_conv(self.width, 1)(x)))
        y = nn.relu(norm(_conv(self.width, 3)(y)))
        y = _conv(out, 1)(average_pool(y, self.stride))
        y = norm(y, scale_init=nn.initializers.zeros)
        if self.stride > 1 or x.shape[-1] != out:
            x = norm(_conv(out, 1)(average_pool(x, self.stride)))
        return nn.relu(x + y)


class AttentionPool(nn.Module):
    """One layer of attention whose only query is the mean of the tokens, which is a token too.

    Attributes:
        heads: they divide the size of a token.
        dim: of the result.
    """

    heads: int
    dim: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Feature maps [n, h, w, c] to [n, dim].

        Raises:
            ValueError: if the maps are not square, or not of the size that the positions had first.
        """
        n, rows, columns, c = x.shape
        count = rows * columns
        if self.has_variable("params", "positions"):
            count = self.get_variable("params", "positions").shape[0] - 1
        side = math.isqrt(count)
        # A number of tokens tells one grid from another only if grids are square.
        if (rows, columns) != (side, side):
            raise ValueError(
                f"the network's positions are those of a square grid, here of {side} x {side}, and "
                f"these images make {rows} x {columns}"
            )
        init = nn.initializers.normal(c**-0.5)
        positions = self.param("positions", init, (1 + count, c))
        x = x.reshape(n, count, c)
        x = jnp.concatenate([jnp.mean(x, axis=1, keepdims=True), x], axis=1) + positions[None]
        dense = partial(nn.Dense, c, kernel_init=ATTENTION_INIT)
        size = c // self.heads
        q = dense(name="query")(x[:, :1]).reshape(n, 1, self.heads, size)
        k = dense(name="key")(x).reshape(n, -1, self.heads, size)
        v = dense(name="value")(x).reshape(n, -1, self.heads, size)
        y = attend(q, k, v).reshape(n, c)
        return nn.Dense(self.dim, kernel_init=ATTENTION_INIT, name="out")(y)


class ClipResNet(nn.Module):
    """Stem, four stages of bottlenecks, attention pooling.

    Attributes:
        stages: blocks of each stage.
        width: channels of the first stage's bottlenecks; every further stage has twice as many.
        heads: of the pooling.
        dim: of the features.
        stem: one of `STEMS`.
    """

    stages: tuple[int, ...]
    width: int
    heads: int
    dim: int
    stem: str = "imagenet"

    @nn.compact
    def __call__(
        self, x: Array, *, train: bool, axis_name: str | None = None, keys: Array | None = None
    ) -> Array:
        """Images [n, h, w, c] to features [n, dim]; ``keys`` are not used.

        Raises:
            ValueError: if the images are too small, or make another grid than the first ones.
        """
        del keys
        if min(x.shape[1:3]) < STEMS[self.stem]:
            raise ValueError(
                f"net.stem {self.stem!r} needs images of >= {STEMS[self.stem]} pixels a side, got "
                f"{x.shape[1]} x {x.shape[2]}"
            )
        small = self.stem == "cifar"
        first = 1 if small else 2
        for width, stride in ((self.width // 2, first), (self.width // 2, 1), (self.width, 1)):
            x = _conv(width, 3, stride)(x)
            x = nn.relu(batch_norm(x, train=train, axis_name=axis_name))
        x = x if small else average_pool(x, 2)
        for stage, blocks in enumerate(self.stages):
            for i in range(blocks):
                stride = 2 if stage > 0 and i == 0 else 1
                block = Block(self.width * 2**stage, stride)
                x = block(x, train=train, axis_name=axis_name)
        return AttentionPool(self.heads, self.dim)(x)


def net(
    *,
    size: str = "50x4",
    stem: str = "imagenet",
    width: int | None = None,
    num_heads: int | None = None,
    dim: int | None = None,
) -> nn.Module:
    """A `ClipResNet` for square images of the one size that it starts with.

    The pooling has a learned position for every cell of the last stage's grid, a 32nd of the
    images' side ("imagenet") or an 8th ("cifar"), so the first call fixes the images' size: 224
    pixels for CLIP's "50" and "101", 288 for its "50x4".

    Args:
        size: "50", "101" or "50x4": features of 1024, 512 and 640 entries.
        stem: "imagenet", which reduces a side by 4, or "cifar": the same three convolutions
            without stride and pooling, for images of 8 to 64 pixels (not in the paper).
        width: channels of the first stage's bottlenecks, in place of the size's 64, 64 or 80; even
            and >= 2.
        num_heads: of the pooling, in place of ``width / 2``, which gives them 64 entries each; it
            divides 32 ``width``.
        dim: of the features, in place of the size's; >= 1.

    Raises:
        ValueError: on a value out of its range.

    References:
        Radford et al., 2021. Kernels, positions and the blocks' last norms start as in the released
        code; the pooling's biases start at 0, there uniform as PyTorch's.
    """
    if size not in SIZES:
        raise ValueError(f"net.size must be one of {tuple(SIZES)}, got {size!r}")
    if stem not in STEMS:
        raise ValueError(f"net.stem must be one of {tuple(STEMS)}, got {stem!r}")
    stages, usual_width, usual_dim = SIZES[size]
    width = usual_width if width is None else width
    dim = usual_dim if dim is None else dim
    if width < 2 or width % 2:
        raise ValueError(f"net.width must be even and >= 2, got {width}")
    if dim < 1:
        raise ValueError(f"net.dim must be >= 1, got {dim}")
    heads = width // 2 if num_heads is None else num_heads
    if heads < 1 or 32 * width % heads:
        raise ValueError(f"net.num_heads must divide 32 net.width, {32 * width}, got {heads}")
    return ClipResNet(stages, width, heads, dim, stem)


def average_pool(x: Array, stride: int) -> Array:
    """Means over squares of ``stride`` pixels; a rest on the right or at the bottom is left out.

    Args:
        x: [n, h, w, c].
        stride: >= 1; 1 changes nothing.

    Returns:
        [n, h // stride, w // stride, c].
    """
    if stride == 1:
        return x
    n, h, w, c = x.shape
    rows, columns = h // stride, w // stride
    x = x[:, : rows * stride, : columns * stride]
    return jnp.mean(x.reshape(n, rows, stride, columns, stride, c), axis=(2, 4))


def _conv(width: int, side: int, stride: int = 1) -> nn.Module:
    # Explicit padding, as in PyTorch: "SAME" would pad a strided convolution on one side only.
    return nn.Conv(
        width,
        (side, side),
        strides=stride,
        padding=side // 2,
        use_bias=False,
        kernel_init=KERNEL_INIT,
    )
