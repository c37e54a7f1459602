"""S3D, an Inception network for clips [n, t, h, w, c], RGB, grey or optical flow."""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import flax.linen as nn
from jax import Array, lax
from jax import numpy as jnp

from jaxssl.models._norms import batch_norm, keep_sums_over_devices

EXAMPLES = "video"
# Channels of the branches of an Inception block: a 1x1; a 1x1 and a separable 3x3x3; the same
# again; a 1x1 after a pool. The paper's table, which is Inception-v1's.
Branches = tuple[int, int, int, int, int, int]
STAGES: tuple[tuple[Branches, ...], ...] = (
    ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
    (
        (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128),
    ),
    ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
)
BLOCKS = {"all": None, "first": 1}  # of a stage
STEM = (64, 192)
# The least that leaves one frame of one position: time shrinks 8-fold, a side 32-fold, rounded up
# but for the last pool, which pads nothing.
MIN_FRAMES, MIN_SIDE = 5, 17
# CoCLR's. A BatchNorm after each convolution takes the scale out again.
KERNEL_INIT = nn.initializers.normal(0.01)


class Separable(nn.Module):
    """A convolution over positions, then one over time, each with BatchNorm and ReLU.

    Attributes:
        width: channels of both.
        side: taps along each axis, odd.
        stride: along each axis.
        gating: whether each channel is multiplied by a number in (0, 1) that follows from the
            clip's means of all channels.
    """

    width: int
    side: int
    stride: int = 1
    gating: bool = False

    @nn.compact
    def __call__(self, x: Array, *, train: bool, axis_name: str | None = None) -> Array:
        """[n, t, h, w, c] to [n, t / stride, h / stride, w / stride, width], rounded up."""
        side, stride, norm = self.side, self.stride, {"train": train, "axis_name": axis_name}
        x = _unit(x, self.width, (side, side), (stride, stride), **norm)
        n, t, h, w, c = x.shape
        # Two axes are enough for both. XLA's convolutions over three are 3 to 70 times slower on
        # a CPU; flax counts the axes before these among the batch.
        x = _unit(x.reshape(n, t, h * w, c), self.width, (side, 1), (stride, 1), **norm)
        x = x.reshape(n, -1, h, w, c)
        if self.gating:
            gate = nn.sigmoid(nn.Dense(c)(jnp.mean(x, axis=(1, 2, 3))))
            x = x * gate[:, None, None, None, :]
        return x


class Stem(nn.Module):
    """What comes before the Inception blocks.

    Attributes:
        widths: channels of the first two convolutions and of the third.
        gating: of the separable ones.
    """

    widths: tuple[int, int]
    gating: bool = False

    @nn.compact
    def __call__(self, x: Array, *, train: bool, axis_name: str | None = None) -> Array:
        """[n, t, h, w, c] to [n, t / 2, h / 8, w / 8, widths[1]], rounded up."""
        norm = {"train": train, "axis_name": axis_name}
        first, last = self.widths
        x = Separable(first, 7, 2, self.gating)(x, **norm)
        x = max_pool(x, (1, 3, 3), (1, 2, 2), (0, 1, 1))
        x = _unit(x, first, (1, 1), **norm)
        x = Separable(last, 3, 1, self.gating)(x, **norm)
        return max_pool(x, (1, 3, 3), (1, 2, 2), (0, 1, 1))


class Inception(nn.Module):
    """Four branches side by side.

    Attributes:
        branches: their channels.
        gating: of the separable convolutions.
    """

    branches: Branches
    gating: bool = False

    @nn.compact
    def __call__(self, x: Array, *, train: bool, axis_name: str | None = None) -> Array:
        """[n, t, h, w, c] to [n, t, h, w, d], d the sum of the branches' last channels."""
        norm = {"train": train, "axis_name": axis_name}
        one, two_in, two, three_in, three, four = self.branches
        # The first convolutions of three branches see the same: as one, they are faster.
        y = _unit(x, one + two_in + three_in, (1, 1), **norm)
        first, *inner = jnp.split(y, (one, one + two_in), axis=-1)
        outs = [first]
        for y, width in zip(inner, (two, three), strict=True):
            outs.append(Separable(width, 3, 1, self.gating)(y, **norm))
        pooled = max_pool(x, (3, 3, 3), (1, 1, 1), (1, 1, 1))
        outs.append(_unit(pooled, four, (1, 1), **norm))
        return jnp.concatenate(outs, axis=-1)


