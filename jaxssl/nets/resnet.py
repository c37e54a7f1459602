"""ResNet-18, -34 and -50 with CIFAR and ImageNet stems."""

from functools import partial
from typing import Any

import flax.linen as nn
from jax import Array
from jax import numpy as jnp

# depth: blocks per stage, whether blocks are bottlenecks
DEPTHS = {18: ((2, 2, 2, 2), False), 34: ((3, 4, 6, 3), False), 50: ((3, 4, 6, 3), True)}
STEMS = ("cifar", "imagenet")


class Block(nn.Module):
    """Two 3x3 convolutions, or a 1x1, 3x3, 1x1 bottleneck of expansion 4, plus the shortcut.

    Attributes:
        width: channels inside the block.
        stride: of the 3x3 convolution that comes first.
        bottleneck: which form; the stride of a bottleneck sits on its 3x3 (torchvision's "v1.5").
    """

    width: int
    stride: int
    bottleneck: bool

    @nn.compact
    def __call__(self, x: Array, norm: Any) -> Array:
        """Feature maps to feature maps; ``norm()`` makes a BatchNorm."""
        conv = partial(nn.Conv, use_bias=False)
        out = self.width * (4 if self.bottleneck else 1)
        if self.bottleneck:
            y = nn.relu(norm()(conv(self.width, (1, 1))(x)))
            y = nn.relu(norm()(_conv3(self.width, self.stride)(y)))
            y = norm()(conv(out, (1, 1))(y))
        else:
            y = nn.relu(norm()(_conv3(self.width, self.stride)(x)))
            y = norm()(_conv3(out, 1)(y))
        if x.shape != y.shape:
            x = norm()(conv(out, (1, 1), strides=self.stride)(x))
        return nn.relu(x + y)


class ResNet(nn.Module):
    """He et al., Deep Residual Learning for Image Recognition, 2015.

    Attributes:
        stages: blocks of each stage; widths double from 64.
        bottleneck: the block's form.
        stem: "imagenet", 7x7 stride 2 and max-pool, or "cifar", 3x3 stride 1.
    """

    stages: tuple[int, ...]
    bottleneck: bool
    stem: str

    @nn.compact
    def __call__(self, x: Array, *, train: bool, axis_name: str | None = None) -> Array:
        """Images [n, h, w, c] to features [n, f]."""
        norm = partial(
            nn.BatchNorm,
            use_running_average=not train,
            momentum=0.9,
            axis_name=axis_name if train else None,
        )
        if self.stem == "cifar":
            x = nn.relu(norm()(_conv3(64, 1)(x)))
        else:
            x = nn.Conv(64, (7, 7), strides=2, padding=3, use_bias=False)(x)
            x = nn.relu(norm()(x))
            x = nn.max_pool(x, (3, 3), strides=(2, 2), padding=((1, 1), (1, 1)))
        for stage, blocks in enumerate(self.stages):
            for block in range(blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                x = Block(64 * 2**stage, stride, self.bottleneck)(x, norm)
        return jnp.mean(x, axis=(1, 2))


def net(*, depth: int = 18, stem: str = "cifar") -> nn.Module:
    """A `ResNet`; features are 512 wide (18, 34) or 2048 (50).

    Args:
        depth: 18, 34 or 50.
        stem: "cifar" for images of about 32 pixels, "imagenet" for 224.

    Raises:
        ValueError: on another depth or stem.
    """
    if depth not in DEPTHS:
        raise ValueError(f"net.depth must be one of {sorted(DEPTHS)}, got {depth}")
    if stem not in STEMS:
        raise ValueError(f"net.stem must be one of {STEMS}, got {stem!r}")
    stages, bottleneck = DEPTHS[depth]
    return ResNet(stages, bottleneck, stem)


def _conv3(width: int, stride: int) -> nn.Module:
    # Explicit padding, as in PyTorch: "SAME" would pad a strided convolution on one side only.
    return nn.Conv(width, (3, 3), strides=stride, padding=1, use_bias=False)
