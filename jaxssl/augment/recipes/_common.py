"""The function type of augmentation recipes, and checks of their settings."""

from collections.abc import Callable, Mapping
from typing import Any

from jax import Array

Recipe = Callable[[Array, Array], Array]


def require_fractions(**settings: float) -> None:
    """Raise a ValueError for the first augmentation setting outside of [0, 1]."""
    for name, value in settings.items():
        if not 0 <= value <= 1:
            raise ValueError(f"{name} must be in [0, 1], got {value}")


def needs_rgb(settings: Mapping[str, Any]) -> list[str]:
    """Return the operations of a recipe that are left out unless images are RGB."""
    names = [name for name in ("saturation", "hue", "grayscale") if settings.get(name)]
    if not settings.get("jitter"):
        names = [name for name in names if name == "grayscale"]
    return names + ["color of the policy"] * (settings.get("policy", "none") != "none")


def blur_kernel_side(blur_kernel: int, size: int) -> int:
    """Return the side of the blur kernel. 0 means a tenth of ``size``, made odd and >= 3."""
    return blur_kernel or max(3, size // 20 * 2 + 1)
