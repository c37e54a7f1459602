r"""Solvers for the SVM duals of all anchors of MMCL, which share one kernel matrix K [m, m].

Anchor i separates its positive x = ``positive[i]`` from the free rows, which are all rows except
``excluded[i]``:

.. math:: \min_{0 \le a \le C} g_i(a) = \frac{1}{2} a^\top \Delta_i a - 2 \cdot 1^\top a, \qquad
          \Delta_i[j, l] = K_{jl} - K_{xj} - K_{xl} + 1 + \beta [j = l]

over free j, l. beta is ``regularization``. The constant 1 is used for every kernel, as in the
released code. Delta_i can be written with the centred kernel K' = HKH, t_i = K'_xx + 1 - K_xx and
k' = row x of K':

.. math:: \Delta_i = K' + t_i 11^\top - k' 1^\top - 1 k'^\top + \beta I

The products of all Delta_i with their a_i are therefore one [n, m] x [m, m] product and a rank-2
correction, in O(nm + m^2) memory, where n dense problems take O(n m^2).

Given K, rows are independent, so n may be one device's share of the anchors. No gradient flows.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from jaxssl.solvers import _linalg as linalg
from jaxssl.solvers import _problem as svm
from jaxssl.solvers._problem import DualSolution, Problem

# PGD steps between two evaluations of the certificate, each of which costs one step
CHECK_EVERY = 8


def svm_dual_pgd(
    kernel: Array,
    positive: Array,
    excluded: Array,
    *,
    C: float | Array = jnp.inf,
    regularization: float | Array = 0.1,
    num_steps: int = 200,
    step: float | Array | str | None = None,
    accelerated: bool = True,
    restart: bool = True,
    momentum_start: float | Array = 1.0,
    init: Array | str | None = None,
    tol: float | Array | None = None,
) -> DualSolution:
    r"""Solve all SVM duals by projected gradient descent, with one matrix product per step.

    .. math:: a_i^+ = \mathrm{clip}(y_i - \eta_i (\Delta_i y_i - 2), 0, C)

    By default, y is extrapolated with Nesterov's momentum and adaptive restart.

    Args:
        kernel: K, [m, m], symmetric.
        positive: [n] int32, the row of each anchor's positive.
        excluded: [n, q] int32, distinct rows that are left out of anchor i's problem, including
            positive[i], or a bool mask of them, [n, m].
        C: [] upper bound, > 0. inf is no bound (finfo.max ** 0.25).
        regularization: beta, [] > 0.
        num_steps: number of steps, > 0, or their limit if ``tol`` is given.
        step: step size eta, [] > 0. None is 1 / L_i, where L_i >= lambda_max(Delta_i) comes from
            one power iteration for all anchors and is tight for rbf. "frobenius" is
            1 / ||Delta_i||_F, as in the released code.
        accelerated: use momentum. False is the paper's MMCL-PGD.
        restart: drop an anchor's momentum when it points uphill.
        momentum_start: initial momentum parameter, in (0, 1]. 1 is FISTA. The released code draws
            it from U(0, 1).
        init: [n, m] start, clipped to the box. None is 0. "inv" is `svm_dual_inv`'s solution, for
            ``excluded`` rows only, not for a mask. The released code draws relu(normal).
        tol: an anchor stops once its ``suboptimality`` is at most this, > 0, evaluated every 8
            steps. Its result does not depend on the other anchors. None takes all steps.

    Returns:
        The last iterates. With equal start, step size, momentum and number of steps, they equal the
        released code's.

    Raises:
        ValueError: if an argument has the wrong shape or is out of range.

    References:
        Shah et al., Max-Margin Contrastive Learning, 2022, Algorithm 1, "MMCL-PGD".
    """
    svm.require_integers(num_steps=num_steps)
    svm.require_positive(num_steps=num_steps, step=step, momentum_start=momentum_start, tol=tol)
    if isinstance(momentum_start, int | float | np.number) and momentum_start > 1:
        raise ValueError(f"solver setting momentum_start must be in (0, 1], got {momentum_start}")
    problem = svm.make_problem(kernel, positive, excluded, C, regularization, mask=True)
    if isinstance(init, str):
        if init != "inv":
            raise ValueError(
                f"init must be an array, None (zeros) or 'inv' (closed form), got {init!r}"
            )
        init = svm_dual_inv(kernel, positive, excluded, C=C, regularization=regularization).alpha
    init = jnp.zeros_like(problem.row) if init is None else jnp.asarray(init)
    if init.shape != problem.row.shape:
        raise ValueError(f"init must have shape {problem.row.shape} like alpha, got {init.shape}")
    settings: dict[str, Any] = {"num_steps": num_steps, "step": step, "tol": tol}
    settings |= {"accelerated": accelerated, "restart": restart, "momentum_start": momentum_start}
    return _pgd(problem, init, **settings)


@svm.compiled
def _pgd(
    problem: Problem,
    init: Array,
    *,
    num_steps: int,
    step: float | Array | str | None,
    tol: float | Array | None,
    accelerated: bool,
    restart: bool,
    momentum_start: float | Array,
) -> DualSolution:
    """Solve the problems as `svm_dual_pgd` does."""
    eta = _step_size(problem, step)

    def advance(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        """Take a gradient step from the extrapolated point y of the iterate x."""
        x, y, momentum = state
        new = jnp.clip(y - eta * svm.dual_gradient(problem, y), 0, problem.upper)
        if not accelerated:
            return new, new, momentum
        return new, *linalg.extrapolate(new, x, y, momentum, restart=restart)

    x = jnp.clip(lax.stop_gradient(init.astype(problem.row.dtype)), 0, problem.upper)
    state = x, x, jnp.full_like(x[:, :1], lax.stop_gradient(momentum_start))
    return svm.solve_rows(problem, advance, state, num_steps, tol, CHECK_EVERY)


def svm_dual_admm(
    kernel: Array,
    positive: Array,
    excluded: Array,
    *,
    C: float | Array = jnp.inf,
    regularization: float | Array = 0.1,
    num_steps: int = 100,
    tol: float | Array | None = None,
    check_every: int = 4,
) -> DualSolution:
    r"""Solve all SVM duals by over-relaxed ADMM. ADMM needs one factorisation and few steps.

    .. math:: x = (\Delta_i + \rho I)^{-1} (2 \cdot 1 + \rho (z - u)), \quad
              w = 1.6 x - 0.6 z + u, \quad z^+ = \mathrm{clip}(w, 0, C), \quad u^+ = w - z^+

    All inverses follow from (K' + (beta + rho) I)^-1. rho = 1.2 sqrt((tr K' / m + beta)(lambda_1 +
    beta)). If K' is indefinite (tanh) or some K_xx > 1 (poly), Delta_i may be indefinite. Then rho
    bounds its norm, and over-relaxation is off, which is slow. `svm_dual_pgd` is faster.

    The arguments are as in `svm_dual_pgd`, but ``excluded`` is [n, q] int32 with small q, and the
    certificate is evaluated every ``check_every`` > 0 steps.

    Returns:
        z, which is inside the box.

    References:
        Boyd et al., Distributed Optimization and Statistical Learning via the Alternating Direction
        Method of Multipliers, 2011, sections 3.1.1, 3.4.3 and 5.2.
    """
    svm.require_integers(num_steps=num_steps, check_every=check_every)
    svm.require_positive(num_steps=num_steps, tol=tol, check_every=check_every)
    problem = svm.make_problem(kernel, positive, excluded, C, regularization, mask=False)
    settings: dict[str, Any] = {"num_steps": num_steps, "tol": tol, "check_every": check_every}
    return _admm(problem, jnp.asarray(kernel), jnp.asarray(excluded), **settings)


@svm.compiled
def _admm(
    problem: Problem,
    kernel: Array,
    excluded: Array,
    *,
    num_steps: int,
    tol: float | Array | None,
    check_every: int,
) -> DualSolution:
    """Solve the problems as `svm_dual_admm` does."""
    rho, relax = _penalty(problem, lax.stop_gradient(kernel).astype(problem.row.dtype))
    eye = jnp.eye(kernel.shape[0], dtype=rho.dtype)
    matrix = linalg.inverse(problem.matrix + rho * eye)
    solve = _inverter(problem, excluded, rho, matrix)
    free = problem.upper > 0

    def advance(state: tuple[Array, Array]) -> tuple[Array, Array]:
        z, u = state
        right = jnp.where(free, 2 + rho * (z - u), 0)
        x = solve(linalg.product(right, matrix), jnp.sum(right, axis=1, keepdims=True), 0.0)
        relaxed = linalg.finite(relax * x + (1 - relax) * z + u)
        z = jnp.clip(relaxed, 0, problem.upper)
        return z, jnp.where(free, relaxed - z, 0)

    zeros = jnp.zeros_like(problem.row)
    return svm.solve_rows(problem, advance, (zeros, zeros), num_steps, tol, check_every)


def svm_dual_inv(
    kernel: Array,
    positive: Array,
    excluded: Array,
    *,
    C: float | Array = jnp.inf,
    regularization: float | Array = 0.1,
) -> DualSolution:
    r"""Clip the unconstrained optimum of each SVM dual (MMCL-INV), which is inexact at bounds.

    .. math:: a_i = \mathrm{clip}(2 \Delta_i^{-1} 1, 0, C)

    All anchors follow from (K' + beta I)^-1: a Schur complement removes the excluded rows, then
    comes a rank-2 correction.

    The arguments are as in `svm_dual_pgd`, except that ``excluded`` is [n, q] int32 with small q.

    Returns:
        alpha. If Delta_i is singular, it is finite but meaningless. ``num_steps`` is 1.

    References:
        Shah et al., Max-Margin Contrastive Learning, 2022, "MMCL-INV".
    """
    problem = svm.make_problem(kernel, positive, excluded, C, regularization, mask=False)
    return _inv(problem, jnp.asarray(excluded))


@svm.compiled
def _inv(problem: Problem, excluded: Array) -> DualSolution:
    """Solve the problems as `svm_dual_inv` does."""
    matrix = linalg.inverse(problem.matrix)
    solve = _inverter(problem, excluded, 0 * problem.beta, matrix)
    # All entries of (K' + beta I)^-1 (2 1) are 2 / beta, because K'1 = 0.
    image = jnp.full_like(problem.row, 2) / problem.beta
    total = jnp.full_like(problem.offset, 2 * problem.row.shape[1])
    free = problem.upper > 0
    alpha = jnp.where(free, linalg.finite(solve(image, total, 2.0)), 0)
    # One step of iterative refinement removes rounding errors from the low-rank corrections.
    residual = jnp.where(free, -svm.dual_gradient(problem, alpha), 0)
    image = linalg.product(residual, matrix)
    alpha = linalg.finite(alpha + solve(image, jnp.sum(residual, axis=1, keepdims=True), 0.0))
    steps = jnp.ones(problem.row.shape[:1], jnp.int32)
    return svm.certify(problem, jnp.clip(alpha, 0, problem.upper), steps)


def _step_size(problem: Problem, step: float | Array | str | None) -> Array:
    """Return the step size of projected gradient descent, [n, 1] or [1, 1]."""
    dtype = problem.row.dtype
    if step is None:
        return 1 / _bound_norm(problem, linalg.spectral_radius(problem.matrix))
    if not isinstance(step, str):
        return lax.stop_gradient(jnp.asarray(step).astype(dtype).reshape(1, 1))
    if step != "frobenius":
        raise ValueError(f"the solver's step must be a number, None or 'frobenius', got {step!r}")
    square = _squared_norm(problem)
    return jnp.where(square > 0, lax.rsqrt(jnp.maximum(square, linalg.tiny(dtype))), 0)


def _bound_norm(problem: Problem, across: Array) -> Array:
    """Bound the norm [n, 1] of every Delta_i, given the norm of K' + beta I.

    Delta_i is a principal block of D = K' + t11' - k'1' - 1k' + beta I over all m rows. Because K'1
    = 0, D is [[m t + beta, -sqrt(m) k'], [-sqrt(m) k', K' + beta I]] along 1 and across it. Its
    norm is at most the norm of the 2x2 matrix of norms, whatever the signs of t and of K'. If D >=
    0, then |k'|^2 <= lambda_1 t and the bound is below lambda_1 + m t + beta.
    """
    m = problem.row.shape[1]
    along = m * jnp.abs(problem.offset) + problem.beta
    between = jnp.sum(problem.row * problem.row, axis=1, keepdims=True)
    half = (across - along) / 2
    return (across + along) / 2 + jnp.sqrt(half * half + m * between)


def _squared_norm(problem: Problem) -> Array:
    """Compute the squared Frobenius norm [n, 1] of every problem's matrix Delta_i."""
    free = (problem.upper > 0).astype(problem.row.dtype)
    c = free * (problem.offset / 2 - problem.row)
    squares = linalg.product(free, problem.matrix * problem.matrix)
    crossed = linalg.product(free, problem.matrix)
    count = jnp.sum(free, axis=1, keepdims=True)
    return (
        jnp.sum(free * squares + 4 * c * crossed + 2 * count * c * c, axis=1, keepdims=True)
        + 2 * jnp.sum(c, axis=1, keepdims=True) ** 2
    )


def _inverter(
    problem: Problem, excluded: Array, rho: Array, matrix: Array
) -> Callable[[Array, Array, float], Array]:
    """Return the function that solves (Delta_i + rho I) y_i = v_i for all anchors.

    ``matrix`` is M = (K' + (beta + rho) I)^-1. Let gamma = beta + rho, E the excluded rows, e the
    unit vector of the positive among them, S = M_EE^-1 and B = K' + gamma I over the free rows.
    Then p = B^-1 1 = (1 - M_E' S 1) / gamma, since K'1 = 0, and q = B^-1 k' = -M_E' S e.

    Returns:
        ``(image, total, at_positive) -> [n, m]``, where image [n, m] is Mv, total [n, 1] is 1'v and
        at_positive is v at the positive. v must be 0 or constant on E. Only the free rows of the
        result are meaningful.
    """
    dtype, m = problem.row.dtype, problem.row.shape[1]
    matrix = linalg.finite(matrix + matrix.T) / 2
    m_rows = matrix[excluded]  # the rows E of M, [n, q, m]
    s_block = linalg.small_inverse(jnp.take_along_axis(m_rows, excluded[:, None, :], axis=2))
    unit = (excluded == problem.positive.astype(excluded.dtype)).astype(dtype)
    diagonal = jnp.take_along_axis(problem.row, problem.positive, axis=1)
    gamma, t = problem.beta + rho, problem.offset
    sums = jnp.sum(s_block, axis=2)
    # These are the products 1'p, 1'q and k''q, and the determinant of the rank-2 correction.
    a = m / gamma - jnp.sum(sums, axis=1, keepdims=True) / gamma**2
    b = 1 - jnp.sum(sums * unit, axis=1, keepdims=True) / gamma
    c = gamma + diagonal - jnp.sum(linalg.times(s_block, unit) * unit, axis=1, keepdims=True)
    determinant = linalg.not_zero((1 - b) ** 2 + a * (t - c))

    def solve(image: Array, total: Array, at_positive: float) -> Array:
        deleted = jnp.take_along_axis(image, excluded, axis=1)
        weights = linalg.times(s_block, deleted)
        # With y0 = B^-1 v, the solution is y = y0 + (kappa - t sigma) p + sigma q, where sigma =
        # 1'y and kappa = k'y.
        sum0 = (total - jnp.sum(weights, axis=1, keepdims=True)) / gamma
        along0 = at_positive - jnp.sum(weights * unit, axis=1, keepdims=True)
        sigma = ((1 - b) * sum0 + a * along0) / determinant
        kappa = ((1 + t * a - b) * along0 - (t * b - c) * sum0) / determinant
        shift = (kappa - t * sigma) / gamma
        coefficients = linalg.times(s_block, deleted + shift + sigma * unit)
        solution = image + shift
        for e in range(excluded.shape[1]):
            solution = solution - coefficients[:, e, None] * m_rows[:, e]
        return solution

    return solve


def _penalty(problem: Problem, kernel: Array) -> tuple[Array, Array]:
    """Choose ADMM's penalty rho and over-relaxation from the kernel, equally on all devices."""
    m, dtype = kernel.shape[0], problem.row.dtype
    eye = jnp.eye(m, dtype=dtype)
    top = linalg.spectral_radius(problem.matrix)
    centred, diagonal = jnp.diagonal(problem.matrix), jnp.diagonal(kernel)
    usual = 1.2 * jnp.sqrt(jnp.maximum(jnp.mean(centred), problem.beta) * top)
    # If K' >= 0 and K_xx <= 1, every Delta_x - beta I is a Gram matrix. Both conditions are tested
    # up to ``shift``, because of rounding errors.
    shift = jnp.maximum(problem.beta / m, 100 * float(jnp.finfo(dtype).eps) * top)
    root = linalg.inverse_root(problem.matrix + (shift - problem.beta) * eye)
    convex = jnp.all(jnp.isfinite(root)) & (jnp.max(diagonal) <= 1 + shift)
    # If a Delta_x may be indefinite, rho is 1.2 times a bound on the norms of all Delta_x.
    offset = (centred - problem.beta + 1 - diagonal)[:, None]
    every = problem._replace(row=problem.matrix - problem.beta * eye, offset=offset)
    safe = 1.2 * jnp.max(_bound_norm(every, top))
    return jnp.where(convex, usual, safe), jnp.where(convex, 1.6, 1.0).astype(dtype)
