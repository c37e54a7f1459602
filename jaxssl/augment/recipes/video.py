"""CoCLR's views of video clips."""

import jax
from jax import Array
from jax import numpy as jnp

from jaxssl.augment import colour
from jaxssl.augment import video as clips
from jaxssl.augment.recipes._common import Recipe, check_probabilities

EXAMPLES = "video"  # what the views are of, if not of images alone


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
) -> Recipe:
    """CoCLR's: a window of frames, then SimCLR's operations, each with one draw for all frames.

    The recipe is `(key, clip [t, h, w, c]) -> view [frames, size, size, c]`. Flow has no colours:
    it gets neither jitter, grayscale nor blur. Of grey clips only brightness and contrast jitter.

    Args:
        size: pixels a side of a view.
        frames: of a view; they follow one another in the clip, from a uniform place on.
        stride: frames from one to the next; 2 keeps every other one. Flow is not added up.
        crop_scale: smallest and largest share of the area that the crop keeps; (1, 1) keeps all
            of each frame, of any shape.
        crop_ratio: smallest and largest width / height of the crop.
        flip: probability of mirroring left and right.
        reverse: probability of playing the window backwards.
        jitter: probability of the four changes of colour, in random order.
        brightness: strength, the range of the factor about 1.
        contrast: likewise; about the mean of each frame.
        saturation: likewise.
        hue: strength, the range of the shift, a share of the circle.
        grayscale: probability.
        blur: probability of a Gaussian blur.
        blur_kernel: its taps along a side, odd; 0 is about a tenth of ``size``, at least 3.
        blur_sigma: range of its standard deviation, in pixels.

    Raises:
        ValueError: on a probability outside [0, 1], or fewer than one frame or step; when called,
            on a clip that is too short or has more than three channels.

    References:
        Han et al., Self-supervised Co-training for Video Representation Learning, 2020; the
        strengths are those of its released ``main_nce.py``, which are SimCLR's for small images.

    Differs from the released code: that leaves the colours of more than half of the views alone;
    its grayscale repeats one random channel; it draws the aspect ratio uniformly and resizes by a
    bicubic filter; it treats flow as RGB and keeps the sign of mirrored flow.
    """
    check_probabilities(flip=flip, reverse=reverse, jitter=jitter, grayscale=grayscale, blur=blur)
    if min(frames, stride) < 1:
        raise ValueError(f"frames is {frames}, stride {stride}; expected at least 1")
    kernel = blur_kernel or max(3, size // 20 * 2 + 1)

    def coloured(u: Array, frame: Array) -> Array:
        channels = frame.shape[2]
        colourful = channels == clips.RGB
        image = jnp.moveaxis(frame, 2, 0)
        if jitter:
            image = colour.random_jitter(
                u[:6],
                image,
                brightness=brightness,
                contrast=contrast,
                saturation=saturation if colourful else 0,
                hue=hue if colourful else 0,
                probability=jitter,
            )
        if grayscale and colourful:
            image = colour.random_grayscale(u[6], image, grayscale)
        if blur:
            image = colour.random_blur(u[7:9], image, kernel, tuple(blur_sigma), blur)
        return jnp.moveaxis(image, 0, 2)

    def view(key: Array, clip: Array) -> Array:
        channels = clip.shape[3]
        if channels not in (clips.GREY, clips.FLOW, clips.RGB):
            raise ValueError(f"a clip has 1, 2 or 3 channels, not {channels}")
        u = jax.random.uniform(key, (16,))
        clip = clips.random_window(u[0], clip, frames, stride=stride)
        # What never happens is not compiled.
        if reverse:
            clip = clips.random_reverse(u[1], clip, reverse)
        clip = clips.random_crop(u[2:6], clip, size, tuple(crop_scale), tuple(crop_ratio))
        if flip:
            clip = clips.random_flip(u[6], clip, flip)
        if channels == clips.FLOW:
            return clip
        return clips.per_frame(lambda frame: coloured(u[7:], frame), clip)

    return view
