"""The SVM dual problems of MMCL in centred form, with gradients and optimality certificates."""

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp
from jax.core import Tracer

from jaxssl.collectives import align
from jaxssl.solvers import _linalg as linalg

State = TypeVar("State", bound=tuple)  # arrays [n, ...] of a solver, alpha first
# Settings that shape a compiled solver, besides words
STATIC = ("num_steps", "check_every", "accelerated", "restart")


class DualSolution(NamedTuple):
    """Solution and optimality certificates of each anchor's SVM. An anchor without negatives has 0.

    Attributes:
        alpha: [n, m] in [0, C], 0 on the excluded rows.
        suboptimality: [n] ||d||^2 / (2 beta) / |objective| with the projected gradient d. Since
            Delta_i >= beta, it bounds (objective - optimum) / |objective|. This does not hold if
            Delta_i - beta I is indefinite (tanh, or poly with K_xx > 1).
        kkt_residual: [n] max |a - clip(a - gradient, 0, C)|.
        objective: [n] g_i(alpha).
        num_steps: [n] int32, steps until the anchor was certified, or all steps.
    """

    alpha: Array
    suboptimality: Array
    kkt_residual: Array
    objective: Array
    num_steps: Array


class Problem(NamedTuple):
    """The SVM dual problems of all anchors in centred form, see `jaxssl.solvers.svm_dual`."""

    matrix: Array  # [m, m] centred kernel plus ridge, K' + beta I
    row: Array  # [n, m] centred kernel rows k' of the positives
    offset: Array  # [n, 1] offset t of each anchor's SVM dual
    upper: Array  # [n, m] upper bound of alpha: C, or 0 on excluded rows
    positive: Array  # [n, 1] index of each anchor's positive
    beta: Array  # [] ridge term (regularization)


def compiled(solver: Callable[..., DualSolution]) -> Callable[..., DualSolution]:
    """Compile a solver once for equal shapes and settings, also in calls without `jax.jit`.

    Numbers and arrays are traced. Words, switches and counts are static, if they are not arrays.
    """

    @partial(jax.jit, static_argnums=0)
    def run(static: tuple[tuple[str, Any], ...], *arrays: Any, **numbers: Any) -> DualSolution:
        return solver(*arrays, **dict(static), **numbers)

    @wraps(solver)
    def call(*arrays: Any, **settings: Any) -> DualSolution:
        static = {
            k: v
            for k, v in settings.items()
            if isinstance(v, str) or (k in STATIC and not isinstance(v, Array | np.ndarray))
        }
        numbers = {k: v for k, v in settings.items() if k not in static}
        return run(tuple(static.items()), *arrays, **numbers)

    return call


def make_problem(
    kernel: Array,
    positive: Array,
    excluded: Array,
    C: float | Array,
    regularization: float | Array,
    *,
    mask: bool,
) -> Problem:
    """Check the solver's arguments, centre the kernel, and pose the SVM dual of each anchor.

    The arguments are as in `svm_dual_pgd`. ``mask`` says whether ``excluded`` may be a bool mask.

    Raises:
        ValueError: if an argument has the wrong shape or dtype, a number is not positive, or a row
            is out of range.
    """
    given = positive, excluded  # Under `jax.jit` the arrays below are traced.
    kernel, positive, excluded = map(jnp.asarray, (kernel, positive, excluded))
    if kernel.ndim != 2 or kernel.shape[0] != kernel.shape[1]:
        raise ValueError(f"kernel must have shape [m, m], got {kernel.shape}")
    if positive.ndim != 1 or not jnp.issubdtype(positive.dtype, jnp.integer):
        raise ValueError(f"positive must be [n] integers, got {positive.dtype}{positive.shape}")
    n, m = positive.shape[0], kernel.shape[0]
    is_mask = excluded.dtype == jnp.bool_
    if not is_mask and not jnp.issubdtype(excluded.dtype, jnp.integer):
        raise ValueError(f"excluded must be integers or a bool mask, got {excluded.dtype}")
    if is_mask and not mask:
        raise ValueError(
            "excluded must be [n, q] integers for ADMM and INV, got a bool mask; use svm_dual_pgd "
            "with another init than 'inv'"
        )
    if excluded.ndim != 2 or excluded.shape[0] != n or (is_mask and excluded.shape[1] != m):
        raise ValueError(f"excluded must have {n} rows, one per anchor, got shape {excluded.shape}")
    _check_rows(*(None if isinstance(x, Tracer) else np.asarray(x) for x in given), m=m)
    for name, value in (("C", C), ("regularization", regularization)):
        if jnp.ndim(value):
            raise ValueError(
                f"solver setting {name} must be one number for all anchors, got shape "
                f"{jnp.shape(value)}"
            )
    require_positive(C=C, regularization=regularization)
    dtype = jnp.float64 if kernel.dtype == jnp.float64 else jnp.float32
    kernel, C, beta = (jnp.asarray(x).astype(dtype) for x in (kernel, C, regularization))
    kernel, C, beta = lax.stop_gradient((kernel, C, beta))
    # The loops of the solvers need arrays of one type under `jax.shard_map` with check_vma=True.
    kernel, positive, excluded, C, beta = align((kernel, positive, excluded, C, beta))
    mean = jnp.mean(kernel, axis=0)
    centred = kernel - mean[:, None] - mean[None, :] + jnp.mean(mean)
    row = centred[positive]
    diagonal = jnp.take_along_axis(row, positive[:, None], axis=1)
    free = ~excluded
    indices = jnp.arange(m)[None, :]
    if not is_mask:
        free = jnp.all(indices[None] != excluded[:, :, None].astype(indices.dtype), axis=1)
    free &= indices != positive[:, None].astype(indices.dtype)
    return Problem(
        matrix=centred + beta * jnp.eye(m, dtype=dtype),
        row=row,
        offset=diagonal + 1 - jnp.diagonal(kernel)[positive][:, None],
        upper=jnp.where(free, jnp.minimum(C, linalg.largest(dtype)), 0),
        positive=positive[:, None],
        beta=beta,
    )


