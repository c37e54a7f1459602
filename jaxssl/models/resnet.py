"""ResNets with stems for CIFAR and ImageNet, and their variants.

References:
    He et al., Deep Residual Learning for Image Recognition, 2015.
    Zagoruyko and Komodakis, Wide Residual Networks, 2016.
    Xie et al., Aggregated Residual Transformations for Deep Neural Networks, 2017 (ResNeXt).
    He et al., Bag of Tricks for Image Classification, 2019 (ResNet-D).
"""

from functools import partial
from typing import Any

import flax.linen as nn
from jax import Array
from jax import numpy as jnp

from jaxssl.models._layers import (
    batch_norm,
    keep_sums,
    require_choice,
    require_min,
    square_conv,
    sum_dtype,
)

# Maps the depth to (blocks per stage, True if the blocks are bottlenecks).
DEPTHS = {
    18: ((2, 2, 2, 2), False),
    26: ((2, 2, 2, 2), True),
    34: ((3, 4, 6, 3), False),
    50: ((3, 4, 6, 3), True),
    101: ((3, 4, 23, 3), True),
    152: ((3, 8, 36, 3), True),
}
# Maps the stem to the (width, side, stride, padding) of its convolutions. The width of the first
# stage is 1.
STEMS = {
    "cifar": ((1, 3, 1, 1),),
    "cifar_wide": ((1, 3, 1, 2),),
    "imagenet": ((1, 7, 2, 3),),
    "deep": ((0.5, 3, 2, 1), (0.5, 3, 1, 1), (1, 3, 1, 1)),
}
# Kernels start Kaiming-normal by fan-out, as in torchvision. Flax's default is LeCun-normal by
# fan-in.
_conv = partial(square_conv, kernel_init=nn.initializers.variance_scaling(2.0, "fan_out", "normal"))


class Block(nn.Module):
    """Residual block: two 3x3 convolutions, or a 1x1, 3x3, 1x1 bottleneck of expansion 4.

    Attributes:
        width: channels inside the block.
        stride: stride of the first 3x3 convolution. In a bottleneck this is the second convolution,
            as in torchvision ("v1.5").
        bottleneck: whether the block is a bottleneck.
        zero_init: whether the scale of the last BatchNorm is initialised with 0.
        groups: groups of the 3x3 convolution of a bottleneck.
        base_width: channels in a group of a bottleneck, relative to ``width`` / 64.
        pooled_shortcut: whether a stride in the shortcut is an average pool before the convolution.
        dilations: of the first and the second 3x3 convolution.
    """

    width: int
    stride: int
    bottleneck: bool
    zero_init: bool = False
    groups: int = 1
    base_width: int = 64
    pooled_shortcut: bool = False
    dilations: tuple[int, int] = (1, 1)

    @nn.compact
    def __call__(self, x: Array, *, train: bool, axis_name: str | None = None) -> Array:
        """Apply the block to feature maps [n, h, w, c]: [n, h / stride, w / stride, out]."""
        norm = partial(batch_norm, train=train, axis_name=axis_name)
        out = self.width * (4 if self.bottleneck else 1)
        first, second = self.dilations
        if self.bottleneck:
            inner = self.width * self.base_width // 64 * self.groups
            y = nn.relu(norm(_conv(inner, 1)(x)))
            y = nn.relu(norm(_conv(inner, 3, self.stride, groups=self.groups, dilation=first)(y)))
            y = _conv(out, 1)(y)
        else:
            y = nn.relu(norm(_conv(self.width, 3, self.stride, dilation=first)(x)))
            y = _conv(out, 3, dilation=second)(y)
        y = norm(y, scale_init=nn.initializers.zeros if self.zero_init else nn.initializers.ones)
        if x.shape != y.shape:
            stride = self.stride
            if self.pooled_shortcut and stride > 1:
                # Incomplete squares at the border are averaged over the pixels that they have.
                pads: Any = [(0, side % stride) for side in x.shape[1:3]]
                window = (stride,) * 2
                wide = x.astype(sum_dtype(x))  # Flax divides by float32 numbers of pixels.
                wide = nn.avg_pool(wide, window, window, pads, count_include_pad=False)
                x = wide.astype(x.dtype)
                stride = 1
            x = norm(_conv(out, 1, stride)(x))
        return nn.relu(x + y)


