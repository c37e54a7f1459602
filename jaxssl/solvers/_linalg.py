"""Linear algebra for the SVM solvers."""

import jax
from jax import Array, lax
from jax import numpy as jnp
from jax.scipy.linalg import solve_triangular

from jaxssl.collectives import align

POWER_STEPS = 50  # of the power iteration
# `inverse_root` divides a matrix until a block has at most 16 rows, or a 64th of the matrix's rows.
MIN_LEAF, LEAF_DIVISOR = 16, 64


def extrapolate(
    new: Array, old: Array, point: Array, momentum: Array, *, restart: bool
) -> tuple[Array, Array]:
    r"""Compute the next point and momentum of Nesterov's method with adaptive restart.

    .. math:: y^+ = x^+ + \frac{a(1-a)}{a^2+a'} (x^+ - x), \quad
              a' = \frac{\sqrt{a^4+4a^2}-a^2}{2}

    Args:
        new: [..., d] current iterate x^+.
        old: [..., d] previous iterate x.
        point: [..., d] point y at which the gradient was taken.
        momentum: [..., 1] parameter a.
        restart: whether to drop the momentum where it points uphill.

    Returns:
        [..., d] next point y^+, and [..., 1] next parameter a'.

    References:
        Beck and Teboulle, A Fast Iterative Shrinkage-Thresholding Algorithm for Linear Inverse
        Problems, 2009. O'Donoghue and Candes, Adaptive Restart for Accelerated Gradient Schemes,
        2015, eq. 13.
    """
    square = momentum * momentum
    following = (jnp.sqrt(square * square + 4 * square) - square) / 2
    rate = momentum * (1 - momentum) / (square + following)
    change = new - old
    if restart:
        uphill = jnp.sum((point - new) * change, axis=-1, keepdims=True) > 0
        rate = jnp.where(uphill, 0, rate)
        following = jnp.where(uphill, 1, following)
    return new + rate * change, following


def spectral_radius(matrix: Array) -> Array:
    """Estimate the largest |eigenvalue| of a symmetric [m, m] matrix from above.

    The power iteration converges from below. Therefore one per cent and the norm of the residual
    are added. Before convergence the residual covers the gap. After it the residual is zero.
    """
    # The random start vector is fixed. In practice it is not orthogonal to the top eigenvector.
    size, dtype = matrix.shape[0], matrix.dtype
    vector = jax.random.normal(jax.random.key(0), (size,), dtype)
    vector, matrix = align((vector, matrix))

    def shrink(vector: Array) -> Array:
        # The vector is first divided by its largest entry, so that its squares neither overflow nor
        # underflow.
        vector = vector / jnp.maximum(jnp.max(jnp.abs(vector), initial=0), tiny(dtype))
        return vector / jnp.maximum(jnp.linalg.norm(vector), 1)

    vector = lax.fori_loop(0, POWER_STEPS, lambda _, v: product(matrix, shrink(v)), vector)
    vector = shrink(vector)
    image = product(matrix, vector)
    value = jnp.linalg.norm(image)
    sign = jnp.where(jnp.vdot(vector, image) < 0, -1, 1).astype(dtype)
    return 1.01 * value + jnp.linalg.norm(image - sign * value * vector)


def product(left: Array, right: Array) -> Array:
    """Multiply two matrices in full precision. GPUs and TPUs would round float32 by default."""
    return jnp.matmul(left, right, precision=lax.Precision.HIGHEST)


def inverse(matrix: Array) -> Array:
    """Invert a symmetric matrix [m, m] by Cholesky, or by LU if it is not positive definite."""
    root = inverse_root(matrix)
    definite = jnp.all(jnp.isfinite(root))
    return lax.cond(definite, lambda: product(root.T, root), lambda: jnp.linalg.inv(matrix))


def inverse_root(matrix: Array) -> Array:
    """Compute the inverse of a symmetric matrix's lower Cholesky factor, [m, m].

    The result is not finite for an indefinite matrix. It is computed recursively from quarters,
    because large LAPACK calls on a CPU start threads that keep the cores busy for some time. That
    would double the time of the next operation.
    """
    size = matrix.shape[0]
    if not isinstance(size, int):
        raise ValueError(
            f"ADMM and INV need a constant batch size, got a kernel of {size} rows; use "
            'svm_dual_pgd (solver="pgd") to export a symbolic one'
        )
    return _inverse_root(matrix, max(MIN_LEAF, size // LEAF_DIVISOR))


def _inverse_root(matrix: Array, leaf: int) -> Array:
    """Compute `inverse_root` with matrices of up to ``leaf`` rows not divided."""
    m = matrix.shape[0]
    if m <= leaf:
        eye = jnp.eye(m, dtype=matrix.dtype)
        return solve_triangular(jnp.linalg.cholesky(matrix), eye, lower=True)
    half = m // 2
    first = _inverse_root(matrix[:half, :half], leaf)
    below = product(matrix[half:, :half], first.T)
    last = _inverse_root(matrix[half:, half:] - product(below, below.T), leaf)
    corner = -product(last, product(below, first))
    return jnp.block([[first, jnp.zeros_like(corner.T)], [corner, last]])


def small_inverse(block: Array) -> Array:
    """Invert symmetric blocks [n, q, q]. The result is finite even for singular blocks."""
    size = block.shape[1]
    if size == 1:
        return finite(1 / not_zero(block))
    if size > 2:
        return finite(jnp.linalg.inv(block))
    first, cross, last = block[:, :1, :1], block[:, :1, 1:], block[:, 1:, 1:]
    adjugate = jnp.block([[last, -cross], [-cross, first]])
    return finite(adjugate / not_zero(first * last - cross * cross))


def times(block: Array, vector: Array) -> Array:
    """Multiply a batch of matrices [n, q, q] by a batch of vectors [n, q]."""
    return jnp.sum(block * vector[:, None, :], axis=2)


def not_zero(x: Array) -> Array:
    """Replace denominators near 0 by the smallest normal number of their dtype."""
    return jnp.where(jnp.abs(x) < tiny(x.dtype), tiny(x.dtype), x)


def tiny(dtype: object) -> float:
    """Return the smallest normal number of a dtype, a lower bound for denominators."""
    return float(jnp.finfo(dtype).tiny)


def largest(dtype: object) -> float:
    """Return the largest number of a dtype whose fourth power does not overflow."""
    return float(jnp.finfo(dtype).max) ** 0.25


def finite(x: Array) -> Array:
    """Replace NaN by 0, and clip numbers to [-`largest`, `largest`]."""
    big = largest(x.dtype)
    return jnp.nan_to_num(jnp.clip(x, -big, big), nan=0.0)
