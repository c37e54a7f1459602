"""Augmentation of handwritten digits."""

import jax
from jax import Array
from jax import numpy as jnp

from jaxssl.augment import colour
from jaxssl.augment import image as image_ops
from jaxssl.augment.image import CROP_NUMBERS
from jaxssl.augment.recipes._common import Recipe, require_fractions, require_nonnegative


def recipe(
    *,
    size: int = 16,
    crop_scale: tuple[float, float] = (0.6, 1.0),
    degrees: float = 15.0,
    shear: float = 0.2,
    zoom: float = 0.1,
    shift: float = 0.1,
    jitter: float = 0.4,
    noise: float = 0.05,
) -> Recipe:
    """Build the augmentation of digits: crop, small affine map, brightness, contrast, noise.

    Args:
        size: side of a view in pixels.
        crop_scale: smallest and largest area of the crop, as a fraction of the image.
        degrees: the rotation lies in [-degrees, degrees].
        shear: the shear lies in [-shear, shear].
        zoom: the zoom factor lies in [1 - zoom, 1 + zoom], zoom < 1.
        shift: largest shift along each axis, as a fraction of the side.
        jitter: factors of brightness and contrast lie in [1 - jitter, 1 + jitter].
        noise: standard deviation of the noise.

    Raises:
        ValueError: if a setting is out of range. The view raises one for crop_scale and zoom >= 1.
    """
    require_fractions(jitter=jitter)
    require_nonnegative(degrees=degrees, shear=shear, zoom=zoom, shift=shift, noise=noise)

    def view(key: Array, image: Array) -> Array:
        # u has 5 numbers for the affine map, 2 for brightness and contrast, then the noise.
        numbers = CROP_NUMBERS + 7 + size * size * image.shape[2]
        box, u = jnp.split(jax.random.uniform(key, (numbers,), jnp.float32), [CROP_NUMBERS])
        image = image_ops.random_resized_crop(box, image, size, crop_scale)
        image = image_ops.random_affine(
            u[:5], image, degrees=degrees, shear=shear, zoom=zoom, shift=shift
        )
        planes = colour.random_brightness_contrast(u[5:7], jnp.moveaxis(image, 2, 0), jitter)
        image = jnp.moveaxis(planes, 0, 2)
        return image_ops.random_noise(u[7:].reshape(image.shape), image, noise)

    return view
