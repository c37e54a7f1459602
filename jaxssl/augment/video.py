"""Clips [t, h, w, c], float in [0, 1]: windows of frames, and what happens to all frames alike.

One draw serves all frames of a clip, so that what moves in the view is what moved in the clip.
Three channels are RGB, one is grey, two are optical flow: the displacement along x and y, where 0.5
is none. A clip that is mirrored, or played backwards, moves the other way, and flow says so. As in
`image`, a random operation takes uniform numbers ``u`` in [0, 1).
"""

from collections.abc import Callable

import jax
from jax import Array
from jax import numpy as jnp

from jaxssl.augment import image as ops

GREY, FLOW, RGB = 1, 2, 3  # channels
KEPT = 7 / 8  # of the short side, in each of ten crops: the usual 224 of 256


def per_frame(operation: Callable[[Array], Array], clip: Array) -> Array:
    """An operation on images [h, w, c], done to every frame; what it closes over is shared."""
    return jax.vmap(operation)(clip)


def span(frames: int, stride: int) -> int:
    """How many frames of a clip a `window` reaches over."""
    return (frames - 1) * stride + 1


def window(clip: Array, start: Array | int, frames: int, *, stride: int = 1) -> Array:
    """Every ``stride``-th frame from ``start`` on, ``frames`` of them.

    Args:
        clip: [t, h, w, c].
        start: integer in [0, t - (frames - 1) stride - 1].
        frames: >= 1, static.
        stride: >= 1, static.

    Returns:
        [frames, h, w, c].

    Raises:
        ValueError: if the clip is too short.
    """
    reach = len(clip) - _starts(clip, frames, stride) + 1
    return jax.lax.dynamic_slice_in_dim(clip, start, reach)[::stride]


def random_window(u: Array, clip: Array, frames: int, *, stride: int = 1) -> Array:
    """`window` from a uniform start; ``u`` [] is uniform in [0, 1)."""
    start = ops.choose(u, _starts(clip, frames, stride))
    return window(clip, start, frames, stride=stride)


def centre_window(clip: Array, frames: int, *, stride: int = 1) -> Array:
    """The `window` in the middle; of an odd number left over, the larger part follows."""
    return window(clip, (_starts(clip, frames, stride) - 1) // 2, frames, stride=stride)


def reverse(clip: Array, yes: Array | bool) -> Array:
    """Play backwards if ``yes``; flow changes its sign."""
    backwards = clip[::-1]
    return jnp.where(yes, 1 - backwards if _is_flow(clip) else backwards, clip)


def random_reverse(u: Array, clip: Array, probability: float) -> Array:
    """`reverse` with ``probability``; ``u`` [] is uniform in [0, 1)."""
    return reverse(clip, u < probability)


def crop_resize(clip: Array, box: Array, size: int) -> Array:
    """`image.crop_resize` of all frames by one box [4]; [t, size, size, c]."""
    return per_frame(lambda frame: ops.crop_resize(frame, box, size), clip)


def random_crop(
    u: Array,
    clip: Array,
    size: int,
    scale: tuple[float, float],
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> Array:
    """`crop_resize` by a box of `image.random_crop_box`.

    Args:
        u: [4] uniform in [0, 1): area, aspect ratio, left, top.
        clip: [t, h, w, c].
        size: pixels a side of the result.
        scale: smallest and largest share of the area; (1, 1) keeps the whole frame.
        ratio: smallest and largest width / height.
    """
    if scale == (1, 1):
        return per_frame(lambda frame: ops.resize(frame, size), clip)
    return crop_resize(clip, ops.random_crop_box(u, clip.shape[1:], scale, ratio), size)


def flip(clip: Array, yes: Array | bool) -> Array:
    """Mirror left and right if ``yes``; flow along x changes its sign."""
    mirrored = per_frame(lambda frame: ops.flip(frame, jnp.asarray(yes)), clip)
    if not _is_flow(clip):
        return mirrored
    x, y = mirrored[..., :1], mirrored[..., 1:]
    return jnp.concatenate([jnp.where(yes, 1 - x, x), y], axis=3)


def random_flip(u: Array, clip: Array, probability: float = 0.5) -> Array:
    """`flip` with ``probability``; ``u`` [] is uniform in [0, 1)."""
    return flip(clip, u < probability)


def ten_crops(clip: Array, size: int) -> Array:
    """The corners and the centre of a clip, and their mirror images: the "10-crop" evaluation.

    Each is a square of 7/8 of the short side, what 224 pixels are of 256. That is the same as to
    resize the short side to 8/7 of ``size``, then to cut; nothing is rounded to whole pixels.

    Args:
        clip: [t, h, w, c].
        size: pixels a side of a crop.

    Returns:
        [10, t, size, size, c]: top left, top right, bottom left, bottom right, centre, and the five
        mirrored, in torchvision's order.

    References:
        Krizhevsky et al., ImageNet Classification with Deep Convolutional Neural Networks, 2012.
    """
    _, h, w, _ = clip.shape
    side = KEPT * min(h, w)
    right, bottom = w - side, h - side
    corners = [(0, 0), (right, 0), (0, bottom), (right, bottom), (right / 2, bottom / 2)]
    boxes = jnp.array([(x, y, x + side, y + side) for x, y in corners], jnp.float32)
    crops = jax.vmap(lambda box: crop_resize(clip, box, size))(boxes)
    return jnp.concatenate([crops, jax.vmap(lambda crop: flip(crop, True))(crops)])


def _is_flow(clip: Array) -> bool:
    return clip.shape[3] == FLOW


def _starts(clip: Array, frames: int, stride: int) -> int:
    """In how many places a window can start."""
    needed = span(frames, stride)
    if len(clip) < needed:
        raise ValueError(
            f"a clip of {len(clip)} frames is too short for {frames} of them, stride {stride}"
        )
    return len(clip) - needed + 1
