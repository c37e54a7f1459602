"""Quadratic programs with bounds: min 1/2 x'Qx - linear'x over lower <= x <= upper."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax import Array, lax
from jax import numpy as jnp
from jax.scipy.linalg import solve_triangular

POWER_STEPS = 50


class BoxQPSolution(NamedTuple):
    """What a solver found.

    Attributes:
        x: [d], inside the box.
        kkt_residual: [], max |x - clip(x - (Qx - linear), lower, upper)|; 0 at the optimum.
        num_steps: [] int32, steps used.
    """

    x: Array
    kkt_residual: Array
    num_steps: Array


def box_qp_pgd(
    matrix_or_matvec: Array | Callable[[Array], Array],
    linear: Array,
    lower: float | Array = 0.0,
    upper: float | Array = jnp.inf,
    *,
    num_steps: int = 200,
    step: float | Array | None = None,
    accelerated: bool = True,
    restart: bool = True,
    momentum_start: float | Array = 1.0,
    init: Array | None = None,
    tol: float | Array | None = None,
) -> BoxQPSolution:
    r"""Projected gradient descent, by default with Nesterov's momentum and adaptive restart.

    .. math:: x^+ = \mathrm{clip}(y - \eta (Qy - linear), lower, upper), \quad
              y^+ = x^+ + \frac{a(1-a)}{a^2+a'} (x^+ - x), \quad
              a' = \frac{\sqrt{a^4+4a^2}-a^2}{2}

    One problem; `jax.vmap` solves many.

    Args:
        matrix_or_matvec: Q, [d, d] symmetric positive semi-definite, or a function x -> Qx.
        linear: [d].
        lower: [] or [d], <= upper. An infinite bound stands for finfo.max ** 0.25.
        upper: [] or [d].
        num_steps: > 0; the number of steps, or their limit if ``tol`` is given.
        step: eta, > 0; None: 1 / lambda_max(Q), by power iteration.
        accelerated: whether to use momentum.
        restart: whether to drop the momentum when it points uphill.
        momentum_start: the first a, in (0, 1]; 1 is FISTA.
        init: [d], the start, moved into the box; None: 0.
        tol: stop as soon as the KKT residual is at most this; None: take all the steps.

    Returns:
        The last x. Gradients flow through the steps if ``tol`` is None.

    References:
        Beck and Teboulle, A Fast Iterative Shrinkage-Thresholding Algorithm for Linear Inverse
        Problems, 2009. O'Donoghue and Candes, Adaptive Restart for Accelerated Gradient Schemes,
        2015, eq. 13.
    """
    dtype = working_dtype(linear)
    linear = linear.astype(dtype)
    matvec = _matvec(matrix_or_matvec, linear)
    require_steps(num_steps, step)
    lower, upper = _box(lower, upper, linear)
    if step is None:
        bound = spectral_radius(matvec, linear.size, dtype)
        step = 1 / jnp.where(bound > 0, bound, 1)
    eta = jnp.asarray(step).astype(dtype)

    def advance(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        x, y, momentum = state
        new = jnp.clip(y[0] - eta * (matvec(y[0]) - linear), lower, upper)[None]
        if not accelerated:
            return new, new, momentum
        return new, *extrapolate(new, x, y, momentum, restart=restart)

    def residual(x: Array) -> Array:
        return jnp.max(jnp.abs(x - jnp.clip(x - (matvec(x) - linear), lower, upper)), initial=0)

    x = jnp.clip(start_at(init, linear), lower, upper)[None]
    state = x, x, jnp.full((1, 1), momentum_start, dtype)
    error = lambda state: residual(state[0][0])[None]  # noqa: E731
    (x, *_), used = iterate_rows(advance, error, state, 1, num_steps, tol, 1)
    return BoxQPSolution(x[0], residual(x[0]), used[0])


def box_qp_truncated_ls(
    matrix: Array, linear: Array, lower: float | Array, upper: float | Array
) -> BoxQPSolution:
    r"""The unconstrained solution, clipped: MMCL's INV. Not the optimum when a bound is active.

    .. math:: x = \mathrm{clip}(Q^{-1} linear, lower, upper)

    Args:
        matrix: Q, [d, d], symmetric and invertible.
        linear: [d].
        lower: [] or [d], <= upper.
        upper: [] or [d].

    Returns:
        x, whose KKT residual says how far it is from the optimum; ``num_steps`` is 1.

    References:
        Shah et al., Max-Margin Contrastive Learning, 2022, "MMCL-INV".
    """
    linear = linear.astype(working_dtype(linear))
    matvec = _matvec(matrix, linear)
    lower, upper = _box(lower, upper, linear)
    x = jnp.clip(finite(jnp.linalg.solve(matrix.astype(linear.dtype), linear)), lower, upper)
    moved = jnp.clip(x - (matvec(x) - linear), lower, upper)
    return BoxQPSolution(x, jnp.max(jnp.abs(x - moved), initial=0), jnp.int32(1))


def extrapolate(
    new: Array, old: Array, point: Array, momentum: Array, *, restart: bool
) -> tuple[Array, Array]:
    """Nesterov's next point from the last two iterates, and the next momentum parameter.

    Args:
        new: [..., d], the iterate just found.
        old: [..., d], the one before.
        point: [..., d], where the gradient that led to ``new`` was taken.
        momentum: [..., 1], the parameter a.
        restart: whether to drop the momentum where it points uphill.
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


def spectral_radius(matvec: Callable[[Array], Array], size: int, dtype: Any) -> Array:
    """A slight over-estimate of the largest |eigenvalue| of a symmetric matrix, by power iteration.

    Power iteration comes from below. The norm of the residual, and one per cent, are added: the
    residual is nought once the iteration has converged and covers the gap where it has not.
    """
    # Random but fixed: no matrix that occurs in practice has it orthogonal to its top eigenvector.
    vector = jax.random.normal(jax.random.key(0), (size,), dtype)

    def turn(_: Any, vector: Array) -> Array:
        # Scaling by the largest entry first keeps the squares of tiny and huge entries in range.
        vector = vector / jnp.maximum(jnp.max(jnp.abs(vector), initial=0), tiny(dtype))
        return matvec(vector / jnp.maximum(jnp.linalg.norm(vector), 1))

    vector = lax.fori_loop(0, POWER_STEPS, turn, vector)
    vector = vector / jnp.maximum(jnp.max(jnp.abs(vector), initial=0), tiny(dtype))
    vector = vector / jnp.maximum(jnp.linalg.norm(vector), 1)
    image = matvec(vector)
    value = jnp.linalg.norm(image)
    sign = jnp.where(jnp.vdot(vector, image) < 0, -1, 1).astype(dtype)
    return 1.01 * value + jnp.linalg.norm(image - sign * value * vector)


def iterate_rows(
    advance: Callable[[Any], Any],
    error: Callable[[Any], Array],
    state: Any,
    n: int,
    num_steps: int,
    tol: float | Array | None,
    check_every: int,
) -> tuple[Any, Array]:
    """Repeats ``advance`` on n problems at once, each until it is solved.

    Args:
        advance: one step, state -> state.
        error: state -> [n].
        state: arrays [n, d].
        n: how many problems.
        num_steps: > 0; the number of steps, or their limit if ``tol`` is given.
        tol: a problem stops once its error is at most this; None: take all the steps.
        check_every: steps from one look at the error to the next.

    Returns:
        The state, and the steps each problem took, [n] int32.
    """

    def repeat(count: Any, state: Any) -> Any:
        return lax.fori_loop(0, count, lambda _, state: advance(state), state)

    if tol is None:
        return repeat(num_steps, state), jnp.full((n,), num_steps, jnp.int32)
    limit = lax.stop_gradient(tol)

    def check(carry: Any) -> Any:
        state, done, steps, taken = carry
        count = jnp.minimum(check_every, num_steps - taken)
        new = repeat(count, state)
        # A solved problem stays as it is, else it would depend on which others share the call.
        state = jax.tree.map(lambda old, new: jnp.where(done[:, None], old, new), state, new)
        steps = jnp.where(done, steps, steps + count)
        found = error(state)
        return state, done | (found <= jnp.asarray(limit, found.dtype)), steps, taken + count

    start = state, jnp.zeros((n,), bool), jnp.zeros((n,), jnp.int32), jnp.int32(0)
    state, _, steps, _ = lax.while_loop(
        lambda carry: (carry[3] < num_steps) & ~jnp.all(carry[1]), check, start
    )
    return state, steps


def product(left: Array, right: Array) -> Array:
    """Left @ right in full precision."""
    return jnp.matmul(left, right, precision=lax.Precision.HIGHEST)


def inverse(matrix: Array) -> Array:
    """The inverse of a symmetric [m, m] matrix: by Cholesky, or by LU if it is not definite."""
    root = inverse_root(matrix)
    definite = jnp.all(jnp.isfinite(root))
    return lax.cond(definite, lambda: product(root.T, root), lambda: jnp.linalg.inv(matrix))


def inverse_root(matrix: Array) -> Array:
    """The inverse of Cholesky's lower factor; not finite if the matrix is not positive definite.

    By quarters. On a CPU, LAPACK's threads hold the cores for some time after a call that is large
    enough for threads, which doubles the time of whatever comes next.
    """
    return _inverse_root(matrix, max(16, matrix.shape[0] // 64))


def _inverse_root(matrix: Array, leaf: int) -> Array:
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
    """The inverses of [n, q, q] symmetric blocks; finite where one is singular."""
    size = block.shape[1]
    if size == 1:
        return finite(1 / not_zero(block))
    if size > 2:
        return finite(jnp.linalg.inv(block))
    first, cross, last = block[:, :1, :1], block[:, :1, 1:], block[:, 1:, 1:]
    adjugate = jnp.block([[last, -cross], [-cross, first]])
    return finite(adjugate / not_zero(first * last - cross * cross))


def times(block: Array, vector: Array) -> Array:
    """[n, q, q] times [n, q]."""
    return jnp.sum(block * vector[:, None, :], axis=2)


def not_zero(x: Array) -> Array:
    """`x`, a denominator, with 0 as the smallest normal number."""
    return jnp.where(jnp.abs(x) < tiny(x.dtype), tiny(x.dtype), x)


def start_at(init: Array | None, like: Array) -> Array:
    """The start, 0 if None, with the shape and dtype of ``like``."""
    if init is None:
        return jnp.zeros_like(like)
    if init.shape != like.shape:
        raise ValueError(f"init: expected shape {list(like.shape)}, got {list(init.shape)}")
    return init.astype(like.dtype)


def working_dtype(x: Array) -> Any:
    """The dtype to compute in: float64 for float64, float32 for all else."""
    return jnp.float64 if x.dtype == jnp.float64 else jnp.float32


def tiny(dtype: Any) -> float:
    """The smallest normal number, for a denominator that may be 0."""
    return float(jnp.finfo(dtype).tiny)


def finite(x: Array) -> Array:
    """`x` with NaN as 0 and everything within +-finfo.max ** 0.25, so that squares stay finite."""
    big = float(jnp.finfo(x.dtype).max) ** 0.25
    return jnp.nan_to_num(jnp.clip(x, -big, big), nan=0.0)


def require_steps(num_steps: int, step: Any = None) -> None:
    """Raises unless there is a step to take and it goes downhill."""
    if num_steps < 1:
        raise ValueError(f"num_steps: expected at least 1, got {num_steps}")
    require_positive(step=step)


def require_positive(**numbers: Any) -> None:
    """Raises for a Python number that is not positive; an array is not known when tracing."""
    for name, value in numbers.items():
        if isinstance(value, int | float) and not value > 0:
            raise ValueError(f"{name}: expected a positive number, got {value}")


def _matvec(matrix_or_matvec: Any, linear: Array) -> Callable[[Array], Array]:
    """X -> Qx, after checking the shapes."""
    if linear.ndim != 1:
        raise ValueError(f"linear: expected shape [d], got {list(linear.shape)}; vmap for more")
    if callable(matrix_or_matvec):
        return matrix_or_matvec
    size = linear.size
    if matrix_or_matvec.shape != (size, size):
        raise ValueError(f"matrix: expected {(size, size)}, got {matrix_or_matvec.shape}")
    matrix = matrix_or_matvec.astype(linear.dtype)
    return lambda x: product(matrix, x)


def _box(lower: Any, upper: Any, linear: Array) -> tuple[Array, Array]:
    """The bounds as finite arrays of the shape of ``linear``."""
    bounds = []
    for name, bound in (("lower", lower), ("upper", upper)):
        bound = jnp.asarray(bound).astype(linear.dtype)
        if bound.shape not in ((), linear.shape):
            raise ValueError(f"{name}: expected shape () or {linear.shape}, got {bound.shape}")
        bounds.append(finite(jnp.broadcast_to(bound, linear.shape)))
    return bounds[0], bounds[1]
