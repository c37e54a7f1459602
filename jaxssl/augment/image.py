"""Geometric operations on one image [h, w, c] with float values in [0, 1].

A random operation turns uniform numbers ``u`` in [0, 1) into parameters and calls the deterministic
operation of the same name. It takes numbers instead of a random key so that a recipe can draw all
of them in one call, because the random generator takes longer to compile than the operations.
"""

from collections.abc import Sequence

import jax
import numpy as np
from jax import Array
from jax import numpy as jnp
from jax.typing import ArrayLike

Range = Sequence[float]  # the smallest and the largest value
CROP_TRIES = 10  # boxes drawn for a random resized crop, as in torchvision
CROP_NUMBERS = 2 + 2 * CROP_TRIES  # uniform numbers of a random resized crop
# Ranges of the erased box, as in torchvision: fractions of the image's area, and width / height.
ERASED_AREA, ERASED_RATIO = (0.02, 0.33), (0.3, 3.3)


def crop_resize(image: Array, box: Array, size: int, interpolation: str = "bilinear") -> Array:
    """Crop an image to ``box`` and resize it to ``size`` x ``size`` with an antialiased filter.

    Equals Pillow's ``image.resize((size, size), BILINEAR, box=box)`` up to rounding. So does
    BICUBIC, but Pillow 13 resizes the rows of some tall images before their columns, and clips
    overshoots there.

    Args:
        image: [h, w, c].
        box: [4] left, top, right, bottom in pixels, inside the image. Fractions are allowed.
        size: side of the result in pixels, static.
        interpolation: "bilinear" or "bicubic".

    Returns:
        [size, size, c].
    """
    left, top, right, bottom = box
    rows = _filter_weights(top, bottom, image.shape[0], size, interpolation)
    columns = _filter_weights(left, right, image.shape[1], size, interpolation)
    if interpolation == "bicubic":  # Values overshoot. Pillow clips them after each axis.
        identity = jnp.eye(image.shape[0], dtype=image.dtype)
        image = jnp.clip(resample(identity, image, columns), 0, 1)
        columns = jnp.eye(size, dtype=image.dtype)
    # The filter weights sum to 1 only up to rounding, so values may leave [0, 1] slightly.
    return jnp.clip(resample(rows, image, columns), 0, 1)


def resample(rows: ArrayLike, image: Array, columns: ArrayLike) -> Array:
    """Resample an image [h, w, c] by row weights [y, h] and column weights [x, w]."""
    return jnp.einsum("yh,hwc,xw->yxc", rows, image, columns, precision=jax.lax.Precision.HIGHEST)


def resize(image: Array, size: int, interpolation: str = "bilinear") -> Array:
    """Resize an image [h, w, c] to [size, size, c]. An image of that size is unchanged."""
    h, w = image.shape[:2]
    if (h, w) == (size, size):
        return image
    return crop_resize(image, jnp.array([0, 0, w, h], jnp.float32), size, interpolation)


def centre_box(h: int, w: int, size: int, crop: float) -> tuple[float, float, float, float]:
    """Return the box (left, top, right, bottom) of the usual central crop of an image, in pixels.

    The short side is resized to ``size / crop`` and the central square of ``size`` pixels cut out,
    both in whole pixels, as torchvision and timm do.
    """
    short = int(size / crop + 1e-6)
    sides = [int(short * side / min(h, w)) for side in (w, h)]
    left, top = (round((side - size) / 2) for side in sides)
    x, y = w / sides[0], h / sides[1]
    return left * x, top * y, (left + size) * x, (top + size) * y


def random_crop_box(
    u: Array, shape: tuple[int, ...], scale: Range, ratio: Range = (3 / 4, 4 / 3)
) -> Array:
    """Draw the box of a random resized crop: area, aspect ratio and position.

    An area and an aspect ratio may give a box that is longer than the image. As in torchvision, the
    first of `CROP_TRIES` draws that fits is taken. If none fits, the box is the largest central one
    with an aspect ratio in range. Unlike torchvision's, sides are not rounded to whole pixels.

    Args:
        u: [CROP_NUMBERS] uniform in [0, 1): left, top, then area and aspect ratio of each try.
        shape: shape of the image, [h, w, ...].
        scale: smallest and largest area, as a fraction of the image, in (0, 1].
        ratio: smallest and largest width / height, drawn log-uniformly.

    Returns:
        [4] left, top, right, bottom.

    Raises:
        ValueError: if a range is empty or out of bounds.
    """
    if np.shape(scale) != (2,) or not 0 < scale[0] <= scale[1] <= 1:
        raise ValueError(
            f"crop_scale must be (smallest, largest) with 0 < smallest <= largest <= 1, got {scale}"
        )
    if np.shape(ratio) != (2,) or not 0 < ratio[0] <= ratio[1]:
        raise ValueError(
            f"crop_ratio must be (smallest, largest) with 0 < smallest <= largest, got {ratio}"
        )
    h, w = shape[:2]
    area = h * w * between(u[2::2], *scale)
    log_ratio = jnp.log(jnp.asarray(ratio, jnp.float32))
    aspect = jnp.exp(between(u[3::2], log_ratio[0], log_ratio[1]))
    widths, heights = jnp.sqrt(area * aspect), jnp.sqrt(area / aspect)
    fits = (widths <= w) & (heights <= h)
    first = jnp.argmax(fits)
    whole = min(w, h * ratio[1]), min(h, w / ratio[0])  # the largest box of an allowed ratio
    width = jnp.where(fits[first], widths[first], whole[0])
    height = jnp.where(fits[first], heights[first], whole[1])
    x, y = jnp.where(fits[first], u[:2], 0.5)
    left, top = x * (w - width), y * (h - height)
    return jnp.stack([left, top, left + width, top + height])


