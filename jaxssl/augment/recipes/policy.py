"""Views for supervised training: crop, flip, AutoAugment or RandAugment, random erasing."""

import jax
from jax import Array
from jax import numpy as jnp

from jaxssl.augment import image as ops
from jaxssl.augment import policies
from jaxssl.augment.recipes._common import Recipe, check_probabilities, random_crop

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
    """For supervised training: crop, flip, a learned or random policy, random erasing.

    Args:
        size: pixels a side of a view.
        crop: "pad" resizes to ``size`` if need be, pads by reflection and crops; "resized" is the
            random resized crop.
        pad: pixels on each side.
        crop_scale: smallest and largest share of the area that the resized crop keeps.
        flip: probability of mirroring left and right.
        policy: "none", "autoaugment_cifar", "autoaugment_imagenet" or "randaugment".
        num_ops: operations of RandAugment, one after the other.
        magnitude: of RandAugment, in [0, 10].
        erasing: probability of erasing a box.

    Raises:
        ValueError: on an unknown ``crop`` or ``policy``, a probability outside [0, 1], or a
            negative ``num_ops``.
    """
    if crop not in ("pad", "resized"):
        raise ValueError(f"crop is {crop!r}; expected 'pad' or 'resized'")
    if policy not in POLICIES:
        raise ValueError(f"policy is {policy!r}; expected one of {', '.join(POLICIES)}")
    if num_ops < 0:
        raise ValueError(f"num_ops is {num_ops}; expected 0 or more")
    check_probabilities(flip=flip, erasing=erasing)

    def cropped(u: Array, image: Array) -> Array:
        if crop == "resized":
            return random_crop(u, image, size, crop_scale)
        return ops.random_pad_crop(u[:2], ops.resize(image, size), pad)

    def view(key: Array, image: Array) -> Array:
        u = jax.random.uniform(key, (15 + 2 * num_ops,))
        image = jnp.moveaxis(ops.random_flip(u[4], cropped(u[:4], image), flip), 2, 0)
        if policy == "randaugment":
            image = policies.rand_augment(u[15:].reshape(num_ops, 2), image, magnitude)
        elif policy != "none":
            table = policies.CIFAR if policy == "autoaugment_cifar" else policies.IMAGENET
            image = policies.auto_augment(u[5:10], image, table)
        image = jnp.moveaxis(image, 0, 2)
        return ops.random_erase(u[10:15], image, erasing) if erasing else image

    return view
