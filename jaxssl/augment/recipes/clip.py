"""CLIP's augmentation of images that have captions."""

import jax
from jax import Array
from jax import numpy as jnp

from jaxssl.augment.image import CROP_NUMBERS, random_resized_crop
from jaxssl.augment.recipes._common import Recipe

EXAMPLES = "image_text"


def recipe(
    *,
    size: int = 224,
    crop_scale: tuple[float, float] = (0.9, 1.0),
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> Recipe:
    """Build CLIP's augmentation: a random crop of nearly the whole image, resized.

    There are no flips and no changes of colour, because captions may mention both. One of the
    captions of an image is drawn for each view.

    Args:
        size: side of a view in pixels.
        crop_scale: smallest and largest area of the crop, as a fraction of the image.
        crop_ratio: smallest and largest width / height of the crop.

    References:
        Radford et al., Learning Transferable Visual Models From Natural Language Supervision, 2021,
        section 2.4. The range of areas is OpenCLIP's.
    """

    def view(key: Array, image: Array) -> Array:
        u = jax.random.uniform(key, (CROP_NUMBERS,), jnp.float32)
        return random_resized_crop(u, image, size, crop_scale, crop_ratio)

    return view
