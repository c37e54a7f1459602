"""Recipes: `(**hyper) -> (key, image) -> view`, named by `augment.name` in a config.

The image is [h, w, c], float in [0, 1]; the view is [size, size, c], in the same range. Every
recipe has a ``size``: evaluation resizes images to it.
"""

from collections.abc import Callable

import jax
from jax import Array

from jaxssl.augment import image as ops

Recipe = Callable[[Array, Array], Array]


def digits(
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
        crop_key, affine_key, jitter_key, noise_key = jax.random.split(key, 4)
        box = ops.random_crop_box(crop_key, image.shape, tuple(crop_scale))
        image = ops.crop_resize(image, box, size)
        image = ops.random_affine(
            affine_key, image, degrees=degrees, shear=shear, zoom=zoom, shift=shift
        )
        image = ops.random_brightness_contrast(jitter_key, image, jitter)
        return ops.random_noise(noise_key, image, noise)

    return view


def crop_flip(
    *, size: int = 32, crop_scale: tuple[float, float] = (0.2, 1.0), jitter: float = 0.4
) -> Recipe:
    """For photographs: random resized crop, flip, brightness and contrast.

    Args:
        size: pixels a side of a view.
        crop_scale: share of the area that the crop keeps.
        jitter: strength of brightness and contrast.
    """

    def view(key: Array, image: Array) -> Array:
        crop_key, flip_key, jitter_key = jax.random.split(key, 3)
        box = ops.random_crop_box(crop_key, image.shape, tuple(crop_scale))
        image = ops.random_flip(flip_key, ops.crop_resize(image, box, size))
        return ops.random_brightness_contrast(jitter_key, image, jitter)

    return view