class S3D(nn.Module):
    """Xie et al., Rethinking Spatiotemporal Feature Learning, 2018; gated, it is their S3D-G.

    Attributes:
        stem: channels of the stem.
        stages: the Inception blocks of three stages, between which pools halve time and sides.
        gating: of all separable convolutions.
        remat: whether the backward pass computes the stem and each block anew from their input.
    """

    stem: tuple[int, int] = STEM
    stages: tuple[tuple[Branches, ...], ...] = STAGES
    gating: bool = False
    remat: bool = False

    @nn.compact
    def __call__(
        self, x: Array, *, train: bool, axis_name: str | None = None, keys: Array | None = None
    ) -> Array:
        """Clips [n, t, h, w, c] to features [n, f]; ``keys`` are not used.

        Raises:
            ValueError: on clips that no position would be left of.
        """
        del keys
        _, t, h, w, _ = x.shape
        if t < MIN_FRAMES or min(h, w) < MIN_SIDE:
            raise ValueError(
                f"S3D needs clips of {MIN_FRAMES} frames of {MIN_SIDE} x {MIN_SIDE} pixels or "
                f"more, got {t} of {h} x {w}"
            )

        def run(block: nn.Module, x: Array) -> Array:
            return block(x, train=train, axis_name=axis_name)

        run = nn.remat(run, policy=keep_sums_over_devices) if self.remat else run
        x = run(Stem(self.stem, self.gating), x)
        for stage, blocks in enumerate(self.stages):
            if stage > 0:
                side, pad = (3, 1) if stage == 1 else (2, 0)
                x = max_pool(x, (side,) * 3, (2, 2, 2), (pad,) * 3)
            for branches in blocks:
                x = run(Inception(branches, self.gating), x)
        return jnp.mean(x, axis=(1, 2, 3))


def net(
    *, width: float = 1.0, blocks: str = "all", gating: bool = False, remat: bool = False
) -> nn.Module:
    """An `S3D`; features have 1024 times ``width`` entries (832 with the first blocks alone).

    Clips have at least 5 frames of 17 x 17 pixels; the paper's have 64 of 224 x 224, CoCLR's 32 of
    128 x 128. The last axis may have any length: 3 for RGB, 2 for flow, 1 for grey.

    Args:
        width: share of the paper's channels, > 0. Each number of channels is rounded, to at least
            1. An eighth, with 8 frames of 32 x 32 pixels, is a size for one CPU core.
        blocks: "all" nine Inception blocks, or the "first" of each of the three stages: XLA takes
            a minute to compile nine of them for a CPU.
        gating: whether all separable convolutions are followed by the self-gating of S3D-G.
        remat: keep of the stem and of each block only its input, and compute it once more in the
            backward pass, as for a ResNet.

    Raises:
        ValueError: on a width of 0 or less, or other blocks.

    References:
        Xie et al., Rethinking Spatiotemporal Feature Learning: Speed-Accuracy Trade-offs in Video
        Classification, 2018. Without gating the layers are those of torchvision's ``s3d`` and of
        CoCLR (Han et al., Self-supervised Co-training for Video Representation Learning, 2020).
        BatchNorm's epsilon is 1e-5 as in CoCLR; torchvision's and the authors' 1e-3 goes with
        running statistics that move by a thousandth.

    Differs from the released code: the paper says to gate after each convolution over time, and so
    we do; CoCLR's code gates all four branches of a block, and nothing in the stem.
    """
    if not width > 0:
        raise ValueError(f"net.width must be > 0, got {width}")
    if blocks not in BLOCKS:
        raise ValueError(f"net.blocks must be one of {tuple(BLOCKS)}, got {blocks!r}")

    def scaled(channels: Sequence[int]) -> tuple[Any, ...]:
        return tuple(max(1, round(c * width)) for c in channels)

    chosen = (stage[: BLOCKS[blocks]] for stage in STAGES)
    stages = tuple(tuple(scaled(branches) for branches in stage) for stage in chosen)
    return S3D(scaled(STEM), stages, gating, remat)


def max_pool(
    x: Array, window: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> Array:
    """The largest values in boxes; what is padded never is the largest, as in PyTorch.

    Args:
        x: [n, t, h, w, c].
        window: frames, rows and columns of a box.
        stride: from box to box.
        padding: on both ends of each axis, less than ``window``.

    Returns:
        [n, t', h', w', c]; of an axis of length l, (l + 2 padding - window) // stride + 1 are left.
    """
    # One axis after the other, as maxima of shifted arrays: XLA joins them into one loop, whereas
    # its own windows go back by a scatter. A gradient is shared by values that are equal.
    for axis, (size, step, pad) in enumerate(zip(window, stride, padding, strict=True), start=1):
        if size == 1 and step == 1:
            continue
        pads = [(0, 0, 0)] * x.ndim
        pads[axis] = (pad, pad, 0)
        padded = lax.pad(x, jnp.array(-jnp.inf, x.dtype), pads)
        last = padded.shape[axis] - size  # where the last box may start
        shifted = (lax.slice_in_dim(padded, i, i + last + 1, step, axis=axis) for i in range(size))
        x = reduce(jnp.maximum, shifted)
    return x


def _unit(
    x: Array,
    width: int,
    window: tuple[int, int],
    stride: tuple[int, int] = (1, 1),
    *,
    train: bool,
    axis_name: str | None,
) -> Array:
    """Convolution over the last two axes before the channels, BatchNorm and ReLU."""
    # Explicit padding, as in PyTorch: "SAME" would pad a strided convolution on one side only.
    padding = [(side // 2, side // 2) for side in window]
    conv = nn.Conv(width, window, stride, padding, use_bias=False, kernel_init=KERNEL_INIT)
    return nn.relu(batch_norm(conv(x), train=train, axis_name=axis_name))
