"""CoCLR's augmentation of videos."""

from functools import partial

import jax
from jax import Array
from jax import numpy as jnp

from jaxssl.augment import image as image_ops
from jaxssl.augment import video as video_ops
from jaxssl.augment.image import CROP_NUMBERS
from jaxssl.augment.recipes import _common

EXAMPLES = "video"


def recipe(
    *,
    size: int = 128,
    frames: int = 32,
    stride: int = 1,
    crop_scale: tuple[float, float] = (0.2, 1.0),
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3),
    flip: float = 0.5,
    reverse: float = 0.0,
    jitter: float = 0.8,
    brightness: float = 0.4,
    contrast: float = 0.4,
    saturation: float = 0.4,
    hue: float = 0.1,
    grayscale: float = 0.2,
    blur: float = 0.5,
    blur_kernel: int = 0,
    blur_sigma: tuple[float, float] = (0.1, 2.0),
) -> _common.Recipe:
    """Build CoCLR's augmentation: a window of frames, then SimCLR's operations on all frames.

    The recipe maps (key, video [t, h, w, c]) to a view [frames, size, size, c]. Flow gets no colour
    jitter, grayscale and blur. The jitter of grey videos only changes brightness and contrast.

    Args:
        size: side of a view in pixels.
        frames: number of frames of a view, from a random start.
        stride: distance between frames (2: every other one). Flow of skipped frames is dropped.
        crop_scale: smallest and largest area of the crop, as a fraction of the frame; (1, 1)
            resizes the whole frames.
        crop_ratio: smallest and largest width / height of the crop.
        flip: probability of a horizontal flip.
        reverse: probability of reversing the order of frames.
        jitter: probability of colour jitter, the four operations below in random order.
        brightness: the factor lies in [1 - brightness, 1 + brightness].
        contrast: the factor lies in [1 - contrast, 1 + contrast], about the mean of each frame.
        saturation: the factor lies in [1 - saturation, 1 + saturation].
        hue: the shift lies in [-hue, hue], as a fraction of the colour circle.
        grayscale: probability of removing the colour.
        blur: probability of a Gaussian blur.
        blur_kernel: side of the blur kernel in pixels, odd; 0 is about 10 % of ``size``, >= 3.
        blur_sigma: smallest and largest standard deviation of the blur in pixels.

    Raises:
        ValueError: if a setting is out of range. The recipe itself raises one for a video that is
            too short, or has more than three channels.

    References:
        Han et al., Self-supervised Co-training for Video Representation Learning, 2020. The
        strengths match the released ``main_nce.py``: SimCLR's for small images.

    Differs from the released code, which draws both views of half of the videos from the same
    frames, leaves the colours of more than half of the views unchanged, repeats one random channel
    for grayscale, draws the aspect ratio uniformly, resizes with a bicubic filter, treats flow as
    RGB, and keeps the sign of mirrored flow.
    """
    _common.require_fractions(
        flip=flip, reverse=reverse, jitter=jitter, grayscale=grayscale, blur=blur
    )
    if min(frames, stride) < 1:
        raise ValueError(
            f"augment.frames and augment.stride must be >= 1, got {frames} and {stride}"
        )
    colours = {"jitter": jitter, "grayscale": grayscale, "blur": blur, "sigma": blur_sigma}
    colours["kernel"] = _common.blur_kernel_side(blur_kernel, size)
    strengths = dict(brightness=brightness, contrast=contrast, saturation=saturation, hue=hue)
    _common.require_colours(blur_kernel=blur_kernel, blur_sigma=blur_sigma, **strengths)

    def view(key: Array, video: Array) -> Array:
        channels = video.shape[3]
        if channels not in (video_ops.GREY, video_ops.FLOW, video_ops.RGB):
            raise ValueError(
                f"videos must have 1 (grey), 2 (flow) or 3 (RGB) channels, got {channels}"
            )
        numbers = jax.random.uniform(key, (CROP_NUMBERS + 12,), jnp.float32)
        box, u = jnp.split(numbers, [CROP_NUMBERS])
        video = video_ops.random_window(u[0], video, frames, stride=stride)
        # Operations with probability 0 are skipped here, so that XLA does not compile them.
        if reverse:
            video = video_ops.random_reverse(u[1], video, reverse)
        settings = {"size": size, "scale": crop_scale, "ratio": crop_ratio}
        crop = partial(image_ops.random_resized_crop, box, **settings)
        video = video_ops.per_frame(crop, video)
        if flip:
            video = video_ops.random_flip(u[2], video, flip)
        if channels == video_ops.FLOW:
            return video
        change = partial(_common.random_colours, u[3:], strengths=strengths, **colours)
        return video_ops.per_frame(change, video)

    return view
