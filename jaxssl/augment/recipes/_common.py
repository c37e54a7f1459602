"""Code that recipes share: the type of a view function, checks of settings, colour changes."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jax import Array
from jax import numpy as jnp

from jaxssl.augment import colour

Recipe = Callable[[Array, Array], Array]


def require_fractions(**settings: float) -> None:
    """Raise a ValueError for the first augmentation setting outside of [0, 1]."""
    for name, value in settings.items():
        if not 0 <= value <= 1:
            raise ValueError(f"augmentation setting {name} must be in [0, 1], got {value}")


def require_nonnegative(**settings: float) -> None:
    """Raise a ValueError for the first augmentation setting that is negative or NaN."""
    for name, value in settings.items():
        if not value >= 0:
            raise ValueError(f"augmentation setting {name} must be >= 0, got {value}")


def require_colours(
    *, hue: float, blur_kernel: int, blur_sigma: Sequence[float], **strengths: float
) -> None:
    """Raise a ValueError for the first setting of `random_colours` that is out of range."""
    require_nonnegative(**strengths)
    if not 0 <= hue <= 0.5:
        raise ValueError(f"augmentation setting hue must be in [0, 0.5], got {hue}")
    if blur_kernel and (blur_kernel < 0 or blur_kernel % 2 == 0):
        raise ValueError(f"augmentation setting blur_kernel must be 0 or odd, got {blur_kernel}")
    if np.shape(blur_sigma) != (2,) or not 0 <= blur_sigma[0] <= blur_sigma[1]:
        raise ValueError(
            "augmentation setting blur_sigma must be (smallest, largest) with 0 <= smallest <= "
            f"largest, got {blur_sigma}"
        )


def needs_rgb(settings: Mapping[str, object]) -> list[str]:
    """Return the operations of a recipe that are left out unless images are RGB.

    ``settings`` are the arguments of the recipe. "saturation" and "hue" are part of the jitter.
    """
    operations = ("saturation", "hue", "grayscale") if settings.get("jitter") else ("grayscale",)
    names = [name for name in operations if settings.get(name)]
    if settings.get("policy", "none") != "none":
        names.append("color of the policy")
    return names


def random_colours(
    u: Array,
    image: Array,
    *,
    jitter: float,
    strengths: Mapping[str, float],
    grayscale: float,
    blur: float,
    kernel: int,
    sigma: Sequence[float],
) -> Array:
    """Apply colour jitter, grayscale and blur to an image, each with its probability.

    Operations with probability 0 are skipped, so that XLA does not compile them.

    Args:
        u: [9] uniform in [0, 1): six for the jitter, one for grayscale, two for the blur.
        image: [h, w, c].
        jitter: probability of the jitter.
        strengths: "brightness", "contrast", "saturation" and "hue" of `colour.random_jitter`.
        grayscale: probability of grayscale.
        blur: probability of the blur.
        kernel: side of the blur kernel in pixels, odd.
        sigma: smallest and largest standard deviation of the blur in pixels.
    """
    image = jnp.moveaxis(image, 2, 0)
    if jitter:
        image = colour.random_jitter(u[:6], image, **strengths, probability=jitter)
    if grayscale:
        image = colour.random_grayscale(u[6], image, grayscale)
    if blur:
        image = colour.random_blur(u[7:9], image, kernel, sigma, blur)
    return jnp.moveaxis(image, 0, 2)


def blur_kernel_side(blur_kernel: int, size: int) -> int:
    """Return ``blur_kernel``, or if it is 0 an odd tenth of the image side ``size``, at least 3."""
    return blur_kernel or max(3, size // 20 * 2 + 1)
