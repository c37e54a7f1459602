"""AutoAugment and RandAugment on one planar image [c, h, w], float in [0, 1].

AutoAugment's sub-policies are in autoaugment.toml. The operations are Pillow's. Geometric ones take
the nearest pixel and fill with grey, 128 of 255. Under `jax.vmap` all images run the same program,
so `apply` computes every operation and selects one. Operations of the same form share one
computation (one gather, one blend).
"""

import tomllib
from pathlib import Path
from typing import NamedTuple

import jax
from jax import Array
from jax import numpy as jnp

from jaxssl.augment import colour
from jaxssl.augment.image import choose

# RandAugment uses all operations but inversion, which only AutoAugment uses.
OPERATIONS = (
    *("identity", "shear_x", "shear_y", "translate_x", "translate_y", "rotate"),
    *("brightness", "color", "contrast", "sharpness", "posterize", "solarize"),
    *("autocontrast", "equalize", "invert"),
)
RAND_OPERATIONS = len(OPERATIONS) - 1
# Strengths of operations at the largest level (Cubuk et al., 2019, table 6, images of 331 pixels).
MAX_SHEAR, MAX_SHIFT, MAX_DEGREES, MAX_FACTOR = 0.3, 150 / 331, 30.0, 0.9
FILL = 128 / 255


class Step(NamedTuple):
    """A step of a sub-policy: an operation with its probability and strength, each in [0, 1]."""

    name: str
    probability: float
    strength: float


_TABLES = tomllib.loads(Path(__file__).with_name("autoaugment.toml").read_text("utf-8"))
CIFAR, IMAGENET = (
    [[Step(operation, p, level / 9) for operation, p, level in row] for row in _TABLES[name]]
    for name in ("cifar", "imagenet")
)


def transform(image: Array, matrix: Array) -> Array:
    """Apply an affine map, as Pillow's ``image.transform(size, AFFINE, matrix, NEAREST)``.

    Pixels from outside the image have the value `FILL`.

    Args:
        image: [c, h, w].
        matrix: [2, 3], maps (x, y, 1) of a pixel's centre in the result to (x, y) in the source.

    Returns:
        [c, h, w].
    """
    c, h, w = image.shape
    x = (jnp.arange(w, dtype=jnp.float32) + 0.5)[None, :]
    y = (jnp.arange(h, dtype=jnp.float32) + 0.5)[:, None]
    columns, rows = (jnp.floor(a * x + b * y + d).astype(jnp.int32) for a, b, d in matrix)
    inside = (columns >= 0) & (columns < w) & (rows >= 0) & (rows < h)
    index = jnp.where(inside, rows * w + columns, 0)
    pixels = jnp.reshape(image, (c, h * w)).at[:, index].get(mode="promise_in_bounds")
    return jnp.where(inside[None], pixels, FILL)


def rotation(degrees: Array | float, h: int, w: int) -> Array:
    """Return the matrix [2, 3] for `transform` that rotates counter-clockwise about the centre."""
    cos, sin = jnp.cos(jnp.deg2rad(degrees)), jnp.sin(jnp.deg2rad(degrees))
    x, y = w / 2, h / 2
    return _matrix(cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y)


