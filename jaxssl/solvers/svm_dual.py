r"""MMCL's SVM duals of all anchors at once, on the one kernel matrix K [m, m] they share.

Anchor i separates its positive x = ``positive[i]`` from the free rows, all but ``excluded[i]``:

.. math:: \min_{0 \le a \le C} g_i(a) = \frac{1}{2} a^\top \Delta_i a - 2 \cdot 1^\top a, \qquad
          \Delta_i[j, l] = K_{jl} - K_{xj} - K_{xl} + 1 + \beta [j = l]

over free j, l; beta is ``regularization``, and "1" stands for every kernel, as in the released
code. Delta_i is the same for the centred kernel K' = HKH, t_i = K'_xx + 1 - K_xx and k' = row x of
K':

.. math:: \Delta_i = K' + t_i 11^\top - k' 1^\top - 1 k'^\top + \beta I

so that the products of all Delta_i with their a_i are one [n, m] x [m, m] product and a rank-2
correction, in O(nm + m^2) memory where n dense problems take O(n m^2).

Rows are independent given K: n may be one device's share of the anchors. No gradient flows.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from jax import Array, lax
from jax import numpy as jnp

from jaxssl.solvers import box_qp

CHECK_EVERY = 8  # PGD steps from one look at the certificate to the next, which costs a step


class DualSolution(NamedTuple):
    """What a solver found for each anchor; all 0 for an anchor without free rows.

    Attributes:
        alpha: [n, m], in [0, C], 0 on the excluded rows.
        suboptimality: [n], ||d||^2 / (2 beta) / |objective|, with d the projected gradient. Since
            Delta_i >= beta, it bounds (objective - optimum) / |objective|; not if the kernel
            leaves Delta_i - beta I indefinite (tanh, or poly with K_xx > 1).
        kkt_residual: [n], max |a - clip(a - gradient, 0, C)|.
        objective: [n], g_i(alpha).
        num_steps: [n] int32, steps after which the anchor was certified, or all.
    """

    alpha: Array
    suboptimality: Array
    kkt_residual: Array
    objective: Array
    num_steps: Array


class _Problem(NamedTuple):
    """The duals in the form the module's docstring derives."""

    matrix: Array  # [m, m], K' + beta I
    row: Array  # [n, m], k'
    offset: Array  # [n, 1], t
    upper: Array  # [n, m], C on the free rows, 0 on the excluded
    positive: Array  # [n, 1]
    beta: Array  # []


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
    r"""Projected gradient descent for all anchors; one matrix product per step.

    .. math:: a_i^+ = \mathrm{clip}(y_i - \eta_i (\Delta_i y_i - 2), 0, C)

    with `box_qp_pgd`'s momentum.

    Args:
        kernel: K, [m, m], symmetric.
        positive: [n] int32, the row of each anchor's positive candidate.
        excluded: [n, q] int32, the rows, distinct, that anchor i's problem is without, positive[i]
            among them; or a bool mask of them, [n, m].
        C: [] > 0; inf: no bound (finfo.max ** 0.25).
        regularization: beta, [] > 0.
        num_steps: > 0; the number of steps, or their limit if ``tol`` is given.
        step: eta, [] > 0; None: 1 / L_i with L_i >= lambda_max(Delta_i) from one power iteration
            for all, tight for rbf; "frobenius": 1 / ||Delta_i||_F, the released choice.
        accelerated: whether to use momentum; False is the paper's MMCL-PGD.
        restart: whether an anchor drops its momentum when it points uphill.
        momentum_start: the first a of the momentum, in (0, 1]; released: drawn from U(0, 1).
        init: [n, m], the start, moved into the box; None: 0; "inv": `svm_dual_inv`'s solution, for
            ``excluded`` rows, not a mask. Released: relu(normal).
        tol: an anchor stops once its ``suboptimality`` is at most this, looked at every 8 steps, so
            that its result does not depend on the other anchors; None: take all the steps.

    Returns:
        The last iterates. The released code's, at equal start, step, momentum and number of steps.

    References:
        Shah et al., Max-Margin Contrastive Learning, 2022, Algorithm 1, "MMCL-PGD".
    """
    box_qp.require_steps(num_steps, step)
    problem = _prepare(kernel, positive, excluded, C, regularization, mask=True)
    eta = _step_size(problem, step)
    if isinstance(init, str):
        if init != "inv":
            raise ValueError(f"init: expected an array, None or 'inv', got {init!r}")
        init = svm_dual_inv(kernel, positive, excluded, C=C, regularization=regularization).alpha
    start = lax.stop_gradient(box_qp.start_at(init, problem.row))

    def advance(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        x, y, momentum = state
        new = jnp.clip(y - eta * _gradient(problem, y), 0, problem.upper)
        if not accelerated:
            return new, new, momentum
        return new, *box_qp.extrapolate(new, x, y, momentum, restart=restart)

    x = jnp.clip(start, 0, problem.upper)
    state = x, x, jnp.full_like(x[:, :1], lax.stop_gradient(momentum_start))
    return _run(problem, advance, state, num_steps, tol, CHECK_EVERY)


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
    r"""Over-relaxed ADMM for all anchors, on one factorisation; a fraction of the steps of PGD.

    .. math:: x = (\Delta_i + \rho I)^{-1} (2 \cdot 1 + \rho (z - u)), \quad
              w = 1.6 x - 0.6 z + u, \quad z^+ = \mathrm{clip}(w, 0, C), \quad u^+ = w - z^+

    All inverses follow from (K' + (beta + rho) I)^-1. rho = 1.2 sqrt((tr K' / m + beta)(lambda_1 +
    beta)). Where K' is indefinite (tanh) or some K_xx > 1 (poly), Delta_i may be indefinite: then
    rho bounds its norm and there is no over-relaxation, which is slow; `svm_dual_pgd` is faster.

    The arguments are `svm_dual_pgd`'s, but ``excluded`` is [n, q] int32 with a small q, and
    ``check_every``, > 0, is the number of steps from one look at the certificate to the next.

    Returns:
        z, which is in the box.

    References:
        Boyd et al., Distributed Optimization and Statistical Learning via the Alternating Direction
        Method of Multipliers, 2011, sections 3.1.1, 3.4.3 and 5.2.
    """
    box_qp.require_steps(num_steps)
    if check_every < 1:
        raise ValueError(f"check_every: expected at least 1, got {check_every}")
    problem = _prepare(kernel, positive, excluded, C, regularization, mask=False)
    rho, relax = _penalty(problem, lax.stop_gradient(kernel).astype(problem.row.dtype))
    eye = jnp.eye(kernel.shape[0], dtype=rho.dtype)
    matrix = box_qp.inverse(problem.matrix + rho * eye)
    solve = _inverter(problem, excluded, rho, matrix)
    free = problem.upper > 0

    def advance(state: tuple[Array, Array]) -> tuple[Array, Array]:
        z, u = state
        right = jnp.where(free, 2 + rho * (z - u), 0)
        x = solve(box_qp.product(right, matrix), jnp.sum(right, axis=1, keepdims=True), 0.0)
        relaxed = box_qp.finite(relax * x + (1 - relax) * z + u)
        z = jnp.clip(relaxed, 0, problem.upper)
        return z, jnp.where(free, relaxed - z, 0)

    zeros = jnp.zeros_like(problem.row)
    return _run(problem, advance, (zeros, zeros), num_steps, tol, check_every)


def svm_dual_inv(
    kernel: Array,
    positive: Array,
    excluded: Array,
    *,
    C: float | Array = jnp.inf,
    regularization: float | Array = 0.1,
) -> DualSolution:
    r"""MMCL-INV: the unconstrained optimum, clipped. Not the optimum where a bound is active.

    .. math:: a_i = \mathrm{clip}(2 \Delta_i^{-1} 1, 0, C)

    All anchors follow from (K' + beta I)^-1: the excluded rows go by their Schur complement, then
    comes a rank-2 correction.

    The arguments are `svm_dual_pgd`'s, but ``excluded`` is [n, q] int32 with a small q.

    Returns:
        alpha; where Delta_i is singular, finite and without meaning. ``num_steps`` is 1.

    References:
        Shah et al., Max-Margin Contrastive Learning, 2022, "MMCL-INV".
    """
    problem = _prepare(kernel, positive, excluded, C, regularization, mask=False)
    matrix = box_qp.inverse(problem.matrix)
    solve = _inverter(problem, excluded, 0 * problem.beta, matrix)
    # 2 (K' + beta I)^-1 1 is constant because K'1 = 0.
    image = jnp.full_like(problem.row, 2) / problem.beta
    total = jnp.full_like(problem.offset, 2 * kernel.shape[0])
    free = problem.upper > 0
    alpha = jnp.where(free, box_qp.finite(solve(image, total, 2.0)), 0)
    # What is left of the equations, solved in turn, takes the rounding out of the corrections.
    left = jnp.where(free, -_gradient(problem, alpha), 0)
    image = box_qp.product(left, matrix)
    alpha = box_qp.finite(alpha + solve(image, jnp.sum(left, axis=1, keepdims=True), 0.0))
    steps = jnp.ones(positive.shape, jnp.int32)
    return _solution(problem, jnp.clip(alpha, 0, problem.upper), steps)


def _prepare(
    kernel: Array,
    positive: Array,
    excluded: Array,
    C: float | Array,
    regularization: float | Array,
    *,
    mask: bool,
) -> _Problem:
    """Checks the arguments, centres the kernel and gathers what each anchor needs of it."""
    n, m = positive.shape[0], kernel.shape[0]
    if kernel.shape != (m, m):
        raise ValueError(f"kernel: expected [m, m], got {list(kernel.shape)}")
    if positive.ndim != 1 or not jnp.issubdtype(positive.dtype, jnp.integer):
        raise ValueError(f"positive: expected [n] int32, got {positive.dtype}{positive.shape}")
    is_mask = excluded.dtype == jnp.bool_
    if is_mask and not mask:
        raise ValueError("excluded: expected [n, q] int32 rows, got a mask, for svm_dual_pgd alone")
    if excluded.ndim != 2 or excluded.shape[0] != n or (is_mask and excluded.shape[1] != m):
        raise ValueError(f"excluded: expected {n} rows, got shape {list(excluded.shape)}")
    box_qp.require_positive(C=C, regularization=regularization)
    dtype = box_qp.working_dtype(kernel)
    kernel, C, beta = lax.stop_gradient(
        (kernel.astype(dtype), jnp.asarray(C).astype(dtype), jnp.asarray(regularization))
    )
    beta = beta.astype(dtype)
    mean = jnp.mean(kernel, axis=0)
    centred = kernel - mean[:, None] - mean[None, :] + jnp.mean(mean)
    row = centred[positive]
    place = positive[:, None]
    own = jnp.take_along_axis(row, place, axis=1)
    rows = jnp.arange(m)[None, None, :]
    free = (
        ~excluded if is_mask else jnp.all(rows != excluded[:, :, None].astype(rows.dtype), axis=1)
    )
    return _Problem(
        matrix=centred + beta * jnp.eye(m, dtype=dtype),
        row=row,
        offset=own + 1 - jnp.diagonal(kernel)[positive][:, None],
        upper=jnp.where(free, box_qp.finite(C), 0),
        positive=place,
        beta=beta,
    )


def _gradient(problem: _Problem, alpha: Array) -> Array:
    """Delta_i a_i - 2 on the free rows, [n, m], for a that is 0 on the excluded rows."""
    image = box_qp.product(alpha, problem.matrix)
    total = jnp.sum(alpha, axis=1, keepdims=True)
    # k'a, read off the product: the positive's own a is 0, so beta does not enter.
    along = jnp.take_along_axis(image, problem.positive, axis=1)
    return image - total * problem.row + (total * problem.offset - along - 2)


def _step_size(problem: _Problem, step: float | Array | str | None) -> Array:
    """Eta, [n, 1] or [1, 1]."""
    dtype, m = problem.row.dtype, problem.row.shape[1]
    if isinstance(step, str) and step != "frobenius":
        raise ValueError(f"step: expected a number, None or 'frobenius', got {step!r}")
    if step is not None and not isinstance(step, str):
        return lax.stop_gradient(jnp.asarray(step).astype(dtype).reshape(1, 1))
    if step is not None:
        square = _squared_norm(problem)
        return jnp.where(square > 0, lax.rsqrt(jnp.maximum(square, box_qp.tiny(dtype))), 0)
    # Delta_i is a principal block of D = K' + t11' - k'1' - 1k' + beta I over all m rows. K'1 = 0,
    # so along 1 and across it D is [[m t + beta, -sqrt(m) k'], [-sqrt(m) k', K' + beta I]]. Its
    # norm is at most that of the 2x2 matrix of norms, whatever the signs of t and of K'; where
    # D >= 0, |k'|^2 <= lambda_1 t and the bound is below lambda_1 + m t + beta.
    across = box_qp.spectral_radius(lambda v: box_qp.product(problem.matrix, v), m, dtype)
    along = m * jnp.abs(problem.offset) + problem.beta
    between = jnp.sum(problem.row * problem.row, axis=1, keepdims=True)
    half = (across - along) / 2
    return 1 / ((across + along) / 2 + jnp.sqrt(half * half + m * between))


def _squared_norm(problem: _Problem) -> Array:
    """||Delta_i||_F^2, [n, 1], of Delta_jl = matrix_jl + c_j + c_l with c = t / 2 - k'."""
    free = (problem.upper > 0).astype(problem.row.dtype)
    c = free * (problem.offset / 2 - problem.row)
    squares = box_qp.product(free, problem.matrix * problem.matrix)
    crossed = box_qp.product(free, problem.matrix)
    count = jnp.sum(free, axis=1, keepdims=True)
    return (
        jnp.sum(free * squares + 4 * c * crossed + 2 * count * c * c, axis=1, keepdims=True)
        + 2 * jnp.sum(c, axis=1, keepdims=True) ** 2
    )


def _run(problem: _Problem, advance: Callable, state: Any, *limits: Any) -> DualSolution:
    """`iterate_rows` on ``state``, whose first array is the answer."""
    n = problem.positive.shape[0]

    def error(state: Any) -> Array:
        return _solution(problem, state[0], jnp.zeros((n,), jnp.int32)).suboptimality

    state, steps = box_qp.iterate_rows(advance, error, state, n, *limits)
    return _solution(problem, state[0], steps)


def _solution(problem: _Problem, alpha: Array, steps: Array) -> DualSolution:
    """The certificates of ``alpha``."""
    gradient = jnp.where(problem.upper > 0, _gradient(problem, alpha), 0)
    objective = jnp.sum(alpha * (gradient / 2 - 1), axis=1)
    # The subgradient of least norm: at a bound, only what leads back into the box counts.
    inward = jnp.where(alpha <= 0, jnp.minimum(gradient, 0), gradient)
    inward = jnp.where(alpha >= problem.upper, jnp.maximum(inward, 0), inward)
    gap = jnp.sum(inward * inward, axis=1) / (2 * problem.beta)
    moved = jnp.clip(alpha - gradient, 0, problem.upper)
    scale = jnp.maximum(jnp.abs(objective), box_qp.tiny(gap.dtype))
    return DualSolution(
        alpha=alpha,
        suboptimality=jnp.minimum(gap / scale, float(jnp.finfo(gap.dtype).max)),
        kkt_residual=jnp.max(jnp.abs(alpha - moved), axis=1, initial=0),
        objective=objective,
        num_steps=steps,
    )


def _inverter(
    problem: _Problem, excluded: Array, rho: Array, matrix: Array
) -> Callable[[Array, Array, float], Array]:
    """The solver of (Delta_i + rho I) y_i = v_i, from ``matrix`` = M = (K' + (beta + rho) I)^-1.

    Let gamma = beta + rho, E the excluded rows, e the unit vector of the positive among them,
    S = M_EE^-1 and B = K' + gamma I over the free rows. Then p = B^-1 1 = (1 - M_E' S 1) / gamma,
    since K'1 = 0, and q = B^-1 k' = -M_E' S e.

    Returns:
        (Mv, [n, m]; 1'v, [n, 1]; v at the positive, v being 0 or constant on E) -> [n, m], of which
        the free rows count.
    """
    dtype, m = problem.row.dtype, problem.row.shape[1]
    matrix = box_qp.finite(matrix + matrix.T) / 2
    rows = matrix[excluded]
    block = box_qp.small_inverse(jnp.take_along_axis(rows, excluded[:, None, :], axis=2))
    unit = (excluded == problem.positive.astype(excluded.dtype)).astype(dtype)
    own = jnp.take_along_axis(problem.row, problem.positive, axis=1)
    gamma, t = problem.beta + rho, problem.offset
    sums = jnp.sum(block, axis=2)
    # 1'p, 1'q and k''q, and the determinant of the rank-2 correction.
    a = m / gamma - jnp.sum(sums, axis=1, keepdims=True) / gamma**2
    b = 1 - jnp.sum(sums * unit, axis=1, keepdims=True) / gamma
    c = gamma + own - jnp.sum(box_qp.times(block, unit) * unit, axis=1, keepdims=True)
    determinant = box_qp.not_zero((1 - b) ** 2 + a * (t - c))

    def solve(image: Array, total: Array, at_positive: float) -> Array:
        deleted = jnp.take_along_axis(image, excluded, axis=1)
        weights = box_qp.times(block, deleted)
        # With y0 = B^-1 v: y = y0 + (kappa - t sigma) p + sigma q, sigma = 1'y and kappa = k'y.
        sum0 = (total - jnp.sum(weights, axis=1, keepdims=True)) / gamma
        along0 = at_positive - jnp.sum(weights * unit, axis=1, keepdims=True)
        sigma = ((1 - b) * sum0 + a * along0) / determinant
        kappa = ((1 + t * a - b) * along0 - (t * b - c) * sum0) / determinant
        shift = (kappa - t * sigma) / gamma
        coefficients = box_qp.times(block, deleted + shift + sigma * unit)
        solution = image + shift
        for e in range(excluded.shape[1]):
            solution = solution - coefficients[:, e, None] * rows[:, e]
        return solution

    return solve


def _penalty(problem: _Problem, kernel: Array) -> tuple[Array, Array]:
    """ADMM's rho and over-relaxation; of K alone, so that all devices choose the same."""
    m, dtype = kernel.shape[0], problem.row.dtype
    eye = jnp.eye(m, dtype=dtype)
    top = box_qp.spectral_radius(lambda v: box_qp.product(problem.matrix, v), m, dtype)
    own, given = jnp.diagonal(problem.matrix), jnp.diagonal(kernel)
    usual = 1.2 * jnp.sqrt(jnp.maximum(jnp.mean(own), problem.beta) * top)
    # K' >= 0 and K_xx <= 1 make every Delta_x - beta I a Gram matrix; the shift covers rounding.
    shift = jnp.maximum(problem.beta / m, 100 * float(jnp.finfo(dtype).eps) * top)
    root = box_qp.inverse_root(problem.matrix + (shift - problem.beta) * eye)
    convex = jnp.all(jnp.isfinite(root)) & (jnp.max(given) <= 1 + shift)
    # Else 1.2 times a bound on the norm of every Delta_x, as in `_step_size`.
    along = m * jnp.max(jnp.abs(own - problem.beta + 1 - given)) + problem.beta
    between = jnp.max(jnp.linalg.norm(problem.matrix, axis=1)) + problem.beta
    safe = 1.2 * (jnp.maximum(top, along) + m**0.5 * between)
    return jnp.where(convex, usual, safe), jnp.where(convex, 1.6, 1.0).astype(dtype)
