"""What baseline JPEG does to the pixels of one image [h, w, c]: everything but its lossless coding.

Colour is turned to YCbCr, its chroma halved along both sides (4:2:0), every 8 x 8 block's discrete
cosine transform divided by a table and rounded, and all of it undone.

References:
    ITU-T T.81 (1992), annexes A and K; the scaling of tables with quality and the enlarging of
    chroma are those of the IJG's libjpeg.
"""

import numpy as np
from jax import Array, lax
from jax import numpy as jnp

# T.81, tables K.1 and K.2.
LUMA = """
16 11 10 16  24  40  51  61
12 12 14 19  26  58  60  55
14 13 16 24  40  57  69  56
14 17 22 29  51  87  80  62
18 22 37 56  68 109 103  77
24 35 55 64  81 104 113  92
49 64 78 87 103 121 120 101
72 92 95 98 112 100 103  99
"""
CHROMA = """
17 18 24 47 99 99 99 99
18 21 26 66 99 99 99 99
24 26 56 99 99 99 99 99
47 66 99 99 99 99 99 99
99 99 99 99 99 99 99 99
99 99 99 99 99 99 99 99
99 99 99 99 99 99 99 99
99 99 99 99 99 99 99 99
"""
# Of R, G, B in Y, Cb, Cr.
YCC = np.array(
    [[0.299, 0.587, 0.114], [-0.168736, -0.331264, 0.5], [0.5, -0.418688, -0.081312]], np.float32
)
RGB = np.linalg.inv(YCC).astype(np.float32)


def tables(quality: int) -> np.ndarray:
    """[2, 8, 8] divisors for luma and chroma at a quality of 1 to 100."""
    percent = 5000 // quality if quality < 50 else 200 - 2 * quality
    base = np.array([text.split() for text in (LUMA, CHROMA)], np.int32).reshape(2, 8, 8)
    return np.clip((base * percent + 50) // 100, 1, 255)


def compress(image: Array, divisors: Array) -> Array:
    """The image after JPEG.

    Args:
        image: [h, w, c] in [0, 1]; c is 1, grey, or 3.
        divisors: [2, 8, 8] float32, of `tables`.

    Returns:
        [h, w, c] in [0, 1], of 256 levels.
    """
    h, w, channels = image.shape
    levels = jnp.round(255 * image)
    if channels == 1:
        return _coded(levels[:, :, 0] - 128, divisors[0])[:, :, None] / 255 + 128 / 255
    y, cb, cr = jnp.round(jnp.einsum("kc,hwc->khw", YCC, levels, precision=lax.Precision.HIGHEST))
    planes = [_coded(y - 128, divisors[0]) + 128]
    for chroma in (cb, cr):
        fours = _padded(chroma, 2).reshape(-(-h // 2), 2, -(-w // 2), 2).sum(axis=(1, 3))
        # Halves are rounded down and up by turns, as libjpeg does it; so are those below.
        halved = jnp.floor(fours / 4 + _turns(fours.shape[1], 1 / 4, 2 / 4))
        coded = _coded(halved, divisors[1])
        rows, columns = _enlarge(coded.shape[0])[:h], _enlarge(coded.shape[1])[:w]
        planes.append(jnp.floor(_product(rows, coded, columns) + _turns(w, 8 / 16, 7 / 16)))
    levels = jnp.einsum("ck,khw->hwc", RGB, jnp.stack(planes), precision=lax.Precision.HIGHEST)
    return jnp.clip(jnp.round(levels), 0, 255) / 255


def _coded(plane: Array, divisors: Array) -> Array:
    """A plane [h, w] in [-128, 127] with its blocks' transforms rounded."""
    h, w = plane.shape
    plane = _padded(plane, 8)
    rows, columns = (_cosines(n) for n in plane.shape)
    table = jnp.tile(divisors, (plane.shape[0] // 8, plane.shape[1] // 8))
    steps = _product(rows, plane, columns) / table
    # A half is rounded away from 0; the least bit more makes up for the product's rounding.
    coefficients = jnp.sign(steps) * jnp.floor(jnp.abs(steps) + 0.5001) * table
    return jnp.clip(jnp.round(_product(rows.T, coefficients, columns.T)), -128, 127)[:h, :w]


def _padded(plane: Array, to: int) -> Array:
    """Edges repeated until the sides are multiples of ``to``."""
    return jnp.pad(plane, [(0, -n % to) for n in plane.shape], mode="edge")


def _product(rows: Array, plane: Array, columns: Array) -> Array:
    return jnp.einsum("yh,hw,xw->yx", rows, plane, columns, precision=lax.Precision.HIGHEST)


def _turns(n: int, even: float, odd: float) -> np.ndarray:
    return np.where(np.arange(n) % 2, odd, even).astype(np.float32)[None, :]


def _cosines(n: int) -> np.ndarray:
    """[n, n] the orthonormal cosine transform of every 8 values."""
    k, i = np.arange(8)[:, None], np.arange(8)
    block = np.sqrt(np.where(k > 0, 2, 1) / 8) * np.cos(np.pi * k * (2 * i + 1) / 16)
    return np.kron(np.eye(n // 8), block).astype(np.float32)


def _enlarge(n: int) -> np.ndarray:
    """[2 n, n] each value twice, 3/4 of it and 1/4 of the neighbour on that side."""
    one, found = np.eye(n), np.zeros((2 * n, n))
    found[::2] = 0.75 * one + 0.25 * one[np.maximum(np.arange(n) - 1, 0)]
    found[1::2] = 0.75 * one + 0.25 * one[np.minimum(np.arange(n) + 1, n - 1)]
    return found.astype(np.float32)