class ResNet(nn.Module):
    """Residual network (He et al., Deep Residual Learning for Image Recognition, 2015).

    Attributes:
        stages: number of blocks in each stage.
        bottleneck: whether the blocks are bottlenecks.
        stem: "imagenet" (7x7 convolution of stride 2, max-pool), "deep" (three 3x3 convolutions
            instead), "cifar" (3x3 of stride 1), or "cifar_wide" (the same with two pixels of
            padding).
        width: channels of the first stage. Each stage has twice as many as the one before.
        zero_init_residual: whether every block is initialised as the identity on its shortcut.
        remat: whether the backward pass recomputes each block from its input.
        groups: see `Block`.
        base_width: see `Block`.
        pooled_shortcut: see `Block`.
        maps: whether to return feature maps [n, h, w, f] for dense predictions. The last two stages
            then dilate their convolutions instead of lowering the resolution (Chen et al., DeepLab,
            2016). The parameters are the same.
    """

    stages: tuple[int, ...]
    bottleneck: bool
    stem: str
    width: int = 64
    zero_init_residual: bool = False
    remat: bool = False
    groups: int = 1
    base_width: int = 64
    pooled_shortcut: bool = False
    maps: bool = False

    @nn.compact
    def __call__(
        self, x: Array, *, train: bool, axis_name: str | None = None, keys: Array | None = None
    ) -> Array:
        """Map images [n, h, w, c] to features [n, f]. ``keys`` are not used."""
        for width, *conv in STEMS[self.stem]:
            x = _conv(int(self.width * width), *conv)(x)
            x = nn.relu(batch_norm(x, train=train, axis_name=axis_name))
        if self.stem in ("imagenet", "deep"):
            pads: Any = ((1, 1), (1, 1))  # Flax annotates the padding as a string.
            x = nn.max_pool(x, (3, 3), (2, 2), pads)

        def run(block: Block, x: Array) -> Array:
            return block(x, train=train, axis_name=axis_name)

        # To rematerialise the class would rename the parameters, so the call is rematerialised.
        run = nn.remat(run, policy=keep_sums) if self.remat else run
        make_block = partial(
            Block,
            bottleneck=self.bottleneck,
            zero_init=self.zero_init_residual,
            groups=self.groups,
            base_width=self.base_width,
            pooled_shortcut=self.pooled_shortcut,
        )
        for stage, blocks in enumerate(self.stages):
            dilation = 2 ** (stage - 1) if self.maps and stage > 1 else 1
            for i in range(blocks):
                stride = 2 if stage > 0 and i == 0 and dilation == 1 else 1
                # The first 3x3 convolution of a stage has the dilation of the stage before.
                first = max(dilation // 2, 1) if i == 0 else dilation
                width = self.width * 2**stage
                x = run(make_block(width, stride, dilations=(first, dilation)), x)
        return x if self.maps else jnp.mean(x, axis=(1, 2))


def net(
    *,
    depth: int = 18,
    stem: str = "cifar",
    width: int = 64,
    zero_init_residual: bool = False,
    remat: bool = False,
    groups: int = 1,
    base_width: int = 64,
    pooled_shortcut: bool = False,
) -> nn.Module:
    """Build a ResNet with 8 ``width`` features (depth 18, 34) or 32 ``width`` (others).

    Args:
        depth: 18, 26, 34, 50, 101 or 152. 26 is ResNet-18 with bottlenecks.
        stem: "cifar" for images of about 32 pixels, "imagenet" for 224, "deep" for 224 with three
            convolutions (ResNet-D), or "cifar_wide", which is solo-learn's variant of "cifar": a
            padding of 2 turns 32 pixels into 34.
        width: channels of the first stage (64 in the paper), >= 1, or >= 2 for the "deep" stem,
            whose first convolutions have half as many.
        zero_init_residual: whether the last BatchNorm scale of every block is initialised with 0,
            so that the block starts as its shortcut (Goyal et al., Accurate, Large Minibatch SGD,
            2017).
        remat: whether to store only the input of each block and recompute the block in the backward
            pass. The statistics of BatchNorm are stored too, so devices exchange them once.
        groups: groups of the 3x3 convolutions in bottlenecks, >= 1 (ResNeXt: 32).
        base_width: channels of such a group in the first stage of a network of width 64, >= 1 and
            >= 64 / ``width`` (ResNeXt-50: 4, Wide ResNet: 128).
        pooled_shortcut: whether shortcuts are pooled before a convolution without stride, where
            they otherwise have a convolution with a stride (ResNet-D).

    Raises:
        ValueError: if a setting is out of range, if a convolution would have no channels, or if
            ``groups`` or ``base_width`` is changed for a depth of 18 or 34, whose blocks are no
            bottlenecks.
    """
    require_choice(DEPTHS, depth=depth)
    require_choice(STEMS, stem=stem)
    require_min(2 if stem == "deep" else 1, width=width)
    require_min(1, groups=groups, base_width=base_width)
    _, bottleneck = DEPTHS[depth]
    if not bottleneck and (groups, base_width) != (1, 64):
        raise ValueError(f"net.groups and net.base_width need bottlenecks, got net.depth={depth}")
    if bottleneck and width * base_width < 64:
        raise ValueError(
            "net.width * net.base_width must be >= 64, so that groups have channels, got "
            f"{width} * {base_width}"
        )
    return ResNet(
        *DEPTHS[depth], stem, width, zero_init_residual, remat, groups, base_width, pooled_shortcut
    )
