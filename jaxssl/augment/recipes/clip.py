"""CLIP's views of images with captions."""

import jax
from jax import Array

from jaxssl.augment.recipes._common import Recipe, random_crop

EXAMPLES = "image_text"  # what the views are of, if not of images alone


def recipe(
    *,
    size: int = 224,
    crop_scale: tuple[float, float] = (0.9, 1.0),
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> Recipe:
    """CLIP's, of images with captions: a random resized crop that leaves nearly all of the image.

    Nothing is mirrored or changed in colour: a caption may speak of it. One of the captions is
    drawn for each view.

    Args:
        size: pixels a side of a view.
        crop_scale: smallest and largest share of the area that the crop keeps.
        crop_ratio: smallest and largest width / height of the crop.

    References:
        Radford et al., Learning Transferable Visual Models From Natural Language Supervision, 2021,
        2.4; the range of areas is OpenCLIP's.
    """

    def view(key: Array, image: Array) -> Array:
        return random_crop(jax.random.uniform(key, (4,)), image, size, crop_scale, crop_ratio)

    return view
