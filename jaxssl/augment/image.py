"""Geometry of one image [h, w, c], float in [0, 1]; `jax.vmap` makes batches of it.

A random operation turns uniform numbers ``u`` in [0, 1) into parameters and calls the deterministic
operation of the same name. It takes numbers instead of a key so that a recipe draws once: the
random generator is what takes longest to compile.
"""

import jax
from jax import Array
from jax import numpy as jnp


def crop_resize(image: Array, box: Array, size: int) -> Array:
    """The part of the image inside ``box``, resized to ``size`` by an antialiased triangle filter.

    Equal to Pillow's ``image.resize((size, size), BILINEAR, box=box)`` up to its rounding.

    Args:
        image: [h, w, c].
        box: [4] left, top, right, bottom in pixels, inside the image; fractions are allowed.
        size: pixels a side, static.

    Returns:
        [size, size, c].
    """
    left, top, right, bottom = box
    rows = _triangle_weights(top, bottom, image.shape[0], size)
    columns = _triangle_weights(left, right, image.shape[1], size)
    view = jnp.einsum("yh,hwc,xw->yxc", rows, image, columns, precision=jax.lax.Precision.HIGHEST)
    return jnp.clip(view, 0, 1)  # the weights' sum is rounded


def resize(image: Array, size: int) -> Array:
    """The whole image [h, w, c] as [size, size, c]; of that size already, it stays as it is."""
    h, w = image.shape[:2]
    if (h, w) == (size, size):
        return image
    return crop_resize(image, jnp.array([0, 0, w, h], jnp.float32), size)


