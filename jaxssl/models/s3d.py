"""S3D, an Inception network for videos [n, t, h, w, c] (RGB, grey or optical flow)."""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import flax.linen as nn
from jax import Array, lax
from jax import numpy as jnp

from jaxssl.models._layers import batch_norm, keep_sums, require_choice

EXAMPLES = "video"
# Output channels of the convolutions in an Inception block's four branches, Inception-v1's numbers:
# one of 1x1x1; two of 1x1x1 and separable 3x3x3; the same again; one of 1x1x1 after max pooling.
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
BLOCKS = {"all": None, "first": 1}  # blocks that each stage keeps, by the setting "blocks"
STEM = (64, 192)
# A video of this size leaves one position after all pools. Time is reduced by 8 and each side by
# 32, rounded up except in the last pool, which has no padding.
MIN_FRAMES, MIN_SIDE = 5, 17
# CoCLR initialises kernels like this. The BatchNorm after each convolution removes their scale.
KERNEL_INIT = nn.initializers.normal(0.01)


class Separable(nn.Module):
    """Separable 3D convolution over space, then time, each with BatchNorm and ReLU.

    Attributes:
        width: output channels of both convolutions.
        side: kernel size along each axis, odd.
        stride: stride along each axis.
        gating: whether to multiply each channel by a gate in (0, 1), a sigmoid of a linear map of
            the channels' means over the video.
    """

    width: int
    side: int
    stride: int = 1
    gating: bool = False

    @nn.compact
    def __call__(self, x: Array, *, train: bool, axis_name: str | None = None) -> Array:
        """Map [n, t, h, w, c] to [n, t / stride, h / stride, w / stride, width], rounded up."""
        side, stride, norm = self.side, self.stride, {"train": train, "axis_name": axis_name}
        x = _conv_norm_relu(x, self.width, (side, side), (stride, stride), **norm)
        n, t, h, w, c = x.shape
        # Height and width are flattened, so that the convolution has two axes. On CPUs XLA's
        # convolutions over three axes are 3 to 70 times slower.
        x = x.reshape(n, t, h * w, c)
        x = _conv_norm_relu(x, self.width, (side, 1), (stride, 1), **norm)
        x = x.reshape(n, -1, h, w, c)
        if self.gating:
            gate = nn.sigmoid(nn.Dense(c)(jnp.mean(x, axis=(1, 2, 3))))
            x = x * gate[:, None, None, None, :]
        return x


class Stem(nn.Module):
    """Stem of S3D: the convolutions and pools before the Inception blocks.

    Attributes:
        widths: channels of the first two convolutions, and of the third.
        gating: whether the separable convolutions are gated.
    """

    widths: tuple[int, int]
    gating: bool = False

    @nn.compact
    def __call__(self, x: Array, *, train: bool, axis_name: str | None = None) -> Array:
        """Map [n, t, h, w, c] to [n, t / 2, h / 8, w / 8, widths[1]], rounded up."""
        norm = {"train": train, "axis_name": axis_name}
        first, last = self.widths
        x = Separable(first, 7, 2, self.gating)(x, **norm)
        x = max_pool(x, (1, 3, 3), (1, 2, 2), (0, 1, 1))
        x = _conv_norm_relu(x, first, (1, 1), **norm)
        x = Separable(last, 3, 1, self.gating)(x, **norm)
        return max_pool(x, (1, 3, 3), (1, 2, 2), (0, 1, 1))


class Inception(nn.Module):
    """Inception block of S3D: four parallel branches, concatenated along the channels.

    Attributes:
        branches: channels of the branches, see `Branches`.
        gating: whether the separable convolutions are gated.
    """

    branches: Branches
    gating: bool = False

    @nn.compact
    def __call__(self, x: Array, *, train: bool, axis_name: str | None = None) -> Array:
        """Map [n, t, h, w, c] to [n, t, h, w, d], where d sums the branches' output channels."""
        norm = {"train": train, "axis_name": axis_name}
        one, two_in, two, three_in, three, four = self.branches
        # Three branches start with a 1x1 convolution of the same input. One joint convolution is
        # faster.
        y = _conv_norm_relu(x, one + two_in + three_in, (1, 1), **norm)
        first, second, third = jnp.split(y, (one, one + two_in), axis=-1)
        second = Separable(two, 3, 1, self.gating)(second, **norm)
        third = Separable(three, 3, 1, self.gating)(third, **norm)
        pooled = max_pool(x, (3, 3, 3), (1, 1, 1), (1, 1, 1))
        fourth = _conv_norm_relu(pooled, four, (1, 1), **norm)
        return jnp.concatenate([first, second, third, fourth], axis=-1)


