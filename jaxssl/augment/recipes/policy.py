"""Augmentation for supervised training: crop, flip, AutoAugment or RandAugment, random erasing."""

import jax
from jax import Array
from jax import numpy as jnp

from jaxssl.augment import image as image_ops
from jaxssl.augment import policies
from jaxssl.augment.image import CROP_NUMBERS
from jaxssl.augment.recipes._common import Recipe, require_fractions, require_nonnegative

CROPS = ("pad", "resized")
POLICIES = ("none", "autoaugment_cifar", "autoaugment_imagenet", "randaugment")


def recipe(
    *,
    size: int = 32,
    crop: str = "pad",
    pad: int = 4,
    crop_scale: tuple[float, float] = (0.2, 1.0),
    flip: float = 0.5,
    policy: str = "none",
    num_ops: int = 2,
    magnitude: float = 10,
    erasing: float = 0.0,
) -> Recipe:
    """Build the augmentation for supervised training: crop, flip, policy, random erasing.

    Args:
        size: side of a view in pixels.
        crop: "pad" resizes to ``size`` if needed, pads by reflection and crops; "resized" is the
            random resized crop.
        pad: pixels added on each side by "pad".
        crop_scale: smallest and largest area of the resized crop, as a fraction of the image.
        flip: probability of a horizontal flip.
        policy: "none", "autoaugment_cifar", "autoaugment_imagenet" or "randaugment".
        num_ops: number of operations of RandAugment, >= 0.
        magnitude: strength of RandAugment, in [0, 10].
        erasing: probability of erasing a random box.

    Raises:
        ValueError: if a setting is out of range. The view raises one for pad, crop_scale and
            magnitude, if it uses them.
    """
    for name, value, choices in (("crop", crop, CROPS), ("policy", policy, POLICIES)):
        if value not in choices:
            raise ValueError(f"augmentation setting {name} must be one of {choices}, got {value!r}")
    require_nonnegative(num_ops=num_ops)
    require_fractions(flip=flip, erasing=erasing)

    def random_crop(u: Array, image: Array) -> Array:
        if crop == "resized":
            return image_ops.random_resized_crop(u, image, size, crop_scale)
        return image_ops.random_pad_crop(u[:2], image_ops.resize(image, size), pad)

    def view(key: Array, image: Array) -> Array:
        u = jax.random.uniform(key, (2 * CROP_NUMBERS + 7 + 2 * num_ops,), jnp.float32)
        # The last part has 1 number for the flip, 5 for AutoAugment, the others for RandAugment.
        box, erased, u = jnp.split(u, [CROP_NUMBERS, 2 * CROP_NUMBERS + 1])
        image = image_ops.random_flip(u[0], random_crop(box, image), flip)
        image = jnp.moveaxis(image, 2, 0)
        if policy == "randaugment":
            image = policies.rand_augment(u[6:].reshape(num_ops, 2), image, magnitude)
        elif policy != "none":
            table = policies.CIFAR if policy == "autoaugment_cifar" else policies.IMAGENET
            image = policies.auto_augment(u[1:6], image, table)
        image = jnp.moveaxis(image, 0, 2)
        return image_ops.random_erase(erased, image, erasing) if erasing else image

    return view