def _check_rows(positive: np.ndarray | None, excluded: np.ndarray | None, m: int) -> None:
    """Raise ValueError for rows outside a kernel [m, m], or a positive that is not excluded.

    Traced rows, which are None here, are not checked.
    """
    for name, rows in (("positive", positive), ("excluded", excluded)):
        if rows is None or rows.dtype == np.bool_:
            continue
        if (outside := rows[(rows < 0) | (rows >= m)]).size:
            raise ValueError(f"{name} must be in [0, {m}), got {outside[0]}")
    if positive is None or excluded is None:
        return
    own = positive[:, None]
    is_mask = excluded.dtype == np.bool_
    includes = np.take_along_axis(excluded, own, axis=1) if is_mask else excluded == own
    if (missing := positive[~includes.any(axis=1)]).size:
        raise ValueError(f"excluded must include the positive of each anchor, lacks {missing[0]}")


def dual_gradient(problem: Problem, alpha: Array) -> Array:
    """Compute the gradient Delta_i a_i - 2 [n, m] of each SVM dual, valid on rows not excluded."""
    image = linalg.product(alpha, problem.matrix)
    total = jnp.sum(alpha, axis=1, keepdims=True)
    # The product k'a is the entry of ``image`` at the positive. The ridge term adds nothing there,
    # because alpha of the positive is 0.
    along = jnp.take_along_axis(image, problem.positive, axis=1)
    return image - total * problem.row + (total * problem.offset - along - 2)


def solve_rows(
    problem: Problem,
    advance: Callable[[State], State],
    state: State,
    num_steps: int,
    tol: float | Array | None,
    check_every: int,
) -> DualSolution:
    """Iterate all SVM duals until each is solved. Return solutions and optimality certificates.

    Args:
        problem: n problems.
        advance: one step, state -> state.
        state: tuple of arrays [n, ...], alpha first.
        num_steps: number of steps, > 0, or their limit if ``tol`` is given.
        tol: a problem is solved once its suboptimality is at most this. None takes all steps.
        check_every: number of steps between two evaluations of the suboptimality.
    """
    n = problem.positive.shape[0]
    state = align(state)

    def repeat(count: int | Array, state: State) -> State:
        return lax.fori_loop(0, count, lambda _, state: advance(state), state)

    if tol is None:
        state = repeat(num_steps, state)
        return certify(problem, state[0], jnp.full((n,), num_steps, jnp.int32))
    tol = lax.stop_gradient(tol)

    def continues(carry: tuple) -> Array:
        _, solved, _, total = carry
        return (total < num_steps) & ~jnp.all(solved)

    def advance_and_check(carry: tuple) -> tuple:
        state, solved, steps, total = carry
        count = jnp.minimum(check_every, num_steps - total)
        new = repeat(count, state)
        # Solved problems are frozen, so that one problem's result does not depend on the others.
        state = jax.tree.map(lambda old, new: jnp.where(solved[:, None], old, new), state, new)
        steps = jnp.where(solved, steps, steps + count)
        errors = certify(problem, state[0], steps).suboptimality
        return state, solved | (errors <= jnp.asarray(tol, errors.dtype)), steps, total + count

    start = align((state, jnp.zeros((n,), bool), jnp.zeros((n,), jnp.int32), jnp.int32(0)))
    state, _, steps, _ = lax.while_loop(continues, advance_and_check, start)
    return certify(problem, state[0], steps)


def certify(problem: Problem, alpha: Array, steps: Array) -> DualSolution:
    """Compute the optimality certificates of the SVM solutions ``alpha`` [n, m]."""
    # A kernel with a NaN has no solution. Its mean is NaN, and so is every offset.
    alpha = jnp.where(jnp.isnan(problem.offset), problem.offset, alpha)
    gradient = jnp.where(problem.upper > 0, dual_gradient(problem, alpha), 0)
    objective = jnp.sum(alpha * (gradient / 2 - 1), axis=1)
    # At a bound only the component of the gradient that points into the box counts. This is the
    # subgradient of least norm.
    inward = jnp.where(alpha <= 0, jnp.minimum(gradient, 0), gradient)
    inward = jnp.where(alpha >= problem.upper, jnp.maximum(inward, 0), inward)
    gap = jnp.sum(inward * inward, axis=1) / (2 * problem.beta)
    moved = jnp.clip(alpha - gradient, 0, problem.upper)
    scale = jnp.maximum(jnp.abs(objective), linalg.tiny(gap.dtype))
    return DualSolution(
        alpha=alpha,
        suboptimality=jnp.minimum(gap / scale, float(jnp.finfo(gap.dtype).max)),
        kkt_residual=jnp.max(jnp.abs(alpha - moved), axis=1, initial=0),
        objective=objective,
        num_steps=steps,
    )


def require_integers(**counts: Any) -> None:
    """Raise ValueError for a count that is not an integer."""
    for name, value in counts.items():
        if not jnp.issubdtype(jnp.result_type(value), jnp.integer):
            raise ValueError(f"solver setting {name} must be an integer, got {value}")


def require_positive(**numbers: object) -> None:
    """Raise ValueError for a number that is not positive. Arrays are not checked."""
    for name, value in numbers.items():
        if isinstance(value, int | float | np.number) and not value > 0:
            raise ValueError(f"solver setting {name} must be > 0, got {value}")
