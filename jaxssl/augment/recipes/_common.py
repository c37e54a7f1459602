"""What several recipes share."""

from collections.abc import Callable, Sequence

from jax import Array

from jaxssl.augment import image as ops

Recipe = Callable[[Array, Array], Array]


def random_crop(
    u: Array,
    image: Array,
    size: int,
    scale: Sequence[float],
    ratio: Sequence[float] = (3 / 4, 4 / 3),
) -> Array:
    """The random resized crop; a scale of (1, 1) keeps the whole image."""
    if tuple(scale) == (1, 1):
        return ops.resize(image, size)
    box = ops.random_crop_box(u, image.shape, tuple(scale), tuple(ratio))
    return ops.crop_resize(image, box, size)


def check_probabilities(**probabilities: float) -> None:
    for name, value in probabilities.items():
        if not 0 <= value <= 1:
            raise ValueError(f"{name} is {value}; expected a probability or share in [0, 1]")
