"""Tests of the solvers against dense float64 problems and SciPy's exact solutions."""

from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from oracles import svm_dual

from jaxssl.solvers import svm_dual_admm, svm_dual_inv, svm_dual_pgd
from jaxssl.solvers._problem import certify, make_problem
from jaxssl.solvers.svm_dual import _penalty, _step_size

pytestmark = pytest.mark.fast

M, BETA, STEPS = 16, 0.2, 30  # BETA differs from the solvers' default
OPTIONS = ("num_steps", "step", "accelerated", "restart", "tol", "check_every")
# The solvers also accept NumPy arrays, which their annotations do not say.
POSITIVE: Any = np.arange(M, dtype=np.int32)
ONE: Any = POSITIVE[:, None]  # excludes the positive from the negatives, as the released code does
# Excludes both views of the image from the negatives.
TWO: Any = np.stack([(POSITIVE + M // 2) % M, POSITIVE], 1).astype(np.int32)
LABELS = np.array([0, 0, 0, 1, 1, 2, 3, 3, 3, 3, 4, 4, 4, 5, 5, 5])
MASK: Any = LABELS[:, None] == LABELS[None, :]
THREE = np.stack([(POSITIVE + k) % M for k in (1, 0, 7)], 1).astype(np.int32)
EXCLUDED = {"one": ONE, "two": TWO, "three": THREE, "mask": MASK}
both = pytest.mark.parametrize("excluded", ["one", "two"])


def embeddings() -> np.ndarray:
    """Four clusters on the sphere, with near-duplicates."""
    rng = np.random.default_rng(0)
    z = np.repeat(rng.normal(size=(4, 8)), M // 4, axis=0) + 0.4 * rng.normal(size=(M, 8))
    return z / np.linalg.norm(z, axis=1, keepdims=True)


def kernels() -> dict[str, np.ndarray]:
    cosine = embeddings() @ embeddings().T
    return {
        "rbf": np.exp(-0.1 * (2 - 2 * cosine)),
        "narrow": np.exp(-2 * (2 - 2 * cosine)),
        "linear": cosine,
        "tanh": np.tanh(2 * cosine),
        "poly": (cosine + 0.5) ** 3,
    }


def dense(kernel: np.ndarray, positive: np.ndarray, excluded: np.ndarray):
    """Yield Delta_i and the free rows of each anchor, computed by definition."""
    for i, x in enumerate(positive):
        excluded_rows = np.flatnonzero(excluded[i]) if excluded.dtype == bool else excluded[i]
        free = np.setdiff1d(np.arange(len(kernel)), excluded_rows)
        delta = kernel[np.ix_(free, free)] - kernel[x, free] - kernel[x, free][:, None] + 1
        yield delta + BETA * np.eye(len(free)), free


def dense_pgd(delta, start, steps, step, C, accelerated, momentum, restart=False):
    """Return the last iterate and the number of restarts (O'Donoghue and Candes, eq. 13)."""
    x, y, restarts = start, start, 0
    for _ in range(steps):
        new = np.clip(y - step * (delta @ y - 2), 0, C)
        rate = 0.0
        if accelerated:
            following = (np.sqrt(momentum**4 + 4 * momentum**2) - momentum**2) / 2
            rate = momentum * (1 - momentum) / (momentum**2 + following)
            momentum = following
            if restart and (y - new) @ (new - x) > 0:
                rate, momentum, restarts = 0.0, 1.0, restarts + 1
        x, y = new, new + rate * (new - x)
    return x, restarts


def exact_duals(kernel, positive, excluded, C=np.inf):
    alpha, objective = np.zeros((len(positive), len(kernel))), []
    for i, (delta, free) in enumerate(dense(kernel, positive, excluded)):
        alpha[i, free] = x = svm_dual(delta, C)
        objective.append(0.5 * x @ delta @ x - 2 * x.sum())
    return alpha, np.array(objective)


@partial(jax.jit, static_argnames=OPTIONS)
def pgd(kernel, positive, excluded, C=jnp.inf, momentum_start=1.0, init=None, **options):
    hyper = {"C": C, "regularization": BETA, "momentum_start": momentum_start, "init": init}
    return svm_dual_pgd(kernel, positive, excluded, **hyper, **options)


@partial(jax.jit, static_argnames=OPTIONS)
def admm(kernel, positive, excluded, C=jnp.inf, **options):
    return svm_dual_admm(kernel, positive, excluded, C=C, regularization=BETA, **options)


@jax.jit
def inv(kernel, positive, excluded, C=jnp.inf):
    return svm_dual_inv(kernel, positive, excluded, C=C, regularization=BETA)


def wide(solve, *args, **kwargs):
    """Solve in float64 and return NumPy arrays."""
    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, solve(*args, **kwargs))


SOLVERS = {
    "pgd": partial(pgd, num_steps=2000, tol=1e-6),
    "admm": partial(admm, num_steps=2000, tol=1e-6),
    "inv": inv,
}
each_solver = pytest.mark.parametrize("name", SOLVERS)
iterative = pytest.mark.parametrize("name", ["pgd", "admm"])


@pytest.mark.parametrize(
    ("excluded", "accelerated", "step"),
    [
        *((name, True, "frobenius") for name in ("one", "two", "mask")),
        *(("two", False, step) for step in ("frobenius", 0.02)),
    ],
)
def test_pgd_equals_dense_pgd_step_by_step(excluded, accelerated, step):
    kernel, excluded_rows = kernels()["rbf"], EXCLUDED[excluded]
    init = np.maximum(np.random.default_rng(2).normal(size=(M, M)), 0)
    hyper = {"C": 1.5, "momentum_start": 0.4, "init": init, "num_steps": STEPS, "step": step}
    hyper |= {"accelerated": accelerated, "restart": False}
    with jax.enable_x64(True):
        solution = pgd(kernel, POSITIVE, excluded_rows, **hyper)
        for i, (delta, free) in enumerate(dense(kernel, POSITIVE, excluded_rows)):
            eta = 1 / np.linalg.norm(delta) if step == "frobenius" else step
            start = np.clip(init[i, free], 0, 1.5)
            expected, _ = dense_pgd(delta, start, STEPS, eta, 1.5, accelerated, 0.4)
            np.testing.assert_allclose(solution.alpha[i, free], expected, atol=1e-10)
            gradient = delta @ expected - 2
            objective = expected @ (gradient - 2) / 2
            np.testing.assert_allclose(solution.objective[i], objective, rtol=1e-9)
            residual = np.abs(expected - np.clip(expected - gradient, 0, 1.5)).max()
            np.testing.assert_allclose(solution.kkt_residual[i], residual, atol=1e-9)
            assert (np.delete(solution.alpha[i], free) == 0).all()


def test_pgd_restarts_the_momentum_of_each_anchor_when_it_points_uphill():
    kernel, restarts = kernels()["narrow"], []
    with jax.enable_x64(True):
        solution = pgd(kernel, POSITIVE, ONE, num_steps=60, step=0.05, accelerated=True)
        for i, (delta, free) in enumerate(dense(kernel, POSITIVE, ONE)):
            start = np.zeros(M - 1)
            expected, number = dense_pgd(delta, start, 60, 0.05, np.inf, True, 1.0, restart=True)
            np.testing.assert_allclose(solution.alpha[i, free], expected, atol=1e-9)
            restarts.append(number)
    assert len(set(restarts)) > 1  # Anchors restart at different steps.


@pytest.mark.parametrize("at", ["zero", "upper bound", "inside"])
def test_suboptimality_certificate_bounds_the_true_gap_of_any_feasible_point(at):
    """At the upper bound, a component counts that leads down into the box."""
    kernel, C = kernels()["narrow"], 1.0
    inside = np.random.default_rng(5).uniform(0.1, 0.9, (M, M))
    alpha = {"zero": np.zeros((M, M)), "upper bound": np.ones((M, M)), "inside": inside}[at]
    alpha = np.where(ONE == np.arange(M), 0, alpha)
    _, optimum = exact_duals(kernel, POSITIVE, ONE, C)
    with jax.enable_x64(True):
        problem = make_problem(jnp.asarray(kernel), POSITIVE, ONE, C, BETA, mask=False)
        point = certify(problem, jnp.asarray(alpha), jnp.zeros(M, jnp.int32))
        true = (point.objective - optimum) / np.abs(point.objective)
        assert (true > 1e-3).all() or at == "zero"
        assert (true <= point.suboptimality * (1 + 1e-9)).all()
        for i, (delta, free) in enumerate(dense(kernel, POSITIVE, ONE)):
            a = alpha[i, free]
            gradient = delta @ a - 2
            inward = np.where(a <= 0, np.minimum(gradient, 0), gradient)
            inward = np.where(a >= C, np.maximum(inward, 0), inward)
            gap = (inward**2).sum() / (2 * BETA)
            value = a @ (gradient - 2) / 2
            np.testing.assert_allclose(point.objective[i], value, rtol=1e-9)
            if value:
                np.testing.assert_allclose(point.suboptimality[i], gap / abs(value), rtol=1e-9)


@pytest.mark.parametrize(
    ("kernel", "excluded"), [*((k, e) for k in kernels() for e in ("one", "two")), ("rbf", "three")]
)
def test_inv_solver_equals_the_clipped_solution_of_the_dense_linear_system(kernel, excluded):
    kernel, excluded_rows = kernels()[kernel], EXCLUDED[excluded]
    with jax.enable_x64(True):
        solution = inv(kernel, POSITIVE, excluded_rows, 3.0).alpha
        for i, (delta, free) in enumerate(dense(kernel, POSITIVE, excluded_rows)):
            expected = np.clip(np.linalg.solve(delta, 2 * np.ones(len(free))), 0, 3)
            np.testing.assert_allclose(solution[i, free], expected, atol=1e-10)
            assert (np.delete(solution[i], free) == 0).all()


@pytest.mark.parametrize(
    ("name", "excluded"),
    [*((s, e) for s in ("pgd", "admm") for e in ("one", "two")), ("pgd", "mask")],
)
@pytest.mark.parametrize("C", [0.2, np.inf])
@pytest.mark.parametrize("kernel", ["rbf", "narrow", "linear"])
def test_optimality_certificate_bounds_the_distance_to_the_optimum(name, excluded, C, kernel):
    kernel, excluded_rows = kernels()[kernel], EXCLUDED[excluded]
    solution = wide(SOLVERS[name], kernel, POSITIVE, excluded_rows, C)
    alpha, objective = exact_duals(kernel, POSITIVE, excluded_rows, C)
    true = (solution.objective - objective) / np.abs(solution.objective)
    assert (true <= solution.suboptimality + 1e-13).all()
    assert (solution.suboptimality <= 1e-6).all()
    assert solution.num_steps.max() < 2000
    assert ((solution.alpha >= 0) & (solution.alpha <= C)).all()
    # beta / 2 |alpha - optimum|^2 <= objective - optimum
    gap = np.sqrt(2e-6 * np.abs(objective) / BETA).max()
    np.testing.assert_allclose(solution.alpha, alpha, atol=gap)


@both
def test_pgd_started_at_the_inv_solution_reaches_the_optimum_in_fewer_steps(excluded):
    solve = partial(svm_dual_pgd, C=0.2, regularization=BETA, num_steps=2000, tol=1e-6)
    arguments = kernels()["narrow"], POSITIVE, EXCLUDED[excluded]
    start = wide(inv, *arguments, 0.2).alpha
    solution = wide(jax.jit(partial(solve, init="inv")), *arguments)
    cold = wide(jax.jit(solve), *arguments)
    assert solution.num_steps.sum() < cold.num_steps.sum()
    assert (solution.suboptimality <= 1e-6).all()
    np.testing.assert_allclose(solution.objective, cold.objective, rtol=1e-6)
    one_step = wide(jax.jit(partial(solve, init="inv", num_steps=1, tol=None)), *arguments)
    from_there = wide(jax.jit(partial(solve, num_steps=1, tol=None)), *arguments, init=start)
    np.testing.assert_allclose(one_step.alpha, from_there.alpha, rtol=1e-9)


def test_pgd_default_step_size_is_at_most_one_over_lambda_max():
    """Larger steps than 1 / lambda_max may diverge, much smaller ones waste iterations."""
    for kernel in kernels().values():
        for excluded_rows in (ONE, TWO):
            one = wide(pgd, kernel, POSITIVE, excluded_rows, num_steps=1, accelerated=False).alpha
            for i, (delta, free) in enumerate(dense(kernel, POSITIVE, excluded_rows)):
                step = one[i, free[0]] / 2  # The first step from alpha = 0 is 2 step sizes.
                assert 0.4 < step * np.linalg.eigvalsh(delta)[-1] <= 1


@pytest.mark.parametrize("s", [2, -2])
def test_pgd_default_step_size_is_tight_where_one_eigenvalue_of_either_sign_dominates(s):
    """With v'1 = 0 and v_0 = 0, the kernel 1 + s vv' has Delta_0 = s vv' + beta I."""
    v = np.array([0, 1, -1, *np.zeros(M - 3)])
    kernel = 1 + s * np.outer(v, v)
    one = wide(pgd, kernel, POSITIVE[:1], ONE[:1], num_steps=1, accelerated=False).alpha
    assert 0.98 < one[0, -1] / 2 * np.abs(s * v @ v + BETA) <= 1


def test_admm_penalty_of_indefinite_kernels_is_slightly_above_all_norms():
    """A kernel of one number c leaves Delta_x = (1 - c) 11' + beta I, whose norm is |1 - c| m."""
    cases = [(kernels()[name], 1.2, 4) for name in ("tanh", "poly")]
    with jax.enable_x64(True):
        for kernel, least, most in [*cases, (np.full((M, M), 3.0), 1.2, 1.3)]:
            problem = make_problem(jnp.asarray(kernel), POSITIVE, ONE, 1.0, BETA, mask=False)
            rho, _ = _penalty(problem, jnp.asarray(kernel))
            norms = [np.linalg.norm(delta, 2) for delta, _ in dense(kernel, POSITIVE, ONE)]
            assert least < rho / max(norms) < most
            np.testing.assert_allclose(rho, 1.2 / _step_size(problem, None).min(), rtol=1e-9)


@each_solver
def test_solution_of_an_anchor_does_not_depend_on_other_anchors(name):
    kernel = kernels()["narrow"]
    every = wide(SOLVERS[name], kernel, POSITIVE, TWO)
    some = wide(SOLVERS[name], kernel, POSITIVE[:4], TWO[:4])
    np.testing.assert_array_equal(every.num_steps[:4], some.num_steps)
    np.testing.assert_allclose(every.alpha[:4], some.alpha, atol=1e-10)


@each_solver
def test_float32_solutions_are_close_to_float64_solutions(name):
    kernel = kernels()["rbf"]
    double = wide(SOLVERS[name], kernel, POSITIVE, ONE)
    narrow = SOLVERS[name](np.float32(kernel), POSITIVE, ONE)
    assert narrow.alpha.dtype == jnp.float32
    np.testing.assert_allclose(narrow.objective, double.objective, rtol=1e-4)
    np.testing.assert_allclose(narrow.alpha, double.alpha, atol=2e-2)


def test_inv_solver_refines_its_float32_solution():
    kernel = kernels()["poly"]
    error = inv(np.float32(kernel), POSITIVE, ONE).alpha - wide(inv, kernel, POSITIVE, ONE).alpha
    assert np.abs(error).max() < 1e-5 * np.abs(wide(inv, kernel, POSITIVE, ONE).alpha).max()


def test_admm_evaluates_the_certificate_at_the_requested_steps():
    options = {"num_steps": 20, "tol": 1e6, "check_every": 3}
    assert (admm(np.float32(kernels()["rbf"]), POSITIVE, ONE, **options).num_steps == 3).all()


@both
@each_solver
def test_solutions_are_finite_on_degenerate_kernels(name, excluded):
    twins = np.repeat(np.repeat(kernels()["narrow"][::2, ::2], 2, 0), 2, 1)
    ragged = np.sign(np.random.default_rng(3).normal(size=(M, M)))
    for kernel in (
        *(np.ones((M, M)), np.zeros((M, M)), np.eye(M), -np.eye(M), np.eye(M) * -BETA),
        *(twins, 10 * (ragged + ragged.T), kernels()["tanh"], 1e4 * kernels()["poly"]),
        *(kernels()["rbf"] ** 1e-8, 1e30 * kernels()["rbf"], 1e-30 * kernels()["rbf"]),
    ):
        for C in (0.0, 1.0, np.inf):
            solution = SOLVERS[name](np.float32(kernel), POSITIVE, EXCLUDED[excluded], C)
            assert all(np.isfinite(leaf).all() for leaf in solution)
            assert np.all((solution.alpha >= 0) & (solution.alpha <= C))


@each_solver
def test_anchors_with_at_most_one_negative_have_a_closed_form_solution(name):
    kernel, positive = jnp.array([[1, 0.5], [0.5, 1]]), POSITIVE[:2]
    one = SOLVERS[name](kernel, positive, ONE[:2])
    # With one negative j and the positive x: (K_jj - 2 K_xj + 1 + beta) alpha_j = 2
    np.testing.assert_allclose(one.alpha, 2 * (1 - np.eye(2)) / (1 + BETA), rtol=1e-3)
    none = SOLVERS[name](kernel, positive, np.array([[0, 1], [1, 0]]))
    for leaf in none[:4]:
        assert (leaf == 0).all()


@each_solver
def test_solvers_stop_gradients_and_support_vmap(name):
    kernel = jnp.float32(kernels()["rbf"])
    objective = lambda kernel: SOLVERS[name](kernel, POSITIVE, ONE).objective  # noqa: E731
    assert (jax.grad(lambda kernel: objective(kernel).sum())(kernel) == 0).all()
    many = jax.jit(jax.vmap(objective))(jnp.stack([kernel, 0.5 * kernel]))
    np.testing.assert_allclose(many[1], objective(0.5 * kernel), rtol=1e-4)


@iterative
def test_solvers_respect_the_step_limit_with_and_without_tolerance(name):
    solve = {"pgd": pgd, "admm": admm}[name]
    kernel = np.float32(kernels()["rbf"])
    fixed = solve(kernel, POSITIVE, ONE, num_steps=3)
    capped = solve(kernel, POSITIVE, ONE, num_steps=3, tol=1e-9)
    assert (fixed.num_steps == 3).all() and (capped.num_steps == 3).all()
    np.testing.assert_allclose(fixed.alpha, capped.alpha, rtol=1e-5, atol=1e-6 * fixed.alpha.max())
    assert fixed.suboptimality.max() > 1e-9


def test_solvers_accept_lists_and_have_the_documented_defaults():
    kernel: Any = kernels()["linear"]
    lists: Any = [x.tolist() for x in (kernel, POSITIVE, TWO)]
    defaults: dict[Any, dict] = {
        svm_dual_pgd: {"num_steps": 200, "momentum_start": 1.0},
        svm_dual_admm: {"num_steps": 100},
        svm_dual_inv: {},
    }
    for solver, further in defaults.items():
        solution = solver(kernel, POSITIVE, TWO, C=np.inf, regularization=0.1, **further)
        jax.tree.map(np.testing.assert_array_equal, solver(*lists), solution)


def test_solvers_reject_invalid_arguments():
    kernel = jnp.eye(M)
    for call, beginning in (
        (lambda: svm_dual_pgd(kernel[:3], POSITIVE, ONE), "kernel"),
        (lambda: svm_dual_pgd(kernel[0, 0], POSITIVE, ONE), "kernel"),
        (lambda: svm_dual_pgd(kernel, POSITIVE, ONE[:3]), "excluded"),
        (lambda: svm_dual_pgd(kernel, POSITIVE, ONE + 0.5), "excluded"),
        (lambda: svm_dual_pgd(kernel, POSITIVE, MASK[:, :3]), "excluded"),
        (lambda: svm_dual_pgd(kernel, 1.0 * POSITIVE, ONE), "positive"),
        (lambda: svm_dual_pgd(kernel, POSITIVE[0], ONE[0]), "positive"),
        (lambda: svm_dual_pgd(kernel, POSITIVE, ONE, num_steps=0), "solver setting num_steps"),
        (lambda: svm_dual_pgd(kernel, POSITIVE, ONE, num_steps=2.5), "solver setting num_steps"),
        (lambda: svm_dual_pgd(kernel, POSITIVE, ONE, step="spectral"), "the solver's step"),
        (lambda: svm_dual_pgd(kernel, POSITIVE, ONE, step=-1.0), "solver setting step"),
        (lambda: svm_dual_pgd(kernel, POSITIVE, ONE, C=0.0), "solver setting C"),
        (lambda: svm_dual_pgd(kernel, POSITIVE, ONE, C=np.float32(-1)), "solver setting C"),
        (lambda: svm_dual_pgd(kernel, POSITIVE, ONE, C=jnp.ones(M)), "solver setting C"),
        (lambda: svm_dual_pgd(kernel, POSITIVE, ONE, momentum_start=0.0), "solver setting mom.*"),
        (lambda: svm_dual_pgd(kernel, POSITIVE, ONE, momentum_start=1.5), "solver setting mom.*"),
        (lambda: svm_dual_pgd(kernel, POSITIVE, ONE, tol=-1e-3), "solver setting tol"),
        (lambda: svm_dual_admm(kernel, POSITIVE, ONE, tol=np.nan), "solver setting tol"),
        (lambda: svm_dual_pgd(kernel, POSITIVE, ONE, init=[1.0] * M), "init"),
        (lambda: svm_dual_pgd(kernel, POSITIVE, ONE, init=jnp.ones((M, 2))), "init"),
        (lambda: svm_dual_pgd(kernel, POSITIVE, ONE, init="best"), "init"),
        (lambda: svm_dual_pgd(kernel, POSITIVE, MASK, init="inv"), r"(?=.*than 'inv')excluded"),
        (lambda: svm_dual_admm(kernel, POSITIVE, MASK), "excluded"),
        (lambda: svm_dual_pgd(kernel, POSITIVE - 1, ONE), r"(?=.*\[0, 16\), got -1)positive"),
        (lambda: svm_dual_inv(kernel, POSITIVE + 1, ONE), r"(?=.*\[0, 16\), got 16)positive"),
        (lambda: svm_dual_pgd(kernel, POSITIVE, TWO - 1), r"(?=.*\[0, 16\), got -1)excluded"),
        (lambda: svm_dual_admm(kernel, POSITIVE, (ONE + 1) % M), r"(?=.*lacks 0)excluded"),
        (lambda: svm_dual_pgd(kernel, POSITIVE, ~MASK), r"(?=.*lacks 0)excluded"),
        (lambda: svm_dual_admm(kernel, POSITIVE, ONE, check_every=0), "solver setting check_every"),
        (lambda: svm_dual_inv(kernel, POSITIVE, ONE, regularization=0), "solver setting regu.*"),
        (lambda: svm_dual_inv(kernel, POSITIVE, ONE, regularization=kernel), "solver setting r.*"),
    ):
        with pytest.raises(ValueError, match=f"^{beginning} must "):
            jax.eval_shape(call)


def test_pgd_leaves_a_traced_positive_out_of_the_problem_even_if_it_is_not_excluded():
    args = (jnp.asarray(kernels()["rbf"], jnp.float32), POSITIVE)
    alpha = jax.jit(svm_dual_pgd)(*args, (ONE + 1) % M).alpha
    np.testing.assert_array_equal(jnp.diagonal(alpha), 0)
    assert alpha.max() > 0


@each_solver
def test_kernel_matrix_with_a_nan_gives_a_nan_solution(name):
    kernel = kernels()["rbf"].astype(np.float32)
    kernel[3, 4] = np.nan
    solution = SOLVERS[name](jnp.asarray(kernel), POSITIVE, ONE)
    assert np.isnan(solution.alpha).any(axis=1).all()
    assert np.isnan(solution.objective).all() and np.isnan(solution.suboptimality).all()


@pytest.mark.parametrize("kernel", ["tanh", "poly"])
def test_admm_converges_on_indefinite_kernels(kernel):
    kernel = kernels()[kernel]
    assert min(np.linalg.eigvalsh(delta)[0] for delta, _ in dense(kernel, POSITIVE, ONE)) < -1
    assert wide(admm, kernel, POSITIVE, ONE, 1.0, num_steps=3000).kkt_residual.max() < 1e-3


def test_admm_is_fast_on_a_kernel_that_only_rounding_makes_indefinite():
    """A linear kernel of four features has 124 eigenvalues that are zero before rounding."""
    z = np.random.default_rng(0).normal(size=(128, 4))
    z, positive = z / np.linalg.norm(z, axis=1, keepdims=True), np.arange(128)
    solve = partial(svm_dual_admm, C=1.0, regularization=1e-4, num_steps=1000, tol=1e-2)
    solution = jax.jit(solve)(np.float32(z @ z.T), positive, positive[:, None])
    assert solution.num_steps.max() < 500