class S3D(nn.Module):
    """S3D video network (Xie et al., 2018). With gating it is S3D-G.

    Attributes:
        stem: channels of the stem.
        stages: Inception blocks of each stage. Pools between stages halve time and sides.
        gating: whether the separable convolutions are gated.
        remat: whether the backward pass recomputes the stem and each block from their inputs.
    """

    stem: tuple[int, int] = STEM
    stages: tuple[tuple[Branches, ...], ...] = STAGES
    gating: bool = False
    remat: bool = False

    @nn.compact
    def __call__(
        self, x: Array, *, train: bool, axis_name: str | None = None, keys: Array | None = None
    ) -> Array:
        """Map videos [n, t, h, w, c] to features [n, f]. ``keys`` are not used.

        Raises:
            ValueError: if the videos are smaller than 5 frames of 17 x 17 pixels.
        """
        _, t, h, w, _ = x.shape
        if t < MIN_FRAMES or min(h, w) < MIN_SIDE:
            raise ValueError(
                f"net.name='s3d' needs at least {MIN_FRAMES} frames of {MIN_SIDE} x {MIN_SIDE} "
                f"pixels, got {t} of {h} x {w}; raise augment.frames or augment.size"
            )

        def run(block: nn.Module, x: Array) -> Array:
            return block(x, train=train, axis_name=axis_name)

        # To rematerialise the class would rename the parameters, so the call is rematerialised.
        run = nn.remat(run, policy=keep_sums) if self.remat else run
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
    """Return an `S3D` with 1024 ``width`` features (832 ``width`` if blocks="first").

    Videos need at least 5 frames of 17 x 17 pixels. The paper uses 64 frames of 224 x 224, CoCLR 32
    of 128 x 128. Any number of channels works: 3 for RGB, 2 for flow, 1 for grey.

    Args:
        width: factor on the paper's numbers of channels, > 0. The products are rounded, to at least
            1. A factor of 1/8, with 8 frames of 32 x 32 pixels, suits one CPU core.
        blocks: "all" nine Inception blocks, or the "first" of each of the three stages. XLA takes a
            minute to compile all nine for a CPU.
        gating: whether to gate all separable convolutions (S3D-G).
        remat: whether to store only the inputs of the stem and of each block, and recompute them in
            the backward pass.

    Raises:
        ValueError: if ``width`` is not positive, or ``blocks`` is unknown.

    References:
        Xie et al., Rethinking Spatiotemporal Feature Learning: Speed-Accuracy Trade-offs in Video
        Classification, 2018. Without gating the layers match torchvision's ``s3d`` and
        CoCLR (Han et al., Self-supervised Co-training for Video Representation Learning, 2020).
        BatchNorm's epsilon is 1e-5 as in CoCLR. Torchvision and the authors use 1e-3, with a
        momentum of 0.999 for the running statistics.

    Differs from the released code: this network gates after each convolution over time, as the
    paper says. CoCLR's code gates all four branches of a block, and nothing in the stem.
    """
    if not width > 0:
        raise ValueError(f"net.width must be > 0, got {width}")
    require_choice(BLOCKS, blocks=blocks)

    def scale(channels: Sequence[int]) -> tuple[Any, ...]:
        return tuple(max(1, round(c * width)) for c in channels)

    stages = tuple(tuple(map(scale, stage[: BLOCKS[blocks]])) for stage in STAGES)
    return S3D(scale(STEM), stages, gating, remat)


def max_pool(
    x: Array, window: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> Array:
    """Max-pool a video over time and space. As in PyTorch, padding is never the maximum.

    Args:
        x: [n, t, h, w, c].
        window: frames, rows and columns of the window.
        stride: stride along each of the three axes.
        padding: padding at both ends of each axis, less than ``window``.

    Returns:
        [n, t', h', w', c]. An axis of length l becomes (l + 2 padding - window) // stride + 1.
    """
    # The maximum is taken over shifted arrays, one axis after the other, and XLA fuses the shifts
    # into one loop. The gradient of XLA's window reduction would be a slow scatter. Equal values
    # share the gradient.
    for axis, (size, step, pad) in enumerate(zip(window, stride, padding, strict=True), start=1):
        if size == 1 and step == 1:
            continue
        pads = [(0, 0, 0)] * x.ndim
        pads[axis] = (pad, pad, 0)
        padded = lax.pad(x, jnp.array(-jnp.inf, x.dtype), pads)
        last = padded.shape[axis] - size  # start of the last pooling window
        shifted = (lax.slice_in_dim(padded, i, i + last + 1, step, axis=axis) for i in range(size))
        x = reduce(jnp.maximum, shifted)
    return x


def _conv_norm_relu(
    x: Array,
    width: int,
    window: tuple[int, int],
    stride: tuple[int, int] = (1, 1),
    *,
    train: bool,
    axis_name: str | None,
) -> Array:
    """Convolve a video over the two axes before the channels, then apply BatchNorm and ReLU."""
    # The padding is explicit, as in PyTorch. "SAME" would pad a strided convolution on one side
    # only.
    padding = [(side // 2, side // 2) for side in window]
    conv = nn.Conv(width, window, stride, padding, use_bias=False, kernel_init=KERNEL_INIT)
    return nn.relu(batch_norm(conv(x), train=train, axis_name=axis_name))