def random_resized_crop(
    u: Array, image: Array, size: int, scale: Range, ratio: Range = (3 / 4, 4 / 3)
) -> Array:
    """Crop an image at a random box and resize it. Scale (1, 1) resizes the whole image.

    Args:
        u: [CROP_NUMBERS] uniform in [0, 1), the numbers of `random_crop_box`.
        image: [h, w, c].
        size: side of the result in pixels, static.
        scale: smallest and largest area, as a fraction of the image, in (0, 1].
        ratio: smallest and largest width / height.
    """
    if np.array_equal(scale, (1, 1)):
        return resize(image, size)
    return crop_resize(image, random_crop_box(u, image.shape, scale, ratio), size)


def pad_crop(image: Array, corner: Array, pad: int) -> Array:
    """Pad an image by reflection, then crop it to its original size at ``corner``.

    Args:
        image: [h, w, c].
        corner: [2] x and y of the crop's upper left corner in the padded image, integers in
            [0, 2 pad].
        pad: pixels added on each side, less than the sides of the image.

    Returns:
        [h, w, c].

    Raises:
        ValueError: if ``pad`` is too large to reflect.
    """
    h, w = image.shape[:2]
    if not 0 <= pad < min(h, w):
        raise ValueError(f"pad must be >= 0 and less than the image sides {h} x {w}, got {pad}")
    rows = _reflect(jnp.arange(h) + corner[1] - pad, h)
    columns = _reflect(jnp.arange(w) + corner[0] - pad, w)
    return _take(image, rows[:, None], columns[None, :])


def random_pad_crop(u: Array, image: Array, pad: int) -> Array:
    """Pad an image by reflection, then crop it to its original size at a random corner.

    Args:
        u: [2] uniform in [0, 1): x, y of the corner.
        image: [h, w, c].
        pad: pixels added on each side.
    """
    return pad_crop(image, choose(u, 2 * pad + 1), pad)


def flip(image: Array, condition: ArrayLike) -> Array:
    """Mirror an image horizontally where ``condition`` is True."""
    return jnp.where(condition, image[:, ::-1], image)


def random_flip(u: Array, image: Array, probability: float = 0.5) -> Array:
    """Mirror an image horizontally with ``probability``. ``u`` [] is uniform in [0, 1)."""
    return flip(image, u < probability)


def affine(image: Array, angle: Array, shear: Array, zoom: Array, shift: Array) -> Array:
    """Shear, rotate, zoom and shift an image about its centre, with bilinear interpolation.

    Pixels outside the image take the value of the nearest edge.

    Args:
        image: [h, w, c].
        angle: rotation in radians, positive for clockwise.
        shear: horizontal shear, x += shear * y.
        zoom: zoom factor. A factor > 1 enlarges.
        shift: [2] shift along x and y in pixels.

    Returns:
        [h, w, c].
    """
    h, w = image.shape[:2]
    cos, sin = jnp.cos(angle) / zoom, jnp.sin(angle) / zoom
    # Each output pixel is mapped to its source position by the inverse operations in reverse order.
    x, y = jnp.meshgrid(
        _positions(w) - (w - 1) / 2 - shift[0], _positions(h) - (h - 1) / 2 - shift[1]
    )
    source_y = cos * y - sin * x
    source_x = cos * x + sin * y - shear * source_y
    return _bilinear(image, source_y + (h - 1) / 2, source_x + (w - 1) / 2)


def random_affine(
    u: Array, image: Array, *, degrees: float, shear: float, zoom: float, shift: float
) -> Array:
    """Apply an affine map with uniformly distributed parameters to an image.

    Args:
        u: [5] uniform in [0, 1): angle, shear, zoom, shift along x and y.
        image: [h, w, c].
        degrees: the rotation lies in [-degrees, degrees].
        shear: the shear lies in [-shear, shear].
        zoom: the zoom factor lies in [1 - zoom, 1 + zoom], zoom < 1.
        shift: largest shift along each axis, as a fraction of the side.

    Raises:
        ValueError: if ``zoom`` allows a factor of 0 or below.
    """
    if not 0 <= zoom < 1:
        raise ValueError(f"zoom must be in [0, 1), so that no factor is 0, got {zoom}")
    sides = jnp.array([image.shape[1], image.shape[0]], jnp.float32)
    s = between(u, -1, 1)
    return affine(
        image, jnp.deg2rad(degrees) * s[0], shear * s[1], 1 + zoom * s[2], shift * sides * s[3:]
    )


