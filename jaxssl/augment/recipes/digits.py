"""Views of handwritten digits."""

import jax
from jax import Array
from jax import numpy as jnp

from jaxssl.augment import colour
from jaxssl.augment import image as ops
from jaxssl.augment.recipes._common import Recipe, random_crop


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
    """For handwritten digits: crop, small affine map, brightness and contrast, noise; no flip.

    Args:
        size: pixels a side of a view.
        crop_scale: share of the area that the random resized crop keeps.
        degrees: range of the rotation, plus and minus.
        shear: range of the shear.
        zoom: range of the zoom about 1.
        shift: range of the shift, as a share of the side.
        jitter: strength of brightness and contrast.
        noise: standard deviation of the noise.
    """

    def view(key: Array, image: Array) -> Array:
        shape = (size, size, image.shape[2])
        u = jax.random.uniform(key, (11 + size * size * image.shape[2],))
        image = random_crop(u[:4], image, size, crop_scale)
        image = ops.random_affine(
            u[4:9], image, degrees=degrees, shear=shear, zoom=zoom, shift=shift
        )
        planes = colour.random_brightness_contrast(u[9:11], jnp.moveaxis(image, 2, 0), jitter)
        return ops.random_noise(u[11:].reshape(shape), jnp.moveaxis(planes, 0, 2), noise)

    return view
