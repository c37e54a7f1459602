"""SimCLR's augmentation: random resized crop, flip, colour jitter, grayscale, blur."""

import jax
from jax import Array
from jax import numpy as jnp

from jaxssl.augment import colour
from jaxssl.augment import image as image_ops
from jaxssl.augment.image import CROP_NUMBERS
from jaxssl.augment.recipes import _common


def recipe(
    *,
    size: int = 32,
    crop_scale: tuple[float, float] = (0.08, 1.0),
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3),
    flip: float = 0.5,
    jitter: float = 0.8,
    brightness: float = 0.4,
    contrast: float = 0.4,
    saturation: float = 0.4,
    hue: float = 0.1,
    grayscale: float = 0.2,
    blur: float = 0.0,
    blur_kernel: int = 0,
    blur_sigma: tuple[float, float] = (0.1, 2.0),
    solarize: float = 0.0,
    erasing: float = 0.0,
) -> _common.Recipe:
    """Build SimCLR's augmentation: random resized crop, flip, colour jitter, grayscale, blur.

    Solarisation and random erasing are optional, as is the blur.

    Args:
        size: side of a view in pixels.
        crop_scale: smallest and largest area of the crop, as a fraction of the image; (1, 1)
            resizes the whole image.
        crop_ratio: smallest and largest width / height of the crop.
        flip: probability of a horizontal flip.
        jitter: probability of colour jitter, the four operations below in random order.
        brightness: the factor lies in [1 - brightness, 1 + brightness].
        contrast: the factor lies in [1 - contrast, 1 + contrast].
        saturation: the factor lies in [1 - saturation, 1 + saturation].
        hue: the shift lies in [-hue, hue], as a fraction of the colour circle.
        grayscale: probability of removing the colour.
        blur: probability of a Gaussian blur.
        blur_kernel: side of the blur kernel in pixels, odd; 0 is about 10 % of ``size``, >= 3.
        blur_sigma: smallest and largest standard deviation of the blur in pixels.
        solarize: probability of inverting values >= 0.5.
        erasing: probability of erasing a random box.

    Raises:
        ValueError: if a setting is out of range. The view raises one for the ranges of the crop.

    References:
        Chen et al., A Simple Framework for Contrastive Learning of Visual Representations, 2020,
        appendix A; solarisation: Grill et al., Bootstrap Your Own Latent, 2020.
    """
    _common.require_fractions(flip=flip, jitter=jitter, grayscale=grayscale)
    _common.require_fractions(blur=blur, solarize=solarize, erasing=erasing)
    colours = {"jitter": jitter, "grayscale": grayscale, "blur": blur, "sigma": blur_sigma}
    colours["kernel"] = _common.blur_kernel_side(blur_kernel, size)
    strengths = dict(brightness=brightness, contrast=contrast, saturation=saturation, hue=hue)
    _common.require_colours(blur_kernel=blur_kernel, blur_sigma=blur_sigma, **strengths)

    def view(key: Array, image: Array) -> Array:
        u = jax.random.uniform(key, (CROP_NUMBERS + 11 + 1 + CROP_NUMBERS,), jnp.float32)
        box, u, erased = jnp.split(u, [CROP_NUMBERS, CROP_NUMBERS + 11])
        image = image_ops.random_resized_crop(box, image, size, crop_scale, crop_ratio)
        image = image_ops.random_flip(u[0], image, flip)
        image = _common.random_colours(u[1:10], image, strengths=strengths, **colours)
        # Operations with probability 0 are skipped here, so that XLA does not compile them.
        if solarize:
            image = colour.random_solarize(u[10], image, solarize)
        return image_ops.random_erase(erased, image, erasing) if erasing else image

    return view