def random_noise(u: Array, image: Array, stddev: Array | float) -> Array:
    """Add Gaussian noise of ``stddev`` to an image and clip to [0, 1].

    ``u``, of the image's shape, is uniform in [0, 1).
    """
    return jnp.clip(image + stddev * to_normal(u), 0, 1)


def erase(image: Array, box: Array) -> Array:
    """Set the pixels whose centre lies in ``box`` to 0.5, which is 0 in views scaled to [-1, 1].

    In views that are scaled by a data set's mean and standard deviation, it is not the mean.

    Args:
        image: [h, w, c].
        box: [4] left, top, right, bottom in pixels.
    """
    x, y = _positions(image.shape[1]) + 0.5, _positions(image.shape[0]) + 0.5
    left, top, right, bottom = box
    inside = ((y >= top) & (y < bottom))[:, None] & ((x >= left) & (x < right))[None, :]
    return jnp.where(inside[:, :, None], 0.5, image)


def random_erase(u: Array, image: Array, probability: float) -> Array:
    """Erase a random box of an image with ``probability``.

    Args:
        u: [1 + CROP_NUMBERS] uniform in [0, 1): whether to erase, then the numbers of
            `random_crop_box`.
        image: [h, w, c].
        probability: probability of erasing a box, whose area and ratio of width to height lie in
            `ERASED_AREA` and `ERASED_RATIO`.

    References:
        Zhong et al., Random Erasing Data Augmentation, 2020.
    """
    box = random_crop_box(u[1:], image.shape, ERASED_AREA, ERASED_RATIO)
    return jnp.where(u[0] < probability, erase(image, box), image)


def between(u: Array, low: Array | float, high: Array | float) -> Array:
    """Map ``u``, uniform in [0, 1), to [low, high)."""
    return low + u * (high - low)


def choose(u: Array, n: int) -> Array:
    """Map ``u``, uniform in [0, 1), to a uniform integer in [0, n)."""
    return jnp.floor(u * n).astype(jnp.int32)


def to_normal(u: Array) -> Array:
    """Map ``u``, uniform in [0, 1), to a standard normal number."""
    # For u = 0 the inverse error function would be infinite. The generator's values are therefore
    # shifted by half their spacing.
    return jnp.sqrt(2.0) * jax.scipy.special.erfinv(2 * u - 1 + 2.0**-23)


def _positions(n: int) -> Array:
    return jnp.arange(n, dtype=jnp.float32)


def _reflect(index: Array, n: int) -> Array:
    """Reflect indices outside of [0, n) at the first and last element, up to n - 1 beyond them."""
    return (n - 1) - jnp.abs((n - 1) - jnp.abs(index))


def _take(image: Array, rows: Array, columns: Array) -> Array:
    """Return the pixels of an image at integer positions inside it."""
    h, w, c = image.shape  # XLA gathers fastest with one flat index.
    flat = jnp.reshape(image, (h * w, c))
    return flat.at[rows * w + columns].get(mode="promise_in_bounds")


def _bilinear(image: Array, y: Array, x: Array) -> Array:
    """Interpolate an image at fractional positions [h, w]. Edge pixels are repeated outside."""
    h, w = image.shape[:2]
    y, x = jnp.clip(y, 0, h - 1), jnp.clip(x, 0, w - 1)
    top, left = jnp.floor(y), jnp.floor(x)
    down, right = (y - top)[..., None], (x - left)[..., None]
    rows, columns = top.astype(jnp.int32), left.astype(jnp.int32)
    below, beside = jnp.minimum(rows + 1, h - 1), jnp.minimum(columns + 1, w - 1)
    upper = _take(image, rows, columns) * (1 - right) + _take(image, rows, beside) * right
    lower = _take(image, below, columns) * (1 - right) + _take(image, below, beside) * right
    return upper * (1 - down) + lower * down


def _filter_weights(low: Array, high: Array, length: int, size: int, interpolation: str) -> Array:
    """Return filter weights [size, length] from input pixels to output pixels. Rows sum to 1."""
    step = (high - low) / size
    support = jnp.maximum(step, 1)
    centre = low + (_positions(size) + 0.5) * step
    distance = jnp.abs(_positions(length)[None, :] + 0.5 - centre[:, None]) / support
    weights = INTERPOLATIONS[interpolation](distance)
    return weights / jnp.sum(weights, axis=1, keepdims=True)


def _cubic(x: Array) -> Array:
    """Return Keys' cubic kernel with a = -0.5 at distances x >= 0, as Pillow does."""
    near, far = (1.5 * x - 2.5) * x * x + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2
    return jnp.where(x < 1, near, jnp.where(x < 2, far, 0))


# Maps the interpolation to its kernel, a function of the distance in pixels.
INTERPOLATIONS = {"bilinear": lambda x: jnp.maximum(0, 1 - x), "bicubic": _cubic}
