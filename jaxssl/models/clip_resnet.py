"""ResNets as in CLIP: three-convolution stem, anti-aliased strides, attention pooling.

References:
    Radford et al., Learning Transferable Visual Models From Natural Language Supervision, 2021,
    section 2.4 and table 19; He et al., Bag of Tricks for Image Classification, 2019 (ResNet-D);
    Zhang, Making Convolutional Networks Shift-Invariant Again, 2019 (pooling before strides).
"""

from functools import partial

import flax.linen as nn
from jax import Array
from jax import numpy as jnp

from jaxssl.models._layers import (
    TORCH_KERNEL_INIT,
    attend,
    batch_norm,
    require_choice,
    require_min,
    square_conv,
)
from jaxssl.models._transformer import learned_positions

# Maps the size to (blocks per stage, width, feature dimension).
SIZES = {
    "50": ((3, 4, 6, 3), 64, 1024),
    "101": ((3, 4, 23, 3), 64, 512),
    "50x4": ((4, 6, 10, 6), 80, 640),
    "50x16": ((6, 8, 18, 8), 96, 768),
    "50x64": ((3, 15, 36, 10), 128, 1024),
}
# Maps the stem to the smallest side of an image in pixels, which stem and stages reduce to 1, and
# to the stride of the stem's first convolution and pool.
STEMS = {"cifar": (8, 1), "imagenet": (32, 2)}
ATTENTION_INIT = nn.initializers.variance_scaling(1.0, "fan_in", "normal")
_conv = partial(square_conv, kernel_init=TORCH_KERNEL_INIT)


class Block(nn.Module):
    """Bottleneck block of CLIP's ResNets (expansion 4) with an anti-aliased stride.

    A stride is an average pool, before the last convolution of the bottleneck and before the
    convolution of the shortcut.

    Attributes:
        width: channels inside the block.
        stride: side of the average pool, >= 1.
    """

    width: int
    stride: int

    @nn.compact
    def __call__(self, x: Array, *, train: bool, axis_name: str | None = None) -> Array:
        """Apply the block to feature maps [n, h, w, c]: [n, h // stride, w // stride, 4 width]."""
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
    """Attention pooling whose single query is the mean token, which is also a key and value.

    Attributes:
        heads: number of heads, a divisor of the channels of the feature maps.
        dim: dimension of the result.
    """

    heads: int
    dim: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Pool feature maps [n, h, w, c] by attention to features [n, dim].

        Raises:
            ValueError: if the maps are not square, or differ in size from the first ones.
        """
        n, rows, columns, c = x.shape
        init = nn.initializers.normal(c**-0.5)
        positions = learned_positions(self, rows, columns, c, init)
        x = x.reshape(n, rows * columns, c)
        x = jnp.concatenate([jnp.mean(x, axis=1, keepdims=True), x], axis=1) + positions[None]
        dense = partial(nn.Dense, c, kernel_init=ATTENTION_INIT)
        head_dim = c // self.heads
        q = dense(name="query")(x[:, :1]).reshape(n, 1, self.heads, head_dim)
        k = dense(name="key")(x).reshape(n, -1, self.heads, head_dim)
        v = dense(name="value")(x).reshape(n, -1, self.heads, head_dim)
        y = attend(q, k, v).reshape(n, c)
        return nn.Dense(self.dim, kernel_init=ATTENTION_INIT, name="out")(y)


class ClipResNet(nn.Module):
    """CLIP's ResNet: a stem, stages of bottleneck blocks and attention pooling.

    See `net` for the attributes (``heads`` is its ``num_heads``). ``stages`` holds the number of
    blocks in each stage. ``width`` is the number of channels inside the blocks of the first stage,
    which doubles with every stage.
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
        """Map images [n, h, w, c] to features [n, dim]. ``keys`` are not used.

        Raises:
            ValueError: if the images are too small, or if their last feature map is not square or
                has another size than at initialisation.
        """
        smallest, stem_stride = STEMS[self.stem]
        if min(x.shape[1:3]) < smallest:
            raise ValueError(
                f"net.stem={self.stem!r} needs images of >= {smallest} pixels a side, got "
                f"{x.shape[1]} x {x.shape[2]}"
            )
        half = self.width // 2
        for width, stride in ((half, stem_stride), (half, 1), (self.width, 1)):
            x = _conv(width, 3, stride)(x)
            x = nn.relu(batch_norm(x, train=train, axis_name=axis_name))
        x = average_pool(x, stem_stride)
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
    """Build a ResNet as in CLIP for square images of one size.

    The attention pooling has a learned position for every cell of the last feature map, which is
    smaller than the image by a factor of 32 ("imagenet") or 8 ("cifar"). So the first call fixes
    the image size: 224 pixels for CLIP's "50" and "101", 288, 384 and 448 for the larger ones.

    Args:
        size: "50", "101", "50x4", "50x16" or "50x64", with 1024, 512, 640, 768 and 1024 features.
        stem: "imagenet", which reduces the sides by 4, or "cifar", the same three convolutions
            without stride and pooling, for images of 8 to 64 pixels (not in the paper).
        width: channels inside the first stage's blocks, even and >= 2. Default: given by ``size``,
            64 to 128.
        num_heads: heads of the attention pooling, dividing 32 ``width``. Default: ``width / 2``,
            which gives a head dimension of 64.
        dim: feature dimension, >= 1. Default: given by ``size``.

    Raises:
        ValueError: if a setting is out of range.

    References:
        Radford et al., 2021. Kernels, positions and the last norm of each block are initialised as
        in the released code, but biases of the pooling start at 0 instead of uniform values.
    """
    require_choice(SIZES, size=size)
    require_choice(STEMS, stem=stem)
    stages, default_width, default_dim = SIZES[size]
    width = default_width if width is None else width
    dim = default_dim if dim is None else dim
    if width < 2 or width % 2:
        raise ValueError(f"net.width must be even and >= 2, got {width}")
    require_min(1, dim=dim)
    heads = width // 2 if num_heads is None else num_heads
    if heads < 1 or 32 * width % heads:
        raise ValueError(f"net.num_heads must divide 32 * net.width = {32 * width}, got {heads}")
    return ClipResNet(stages, width, heads, dim, stem)


def average_pool(x: Array, stride: int) -> Array:
    """Average an image over squares of ``stride`` pixels, without incomplete squares.

    Args:
        x: [n, h, w, c].
        stride: side of a square, >= 1. With 1, ``x`` is returned unchanged.

    Returns:
        [n, h // stride, w // stride, c].
    """
    if stride == 1:
        return x
    n, h, w, c = x.shape
    rows, columns = h // stride, w // stride
    x = x[:, : rows * stride, : columns * stride]
    return jnp.mean(x.reshape(n, rows, stride, columns, stride, c), axis=(2, 4))
