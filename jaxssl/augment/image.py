"""Operations on one image [h, w, c], float in [0, 1]; `jax.vmap` makes batches of them.

A random operation draws its parameters and calls the deterministic one of the same name.
"""

import jax
from jax import Array
from jax import numpy as jnp
from jax.scipy.ndimage import map_coordinates


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
    return jnp.einsum("yh,hwc,xw->yxc", rows, image, columns, precision=jax.lax.Precision.HIGHEST)


def random_crop_box(
    key: Array,
    shape: tuple[int, ...],
    scale: tuple[float, float],
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> Array:
    """The box of Inception's random resized crop: a random area, aspect ratio and place.

    Args:
        key: random key.
        shape: of the image, [h, w, ...].
        scale: smallest and largest share of the area, in (0, 1].
        ratio: smallest and largest width / height, drawn log-uniformly.

    Returns:
        [4] left, top, right, bottom. A side that would leave the image is cut to its length.
    """
    h, w = shape[:2]
    area_key, ratio_key, x_key, y_key = jax.random.split(key, 4)
    area = h * w * jax.random.uniform(area_key, minval=scale[0], maxval=scale[1])
    log_ratio = jnp.log(jnp.asarray(ratio, jnp.float32))
    aspect = jnp.exp(jax.random.uniform(ratio_key, minval=log_ratio[0], maxval=log_ratio[1]))
    width = jnp.minimum(jnp.sqrt(area * aspect), w)
    height = jnp.minimum(jnp.sqrt(area / aspect), h)
    left = jax.random.uniform(x_key) * (w - width)
    top = jax.random.uniform(y_key) * (h - height)
    return jnp.stack([left, top, left + width, top + height])


def flip(image: Array, yes: Array) -> Array:
    """Mirror left and right if ``yes``."""
    return jnp.where(yes, image[:, ::-1], image)


def random_flip(key: Array, image: Array, probability: float = 0.5) -> Array:
    """Mirror left and right with ``probability``."""
    return flip(image, jax.random.bernoulli(key, probability))


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
    at = [source_y + (h - 1) / 2, source_x + (w - 1) / 2]
    channels = [
        map_coordinates(image[..., c], at, order=1, mode="nearest") for c in range(image.shape[2])
    ]
    return jnp.stack(channels, axis=-1)


def random_affine(
    key: Array, image: Array, *, degrees: float, shear: float, zoom: float, shift: float
) -> Array:
    """A small affine map; each parameter is uniform within plus and minus its range.

    Args:
        key: random key.
        image: [h, w, c].
        degrees: range of the rotation.
        shear: range of the shear.
        zoom: the zoom lies in [1 - zoom, 1 + zoom].
        shift: range of the shift along each side, as a share of it.
    """
    angle_key, shear_key, zoom_key, shift_key = jax.random.split(key, 4)
    sides = jnp.array([image.shape[1], image.shape[0]], jnp.float32)
    return affine(
        image,
        jnp.deg2rad(degrees) * _symmetric(angle_key),
        shear * _symmetric(shear_key),
        1 + zoom * _symmetric(zoom_key),
        shift * sides * _symmetric(shift_key, (2,)),
    )


def brightness(image: Array, factor: Array) -> Array:
    """Multiply by ``factor``, clipped to [0, 1]."""
    return jnp.clip(image * factor, 0, 1)


def contrast(image: Array, factor: Array) -> Array:
    """Multiply the distance from the image's mean by ``factor``, clipped to [0, 1]."""
    mean = jnp.mean(image)
    return jnp.clip(mean + (image - mean) * factor, 0, 1)


def random_brightness_contrast(key: Array, image: Array, strength: float) -> Array:
    """`brightness`, then `contrast`, each with a factor in [1 - strength, 1 + strength]."""
    brightness_key, contrast_key = jax.random.split(key)
    image = brightness(image, 1 + strength * _symmetric(brightness_key))
    return contrast(image, 1 + strength * _symmetric(contrast_key))


def random_noise(key: Array, image: Array, stddev: float) -> Array:
    """Add Gaussian noise of ``stddev``, clipped to [0, 1]."""
    return jnp.clip(image + stddev * jax.random.normal(key, image.shape), 0, 1)


def _positions(n: int) -> Array:
    return jnp.arange(n, dtype=jnp.float32)


def _symmetric(key: Array, shape: tuple[int, ...] = ()) -> Array:
    return jax.random.uniform(key, shape, minval=-1, maxval=1)


def _triangle_weights(low: Array, high: Array, length: int, size: int) -> Array:
    """[size, length] weights of the input pixels in each output pixel; rows sum to 1."""
    step = (high - low) / size
    support = jnp.maximum(step, 1)
    centre = low + (_positions(size) + 0.5) * step
    distance = jnp.abs(_positions(length)[None, :] + 0.5 - centre[:, None])
    weights = jnp.maximum(0, 1 - distance / support)
    return weights / jnp.sum(weights, axis=1, keepdims=True)
