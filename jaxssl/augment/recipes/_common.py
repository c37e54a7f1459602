"""The function type of augmentation recipes, and checks of their settings."""

from collections.abc import Callable

from jax import Array

Recipe = Callable[[Array, Array], Array]


def require_fractions(**settings: float) -> None:
    """Raise a ValueError for the first augmentation setting outside of [0, 1]."""
    for name, value in settings.items():
        if not 0 <= value <= 1:
            raise ValueError(f"{name} must be in [0, 1], got {value}")


def blur_kernel_side(blur_kernel: int, size: int) -> int:
    """Return the side of the blur kernel. 0 means a tenth of ``size``, made odd and >= 3."""
    return blur_kernel or max(3, size // 20 * 2 + 1)
