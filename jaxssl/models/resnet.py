"""ResNet-18, -34, -50 and -101 with CIFAR and ImageNet stems."""

from functools import partial

import flax.linen as nn
from jax import Array
from jax import numpy as jnp

from jaxssl.models._norms import batch_norm, keep_sums_over_devices

# depth: blocks per stage, whether blocks are bottlenecks
DEPTHS = {
    18: ((2, 2, 2, 2), False),
    34: ((3, 4, 6, 3), False),
    50: ((3, 4, 6, 3), True),
    101: ((3, 4, 23, 3), True),
}
STEMS = ("cifar", "cifar_wide", "imagenet")
# Kaiming-normal by fan-out, as torchvision's ResNets; flax's own default is LeCun's by fan-in.
KERNEL_INIT = nn.initializers.variance_scaling(2.0, "fan_out", "normal")


class Block(nn.Module):
    """Two 3x3 convolutions, or a 1x1, 3x3, 1x1 bottleneck of expansion 4, plus the shortcut.

    Attributes:
        width: channels inside the block.
        stride: of the 3x3 convolution that comes first.
        bottleneck: which form; the stride of a bottleneck sits on its 3x3 (torchvision's "v1.5").
        zero_init: whether the last BatchNorm's scale starts at 0.
    """

    width: int
    stride: int
    bottleneck: bool
    zero_init: bool = False

    @nn.compact
    def __call__(self, x: Array, *, train: bool, axis_name: str | None = None) -> Array:
        """Feature maps [n, h, w, c] to feature maps [n, h / stride, w / stride, out]."""
        norm = partial(batch_norm, train=train, axis_name=axis_name)
        ones, zeros = nn.initializers.ones, nn.initializers.zeros
        last_norm = partial(norm, scale_init=zeros if self.zero_init else ones)
        out = self.width * (4 if self.bottleneck else 1)
        if self.bottleneck:
            y = nn.relu(norm(_conv(self.width, 1)(x)))
            y = nn.relu(norm(_conv(self.width, 3, self.stride)(y)))
            y = last_norm(_conv(out, 1)(y))
        else:
            y = nn.relu(norm(_conv(self.width, 3, self.stride)(x)))
            y = last_norm(_conv(out, 3)(y))
        if x.shape != y.shape:
            x = norm(_conv(out, 1, self.stride)(x))
        return nn.relu(x + y)


class ResNet(nn.Module):
    """He et al., Deep Residual Learning for Image Recognition, 2015.

    Attributes:
        stages: blocks of each stage.
        bottleneck: the block's form.
        stem: "imagenet", 7x7 stride 2 and max-pool, or "cifar", 3x3 stride 1; "cifar_wide" is the
            latter with two pixels of padding (solo-learn's).
        width: channels of the first stage; every further stage has twice those of the one before.
        zero_init_residual: whether every block starts as its shortcut.
        remat: whether the backward pass computes each block anew from its input.
    """

    stages: tuple[int, ...]
    bottleneck: bool
    stem: str
    width: int = 64
    zero_init_residual: bool = False
    remat: bool = False

    @nn.compact
    def __call__(
        self, x: Array, *, train: bool, axis_name: str | None = None, keys: Array | None = None
    ) -> Array:
        """Images [n, h, w, c] to features [n, f]; ``keys`` are not used."""
        del keys
        side, stride, padding = {
            "cifar": (3, 1, 1),
            "cifar_wide": (3, 1, 2),
            "imagenet": (7, 2, 3),
        }[self.stem]
        x = _conv(self.width, side, stride, padding)(x)
        x = nn.relu(batch_norm(x, train=train, axis_name=axis_name))
        if self.stem == "imagenet":
            x = nn.max_pool(x, (3, 3), strides=(2, 2), padding=((1, 1), (1, 1)))

        def run(block: Block, x: Array) -> Array:
            return block(x, train=train, axis_name=axis_name)

        # Of the call, not of the class: a class would give the parameters another name.
        run = nn.remat(run, policy=keep_sums_over_devices) if self.remat else run
        for stage, blocks in enumerate(self.stages):
            for i in range(blocks):
                stride = 2 if stage > 0 and i == 0 else 1
                width = self.width * 2**stage
                x = run(Block(width, stride, self.bottleneck, self.zero_init_residual), x)
        return jnp.mean(x, axis=(1, 2))


def net(
    *,
    depth: int = 18,
    stem: str = "cifar",
    width: int = 64,
    zero_init_residual: bool = False,
    remat: bool = False,
) -> nn.Module:
    """A `ResNet`; features have 8 times ``width`` (18, 34) or 32 times ``width`` (50, 101) entries.

    Args:
        depth: 18, 34, 50 or 101.
        stem: "cifar" for images of about 32 pixels, "imagenet" for 224; "cifar_wide" is
            solo-learn's, "cifar" with a padding of 2, which makes 34 of 32 pixels.
        width: channels of the first stage, >= 1; the paper's is 64.
        zero_init_residual: whether the last BatchNorm's scale of every block starts at 0, so that
            a block starts as its shortcut (Goyal et al., Accurate, Large Minibatch SGD, 2017).
        remat: keep of each block only its input, and compute the block once more in the backward
            pass, as for a ViT. What devices send each other is the same too.

    Raises:
        ValueError: on another depth or stem, or a width below 1.
    """
    if depth not in DEPTHS:
        raise ValueError(f"net.depth must be one of {sorted(DEPTHS)}, got {depth}")
    if stem not in STEMS:
        raise ValueError(f"net.stem must be one of {STEMS}, got {stem!r}")
    if width < 1:
        raise ValueError(f"net.width must be >= 1, got {width}")
    stages, bottleneck = DEPTHS[depth]
    return ResNet(stages, bottleneck, stem, width, zero_init_residual, remat)


def _conv(width: int, side: int, stride: int = 1, padding: int | None = None) -> nn.Module:
    # Explicit padding, as in PyTorch: "SAME" would pad a strided convolution on one side only.
    return nn.Conv(
        width,
        (side, side),
        strides=stride,
        padding=side // 2 if padding is None else padding,
        use_bias=False,
        kernel_init=KERNEL_INIT,
    )
