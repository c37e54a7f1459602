"""SimCLR's views."""

import jax
from jax import Array
from jax import numpy as jnp

from jaxssl.augment import colour
from jaxssl.augment import image as ops
from jaxssl.augment.recipes._common import Recipe, check_probabilities, random_crop


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
) -> Recipe:
    """SimCLR's: random resized crop, flip, colour jitter, grayscale; blur and more when asked.

    Args:
        size: pixels a side of a view.
        crop_scale: smallest and largest share of the area that the crop keeps; (1, 1) keeps all
            of the image, of any shape.
        crop_ratio: smallest and largest width / height of the crop.
        flip: probability of mirroring left and right.
        jitter: probability of the four changes of colour, in random order.
        brightness: strength, the range of the factor about 1.
        contrast: likewise.
        saturation: likewise.
        hue: strength, the range of the shift, a share of the circle.
        grayscale: probability.
        blur: probability of a Gaussian blur.
        blur_kernel: its taps along a side, odd; 0 is about a tenth of ``size``, at least 3.
        blur_sigma: range of its standard deviation, in pixels.
        solarize: probability of inverting the upper half of the values.
        erasing: probability of erasing a box.

    Raises:
        ValueError: on a probability outside [0, 1].

    References:
        Chen et al., A Simple Framework for Contrastive Learning of Visual Representations, 2020,
        appendix A; solarisation after Grill et al., Bootstrap Your Own Latent, 2020.
    """
    check_probabilities(flip=flip, jitter=jitter, grayscale=grayscale)
    check_probabilities(blur=blur, solarize=solarize, erasing=erasing)
    kernel = blur_kernel or max(3, size // 20 * 2 + 1)
    strengths = dict(brightness=brightness, contrast=contrast, saturation=saturation, hue=hue)

    def view(key: Array, image: Array) -> Array:
        u = jax.random.uniform(key, (20,))
        image = random_crop(u[:4], image, size, crop_scale, crop_ratio)
        image = ops.random_flip(u[4], image, flip)
        image = jnp.moveaxis(image, 2, 0)
        # What never happens is not compiled.
        if jitter:
            image = colour.random_jitter(u[5:11], image, **strengths, probability=jitter)
        if grayscale:
            image = colour.random_grayscale(u[11], image, grayscale)
        if blur:
            image = colour.random_blur(u[12:14], image, kernel, tuple(blur_sigma), blur)
        if solarize:
            image = colour.random_solarize(u[14], image, solarize)
        image = jnp.moveaxis(image, 0, 2)
        return ops.random_erase(u[15:], image, erasing) if erasing else image

    return view