def random_crop_box(
    u: Array,
    shape: tuple[int, ...],
    scale: tuple[float, float],
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> Array:
    """The box of Inception's random resized crop: a random area, aspect ratio and place.

    Args:
        u: [4] uniform in [0, 1): area, aspect ratio, left, top.
        shape: of the image, [h, w, ...].
        scale: smallest and largest share of the area, in (0, 1].
        ratio: smallest and largest width / height, drawn log-uniformly.

    Returns:
        [4] left, top, right, bottom. A side that would leave the image is cut to its length.

    Raises:
        ValueError: on a range that is empty or out of bounds.
    """
    if not 0 < scale[0] <= scale[1] <= 1:
        raise ValueError(f"crop scale is {scale}; expected 0 < smallest <= largest <= 1")
    if not 0 < ratio[0] <= ratio[1]:
        raise ValueError(f"crop ratio is {ratio}; expected 0 < smallest <= largest")
    h, w = shape[:2]
    area = h * w * between(u[0], *scale)
    log_ratio = jnp.log(jnp.asarray(ratio, jnp.float32))
    aspect = jnp.exp(between(u[1], log_ratio[0], log_ratio[1]))
    width = jnp.minimum(jnp.sqrt(area * aspect), w)
    height = jnp.minimum(jnp.sqrt(area / aspect), h)
    left, top = u[2] * (w - width), u[3] * (h - height)
    return jnp.stack([left, top, left + width, top + height])


def pad_crop(image: Array, corner: Array, pad: int) -> Array:
    """Pad each side by reflection, then cut out the image's size again.

    Args:
        image: [h, w, c].
        corner: [2] x and y of the cut in the padded image, integers in [0, 2 pad].
        pad: pixels on each side, less than the image's sides.

    Returns:
        [h, w, c].

    Raises:
        ValueError: if ``pad`` is too large to reflect.
    """
    h, w = image.shape[:2]
    if not 0 <= pad < min(h, w):
        raise ValueError(f"pad is {pad}; expected at least 0 and less than the sides, {h} x {w}")
    rows = _reflect(jnp.arange(h) + corner[1] - pad, h)
    columns = _reflect(jnp.arange(w) + corner[0] - pad, w)
    return _take(image, rows[:, None], columns[None, :])


def random_pad_crop(u: Array, image: Array, pad: int) -> Array:
    """`pad_crop` with a uniform corner.

    Args:
        u: [2] uniform in [0, 1): x, y.
        image: [h, w, c].
        pad: pixels on each side.
    """
    return pad_crop(image, choose(u, 2 * pad + 1), pad)


def flip(image: Array, yes: Array) -> Array:
    """Mirror left and right if ``yes``."""
    return jnp.where(yes, image[:, ::-1], image)


def random_flip(u: Array, image: Array, probability: float = 0.5) -> Array:
    """Mirror left and right with ``probability``; ``u`` [] is uniform in [0, 1)."""
    return flip(image, u < probability)


def affine(image: Array, angle: Array, shear: Array, zoom: Array, shift: Array) -> Array:
    """Shear, rotate, zoom, then shift about the image's centre; bilinear, edges repeated.

    Args:
        image: [h, w, c].
        angle: radians; positive turns clockwise as the image is shown.
        shear: horizontal shear, x += shear * y.
        zoom: > 1 enlarges.
        shift: [2] x and y, in pixels.

    Returns:
        [h, w, c].
    """
    h, w = image.shape[:2]
    cos, sin = jnp.cos(angle) / zoom, jnp.sin(angle) / zoom
    # From each pixel of the result back to the source: shift, rotate and zoom, shear, undone.
    x, y = jnp.meshgrid(
        _positions(w) - (w - 1) / 2 - shift[0], _positions(h) - (h - 1) / 2 - shift[1]
    )
    source_y = cos * y - sin * x
    source_x = cos * x + sin * y - shear * source_y
    return _bilinear(image, source_y + (h - 1) / 2, source_x + (w - 1) / 2)


def random_affine(
    u: Array, image: Array, *, degrees: float, shear: float, zoom: float, shift: float
) -> Array:
    """A small affine map; each parameter is uniform within plus and minus its range.

    Args:
        u: [5] uniform in [0, 1): angle, shear, zoom, shift along x and y.
        image: [h, w, c].
        degrees: range of the rotation.
        shear: range of the shear.
        zoom: the zoom lies in [1 - zoom, 1 + zoom].
        shift: range of the shift along each side, as a share of it.
    """
    sides = jnp.array([image.shape[1], image.shape[0]], jnp.float32)
    s = between(u, -1, 1)
    return affine(
        image, jnp.deg2rad(degrees) * s[0], shear * s[1], 1 + zoom * s[2], shift * sides * s[3:]
    )


def random_noise(u: Array, image: Array, stddev: float) -> Array:
    """Add Gaussian noise of ``stddev``, clipped to [0, 1]; ``u`` [h, w, c] is in [0, 1)."""
    # Halfway between 0 and the next number drawn, where the inverse is finite.
    normal = jnp.sqrt(2.0) * jax.scipy.special.erfinv(2 * u - 1 + 2.0**-23)
    return jnp.clip(image + stddev * normal, 0, 1)


def erase(image: Array, box: Array, value: float = 0.5) -> Array:
    """Set the pixels whose centre lies in ``box`` to ``value``.

    Args:
        image: [h, w, c].
        box: [4] left, top, right, bottom in pixels.
        value: of all channels, in [0, 1].
    """
    x, y = _positions(image.shape[1]) + 0.5, _positions(image.shape[0]) + 0.5
    left, top, right, bottom = box
    inside = ((y >= top) & (y < bottom))[:, None] & ((x >= left) & (x < right))[None, :]
    return jnp.where(inside[:, :, None], value, image)


def random_erase(
    u: Array,
    image: Array,
    probability: float,
    *,
    scale: tuple[float, float] = (0.02, 0.33),
    ratio: tuple[float, float] = (0.3, 3.3),
    value: float = 0.5,
) -> Array:
    """Erase a random box with ``probability``.

    A side of the box that would leave the image is cut; the paper draws again.

    Args:
        u: [5] uniform in [0, 1): whether, then those of `random_crop_box`.
        image: [h, w, c].
        probability: of erasing anything.
        scale: smallest and largest share of the area.
        ratio: smallest and largest width / height.
        value: put in; 0.5 becomes 0 in the network's input.

    References:
        Zhong et al., Random Erasing Data Augmentation, 2020; the ranges are torchvision's.
    """
    box = random_crop_box(u[1:], image.shape, scale, ratio)
    return jnp.where(u[0] < probability, erase(image, box, value), image)


def between(u: Array, low: float | Array, high: float | Array) -> Array:
    """Uniform in [low, high) from ``u`` in [0, 1)."""
    return low + u * (high - low)


def choose(u: Array, n: int) -> Array:
    """A uniform integer in [0, n) from ``u`` in [0, 1)."""
    return jnp.floor(u * n).astype(jnp.int32)


def _positions(n: int) -> Array:
    return jnp.arange(n, dtype=jnp.float32)


def _reflect(index: Array, n: int) -> Array:
    """An index up to n - 1 outside [0, n), mirrored at the first and the last element."""
    return (n - 1) - jnp.abs((n - 1) - jnp.abs(index))


def _take(image: Array, rows: Array, columns: Array) -> Array:
    """The pixels at integer places inside the image; a flat index gathers fastest."""
    h, w, c = image.shape
    flat = jnp.reshape(image, (h * w, c))
    return flat.at[rows * w + columns].get(mode="promise_in_bounds")


def _bilinear(image: Array, y: Array, x: Array) -> Array:
    """[h, w, c] values at fractional places [h, w]; the edges reach outwards."""
    h, w = image.shape[:2]
    y, x = jnp.clip(y, 0, h - 1), jnp.clip(x, 0, w - 1)
    top, left = jnp.floor(y), jnp.floor(x)
    down, right = (y - top)[..., None], (x - left)[..., None]
    rows, columns = top.astype(jnp.int32), left.astype(jnp.int32)
    below, beside = jnp.minimum(rows + 1, h - 1), jnp.minimum(columns + 1, w - 1)
    upper = _take(image, rows, columns) * (1 - right) + _take(image, rows, beside) * right
    lower = _take(image, below, columns) * (1 - right) + _take(image, below, beside) * right
    return upper * (1 - down) + lower * down


def _triangle_weights(low: Array, high: Array, length: int, size: int) -> Array:
    """[size, length] weights of the input pixels in each output pixel; rows sum to 1."""
    step = (high - low) / size
    support = jnp.maximum(step, 1)
    centre = low + (_positions(size) + 0.5) * step
    distance = jnp.abs(_positions(length)[None, :] + 0.5 - centre[:, None])
    weights = jnp.maximum(0, 1 - distance / support)
    return weights / jnp.sum(weights, axis=1, keepdims=True)