def apply(image: Array, operation: Array, strength: Array, sign: Array) -> Array:
    """Apply one of the operations of RandAugment and AutoAugment to an image.

    Args:
        image: [c, h, w].
        operation: [] int32, index into `OPERATIONS`.
        strength: [] fraction of the operation's range, in [0, 1]. At 1, the shear is 0.3, the
            translation 150/331 of the side, the rotation 30 degrees, factors are 1 +- 0.9,
            posterize drops 4 of 8 bits, and the threshold of solarize is 0.
        sign: [] 1 or -1, the direction of geometric operations, and whether factors exceed 1.

    Returns:
        [c, h, w].
    """
    selected = {name: operation == index for index, name in enumerate(OPERATIONS)}

    def select(options: dict[str, Array], default: Array) -> Array:
        return jnp.select([selected[name] for name in options], list(options.values()), default)

    _, h, w = image.shape
    signed = strength * sign
    matrices = {
        "shear_x": _matrix(1, MAX_SHEAR * signed, 0, 0, 1, 0),
        "shear_y": _matrix(1, 0, 0, MAX_SHEAR * signed, 1, 0),
        "translate_x": _matrix(1, 0, MAX_SHIFT * w * signed, 0, 1, 0),
        "translate_y": _matrix(1, 0, 0, 0, 1, MAX_SHIFT * h * signed),
        "rotate": rotation(MAX_DEGREES * signed, h, w),
    }
    matrix = select(matrices, _matrix(1, 0, 0, 0, 1, 0))
    grey = colour.grey(image)
    others = {
        "brightness": jnp.zeros_like(image),
        "color": jnp.broadcast_to(grey, image.shape) if image.shape[0] == colour.RGB else image,
        "contrast": jnp.broadcast_to(colour.mean(grey), image.shape),
        "sharpness": colour.smooth(image),
    }
    other = select(others, image)
    # Inversion is the same as solarisation with threshold 0.
    threshold = jnp.where(selected["invert"], 0, (1 - strength) * (256 / 255))
    bits = 8 - jnp.round(4 * strength).astype(jnp.int32)
    # The names of operations that share a computation, with its result
    results = [
        (matrices, transform(image, matrix)),
        (others, colour.blend(image, other, 1 + MAX_FACTOR * signed)),
        (("solarize", "invert"), colour.solarize(image, threshold)),
        (("posterize",), colour.posterize(image, bits)),
        (("autocontrast",), colour.autocontrast(image)),
        (("equalize",), colour.equalize(image)),
    ]
    is_result = [jnp.any(jnp.stack([selected[name] for name in names])) for names, _ in results]
    return jnp.select(is_result, [result for _, result in results], image)


def auto_augment(u: Array, image: Array, table: list[list[Step]]) -> Array:
    """Apply a random sub-policy of AutoAugment's ``table`` to an image.

    Args:
        u: [5] uniform in [0, 1): the sub-policy, then for each of its two operations whether to
            apply it, and its sign.
        image: [c, h, w].
        table: `CIFAR` or `IMAGENET`.

    References:
        Cubuk et al., AutoAugment: Learning Augmentation Strategies from Data, 2019. As in
        torchvision, colour operations have a random sign too, and higher levels posterize and
        solarize more.
    """
    chosen = choose(u[0], len(table))
    operations = [[OPERATIONS.index(step.name) for step in policy] for policy in table]
    probabilities = [[step.probability for step in policy] for policy in table]
    strengths = [[step.strength for step in policy] for policy in table]
    draws, signs = u[1:].reshape(2, 2).T
    active = draws < jnp.array(probabilities, jnp.float32)[chosen]
    operation = jnp.where(active, jnp.array(operations, jnp.int32)[chosen], 0)
    return _apply_all(image, operation, jnp.array(strengths, jnp.float32)[chosen], signs)


def rand_augment(u: Array, image: Array, magnitude: float) -> Array:
    """Apply RandAugment: n operations, drawn at random from 14, with one magnitude.

    Args:
        u: [n, 2] uniform in [0, 1): index and sign of each of n operations.
        image: [c, h, w].
        magnitude: strength of all operations, in [0, 10] (in torchvision, up to 30).

    Raises:
        ValueError: if ``magnitude`` is out of range.

    References:
        Cubuk et al., RandAugment: Practical Automated Data Augmentation with a Reduced Search
        Space, 2020. The ranges are AutoAugment's.
    """
    if not 0 <= magnitude <= 10:
        raise ValueError(f"magnitude of RandAugment must be in [0, 10], got {magnitude}")
    strengths = jnp.full(u.shape[0], magnitude / 10, jnp.float32)
    return _apply_all(image, choose(u[:, 0], RAND_OPERATIONS), strengths, u[:, 1])


def _apply_all(image: Array, operations: Array, strengths: Array, signs: Array) -> Array:
    """Apply n image operations of a policy in order, with random signs of their strengths.

    ``signs`` [n] are uniform in [0, 1), negative below 0.5.
    """

    def step(image: Array, settings: tuple[Array, Array, Array]) -> tuple[Array, None]:
        return apply(image, *settings), None

    # A scan over the operations compiles their code only once.
    settings = (operations, strengths, jnp.where(signs < 0.5, -1.0, 1.0))
    return jax.lax.scan(step, image, settings)[0]


def _matrix(*entries: Array | float) -> Array:
    """Return a matrix [2, 3] for `transform` from its entries, row by row."""
    return jnp.stack([jnp.asarray(entry, jnp.float32) for entry in entries]).reshape(2, 3)
