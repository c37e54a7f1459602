"""The type of recipes, and checks that they share."""

from collections.abc import Callable

from jax import Array

Recipe = Callable[[Array, Array], Array]


def require_fractions(**settings: float) -> None:
    """Raise a ValueError for the first setting outside of [0, 1]."""
    for name, value in settings.items():
        if not 0 <= value <= 1:
            raise ValueError(f"{name} must be in [0, 1], got {value}")


def blur_kernel_side(blur_kernel: int, size: int) -> int:
    """Return ``blur_kernel``, or if it is 0 the odd number next to a tenth of ``size``, >= 3."""
    return blur_kernel or max(3, size // 20 * 2 + 1)
