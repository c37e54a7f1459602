"""Operations on one video [t, h, w, c] in [0, 1]: frame windows, crops, flips, reversal.

All frames of a video share one draw, so that motion in the view comes from motion in the video.
Three channels are RGB, one is grey, and two are optical flow: displacements along x and y, where
0.5 means no motion. Flips and reversal change the direction of motion, and hence the sign of flow.
As in `image`, a random operation takes uniform numbers ``u`` in [0, 1).
"""

from collections.abc import Callable

import jax
from jax import Array
from jax import numpy as jnp
from jax.typing import ArrayLike

from jaxssl.augment import image as image_ops

GREY, FLOW, RGB = 1, 2, 3  # numbers of channels of grey video, optical flow and RGB video
CROP = 7 / 8  # side of each of the ten crops divided by the short side, usually 224 / 256


def per_frame(operation: Callable[[Array], Array], video: Array) -> Array:
    """Apply an operation on images [h, w, c] to every frame of a video."""
    return jax.vmap(operation)(video)


def span(frames: int, stride: int) -> int:
    """Return the number of frames from the first to the last of ``frames``, ``stride`` apart."""
    return (frames - 1) * stride + 1


def window(video: Array, start: ArrayLike, frames: int, *, stride: int = 1) -> Array:
    """Select ``frames`` frames of a video, every ``stride``-th one from ``start`` on.

    Args:
        video: [t, h, w, c].
        start: integer in [0, t - (frames - 1) stride - 1].
        frames: number of frames, >= 1, static.
        stride: distance between frames, >= 1, static.

    Returns:
        [frames, h, w, c].

    Raises:
        ValueError: if the video is too short.
    """
    _num_starts(video, frames, stride)  # raises an error if the video is too short
    return jax.lax.dynamic_slice_in_dim(video, start, span(frames, stride))[::stride]


def random_window(u: Array, video: Array, frames: int, *, stride: int = 1) -> Array:
    """Select a window of frames from a random start. ``u`` [] is uniform in [0, 1)."""
    start = image_ops.choose(u, _num_starts(video, frames, stride))
    return window(video, start, frames, stride=stride)


def centre_window(video: Array, frames: int, *, stride: int = 1) -> Array:
    """Select the window of frames in the middle of a video, rounded towards the start."""
    start = (_num_starts(video, frames, stride) - 1) // 2
    return window(video, start, frames, stride=stride)


def reverse(video: Array, condition: ArrayLike) -> Array:
    """Reverse a video in time where ``condition`` is True, and negate optical flow then."""
    backwards = video[::-1]
    return jnp.where(condition, 1 - backwards if _is_flow(video) else backwards, video)


def random_reverse(u: Array, video: Array, probability: float) -> Array:
    """Reverse a video in time with ``probability``. ``u`` [] is uniform in [0, 1)."""
    return reverse(video, u < probability)


def crop_resize(video: Array, box: Array, size: int) -> Array:
    """Crop all frames of a video to one box [4] and resize them to [t, size, size, c]."""
    return per_frame(lambda frame: image_ops.crop_resize(frame, box, size), video)


def flip(video: Array, condition: ArrayLike) -> Array:
    """Mirror a video horizontally where ``condition`` is True. Flow along x changes its sign."""
    mirrored = per_frame(lambda frame: image_ops.flip(frame, condition), video)
    if not _is_flow(video):
        return mirrored
    x, y = mirrored[..., :1], mirrored[..., 1:]
    return jnp.concatenate([jnp.where(condition, 1 - x, x), y], axis=3)


def random_flip(u: Array, video: Array, probability: float = 0.5) -> Array:
    """Mirror a video horizontally with ``probability``. ``u`` [] is uniform in [0, 1)."""
    return flip(video, u < probability)


def ten_crops(video: Array, size: int) -> Array:
    """Return ten crops of a video: at the four corners and the centre, each also mirrored.

    Each crop is a square of 7/8 of the short side, like 224 of 256 pixels. This equals resizing the
    short side to 8/7 ``size`` and cropping, without rounding to whole pixels.

    Args:
        video: [t, h, w, c].
        size: side of a crop in pixels, after resizing.

    Returns:
        [10, t, size, size, c]: top left, top right, bottom left, bottom right, centre, then their
        mirror images in the same order.

    References:
        Krizhevsky et al., ImageNet Classification with Deep Convolutional Neural Networks, 2012.
    """
    _, h, w, _ = video.shape
    side = CROP * min(h, w)
    right, bottom = w - side, h - side
    corners = [(0, 0), (right, 0), (0, bottom), (right, bottom), (right / 2, bottom / 2)]
    boxes = jnp.array([(x, y, x + side, y + side) for x, y in corners], jnp.float32)
    crops = jax.vmap(lambda box: crop_resize(video, box, size))(boxes)
    return jnp.concatenate([crops, jax.vmap(lambda crop: flip(crop, True))(crops)])


def _is_flow(video: Array) -> bool:
    return video.shape[3] == FLOW


def _num_starts(video: Array, frames: int, stride: int) -> int:
    """Return the number of frames at which a window can start in a video."""
    needed = span(frames, stride)
    if len(video) < needed:
        raise ValueError(
            f"video must have at least {needed} frames for augment.frames={frames} and "
            f"augment.stride={stride}, got {len(video)}"
        )
    return len(video) - needed + 1
