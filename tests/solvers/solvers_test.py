"""The solvers against dense float64 loops and SciPy's exact ones."""

from functools import partial

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from scipy.optimize import lsq_linear

from jaxssl.solvers import (
    box_qp_pgd,
    box_qp_truncated_ls,
    svm_dual_admm,
    svm_dual_inv,
    svm_dual_pgd,
)

M, BETA, STEPS = 16, 0.1, 30
OPTIONS = ("num_steps", "step", "accelerated", "restart", "tol")
POSITIVE = np.arange(M, dtype=np.int32)
ONE = POSITIVE[:, None]  # the released negatives
TWO = np.stack([(POSITIVE + M // 2) % M, POSITIVE], 1).astype(np.int32)  # both views
LABELS = np.array([0, 0, 0, 1, 1, 2, 3, 3, 3, 3, 4, 4, 4, 5, 5, 5])
MASK = LABELS[:, None] == LABELS[None, :]
EXCLUDED = {"one": ONE, "two": TWO, "mask": MASK}
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
    """Delta_i and the free rows of each anchor, by the definition."""
    for i, x in enumerate(positive):
        gone = np.flatnonzero(excluded[i]) if excluded.dtype == bool else excluded[i]
        free = np.setdiff1d(np.arange(len(kernel)), gone)
        delta = kernel[np.ix_(free, free)] - kernel[x, free] - kernel[x, free][:, None] + 1
        yield delta + BETA * np.eye(len(free)), free


def dense_pgd(delta, start, steps, step, C, accelerated, momentum):
    x = y = start
    for _ in range(steps):
        new = np.clip(y - step * (delta @ y - 2), 0, C)
        rate = 0.0
        if accelerated:
            following = (np.sqrt(momentum**4 + 4 * momentum**2) - momentum**2) / 2
            rate = momentum * (1 - momentum) / (momentum**2 + following)
            momentum = following
        x, y = new, new + rate * (new - x)
    return x


def exact_box(matrix, linear, lower, upper):
    """min 1/2 x'Qx - linear'x as the least squares of Q's square root."""
    root = np.linalg.cholesky(matrix)
    right = np.linalg.solve(root, linear)
    fit = lsq_linear(root.T, right, (lower, upper), method="bvls", tol=1e-14)
    return fit.x, 0.5 * fit.x @ matrix @ fit.x - linear @ fit.x


def exact_duals(kernel, positive, excluded, C=np.inf):
    alpha, objective = np.zeros((len(positive), len(kernel))), []
    for i, (delta, free) in enumerate(dense(kernel, positive, excluded)):
        alpha[i, free], value = exact_box(delta, 2 * np.ones(len(free)), 0, C)
        objective.append(value)
    return alpha, np.array(objective)


@partial(jax.jit, static_argnames=OPTIONS)
def pgd(kernel, positive, excluded, C=jnp.inf, momentum_start=1.0, init=None, **options):
    hyper = {"C": C, "momentum_start": momentum_start, "init": init}
    return svm_dual_pgd(kernel, positive, excluded, **hyper, **options)


@partial(jax.jit, static_argnames=OPTIONS)
def admm(kernel, positive, excluded, C=jnp.inf, **options):
    return svm_dual_admm(kernel, positive, excluded, C=C, **options)


@jax.jit
def inv(kernel, positive, excluded, C=jnp.inf):
    return svm_dual_inv(kernel, positive, excluded, C=C)


def wide(solve, *args, **kwargs):
    """The result of float64 arithmetic as NumPy arrays."""
    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, solve(*args, **kwargs))


SOLVERS = {
    "pgd": partial(pgd, num_steps=2000, tol=1e-6),
    "admm": partial(admm, num_steps=2000, tol=1e-6),
    "inv": inv,
}
each_solver = pytest.mark.parametrize("name", SOLVERS)
iterative = pytest.mark.parametrize("name", ["pgd", "admm"])


# ---- any box-constrained QP ----


def problems():
    rng = np.random.default_rng(1)
    root = rng.normal(size=(5, 6, 6))
    matrix = root @ root.transpose(0, 2, 1) + 0.1 * np.eye(6)
    return matrix, rng.normal(size=(5, 6)), -rng.uniform(0, 0.3, (5, 6)), rng.uniform(0, 1, (5, 6))


@partial(jax.jit, static_argnames=(*OPTIONS, "momentum_start"))
def solve_boxes(matrix, linear, lower, upper, **options):
    return jax.vmap(partial(box_qp_pgd, **options))(matrix, linear, lower, upper)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"accelerated": False, "num_steps": 20_000},
        {"restart": False, "num_steps": 20_000},
        {"momentum_start": 0.3},
        {"tol": 1e-9},
    ],
    ids=str,
)
def test_box_qp_reaches_the_exact_optimum(options):
    data = problems()
    with jax.enable_x64(True):
        found = solve_boxes(*data, **{"num_steps": 3000, **options})
        for i in range(5):
            x, _ = exact_box(*(part[i] for part in data))
            np.testing.assert_allclose(found.x[i], x, atol=1e-7)
        assert found.kkt_residual.max() <= 1e-7
        if "tol" in options:
            assert found.num_steps.max() < 3000


def test_box_qp_takes_a_function_a_step_and_a_start():
    matrix, linear, lower, upper = (jnp.float32(part[0]) for part in problems())
    solve = partial(box_qp_pgd, linear=linear, lower=lower, upper=upper, num_steps=7)
    by_matrix = solve(matrix)
    np.testing.assert_allclose(solve(lambda x: matrix @ x).x, by_matrix.x, rtol=1e-5)
    start = jnp.clip(by_matrix.x, lower, upper)
    moved = solve(matrix, step=0.01, init=start, num_steps=1).x
    expected = jnp.clip(start - 0.01 * (matrix @ start - linear), lower, upper)
    np.testing.assert_allclose(moved, expected, rtol=1e-5, atol=1e-7)


def test_truncated_ls_clips_the_unconstrained_solution():
    matrix, linear, lower, upper = (part[0] for part in problems())
    with jax.enable_x64(True):
        found = box_qp_truncated_ls(*map(jnp.asarray, (matrix, linear, lower, upper)))
        expected = np.clip(np.linalg.solve(matrix, linear), lower, upper)
        np.testing.assert_allclose(found.x, expected, rtol=1e-12)
        assert found.kkt_residual > 1e-3
    assert jnp.isfinite(box_qp_truncated_ls(jnp.zeros((2, 2)), jnp.ones(2), 0.0, 1.0).x).all()


def test_box_qp_stays_finite():
    for matrix in (jnp.zeros((2, 2)), -jnp.eye(2), 1e6 * jnp.ones((2, 2))):
        assert jnp.isfinite(box_qp_pgd(matrix, jnp.ones(2)).x).all()


# ---- the SVM duals against dense problems ----


@pytest.mark.parametrize("excluded", EXCLUDED)
@pytest.mark.parametrize("accelerated", [True, False])
def test_pgd_is_dense_pgd_step_for_step(excluded, accelerated):
    kernel, gone = kernels()["rbf"], EXCLUDED[excluded]
    init = np.maximum(np.random.default_rng(2).normal(size=(M, M)), 0)
    hyper = {"C": 1.5, "momentum_start": 0.4, "init": init}
    with jax.enable_x64(True):
        found = pgd(
            kernel,
            POSITIVE,
            gone,
            **hyper,
            num_steps=STEPS,
            step="frobenius",
            accelerated=accelerated,
            restart=False,
        )
        for i, (delta, free) in enumerate(dense(kernel, POSITIVE, gone)):
            step = 1 / np.linalg.norm(delta)
            start = np.clip(init[i, free], 0, 1.5)
            expected = dense_pgd(delta, start, STEPS, step, 1.5, accelerated, 0.4)
            np.testing.assert_allclose(found.alpha[i, free], expected, atol=1e-10)
            gradient = delta @ expected - 2
            objective = expected @ (gradient - 2) / 2
            np.testing.assert_allclose(found.objective[i], objective, rtol=1e-9)
            residual = np.abs(expected - np.clip(expected - gradient, 0, 1.5)).max()
            np.testing.assert_allclose(found.kkt_residual[i], residual, atol=1e-9)
            assert (np.delete(found.alpha[i], free) == 0).all()


def test_pgd_takes_a_number_as_step():
    kernel = kernels()["linear"]
    with jax.enable_x64(True):
        found = pgd(kernel, POSITIVE, ONE, num_steps=STEPS, step=0.02, accelerated=False)
        for i, (delta, free) in enumerate(dense(kernel, POSITIVE, ONE)):
            expected = dense_pgd(delta, np.zeros(M - 1), STEPS, 0.02, np.inf, False, 1.0)
            np.testing.assert_allclose(found.alpha[i, free], expected, atol=1e-10)


@both
@pytest.mark.parametrize("kernel", kernels())
def test_inv_is_the_dense_solution(kernel, excluded):
    kernel, gone = kernels()[kernel], EXCLUDED[excluded]
    with jax.enable_x64(True):
        found = inv(kernel, POSITIVE, gone, 3.0).alpha
        for i, (delta, free) in enumerate(dense(kernel, POSITIVE, gone)):
            expected = np.clip(np.linalg.solve(delta, 2 * np.ones(len(free))), 0, 3)
            np.testing.assert_allclose(found[i, free], expected, atol=1e-10)
            assert (np.delete(found[i], free) == 0).all()


def test_three_excluded_rows():
    kernel, gone = kernels()["rbf"], np.stack([(POSITIVE + k) % M for k in (1, 0, 7)], 1)
    with jax.enable_x64(True):
        solve = jax.jit(partial(svm_dual_inv, C=jnp.inf))
        found = solve(kernel, POSITIVE, gone.astype(np.int32)).alpha
        for i, (delta, free) in enumerate(dense(kernel, POSITIVE, gone)):
            expected = np.maximum(np.linalg.solve(delta, 2 * np.ones(len(free))), 0)
            np.testing.assert_allclose(found[i, free], expected, atol=1e-10)


@both
@iterative
@pytest.mark.parametrize("C", [0.2, np.inf])
@pytest.mark.parametrize("kernel", ["rbf", "narrow", "linear"])
def test_certified_optimum(name, excluded, C, kernel):
    kernel, gone = kernels()[kernel], EXCLUDED[excluded]
    found = wide(SOLVERS[name], kernel, POSITIVE, gone, C)
    alpha, objective = exact_duals(kernel, POSITIVE, gone, C)
    true = (found.objective - objective) / np.abs(found.objective)
    assert (true <= found.suboptimality + 1e-13).all()
    assert (found.suboptimality <= 1e-6).all()
    assert found.num_steps.max() < 2000
    assert ((found.alpha >= 0) & (found.alpha <= C)).all()
    # beta / 2 |alpha - optimum|^2 <= objective - optimum
    gap = np.sqrt(2e-6 * np.abs(objective) / BETA).max()
    np.testing.assert_allclose(found.alpha, alpha, atol=gap)


@both
def test_pgd_from_the_solution_of_inv_takes_fewer_steps_to_the_same_optimum(excluded):
    solve = partial(svm_dual_pgd, C=0.2, num_steps=2000, tol=1e-6)
    arguments = kernels()["narrow"], POSITIVE, EXCLUDED[excluded]
    start = wide(inv, *arguments, 0.2).alpha
    found = wide(jax.jit(partial(solve, init="inv")), *arguments)
    cold = wide(jax.jit(solve), *arguments)
    assert found.num_steps.sum() < cold.num_steps.sum()
    assert (found.suboptimality <= 1e-6).all()
    np.testing.assert_allclose(found.objective, cold.objective, rtol=1e-6)
    one_step = wide(jax.jit(partial(solve, init="inv", num_steps=1, tol=None)), *arguments)
    from_there = wide(jax.jit(partial(solve, num_steps=1, tol=None)), *arguments, init=start)
    np.testing.assert_allclose(one_step.alpha, from_there.alpha, rtol=1e-9)


def test_pgd_default_step_is_safe_and_close():
    """1 / lambda_max is the largest step that descends; more than twice less wastes steps."""
    for kernel in kernels().values():
        for gone in (ONE, TWO):
            one = wide(pgd, kernel, POSITIVE, gone, num_steps=1, accelerated=False).alpha
            for i, (delta, free) in enumerate(dense(kernel, POSITIVE, gone)):
                step = one[i, free[0]] / 2  # from 0, the first step is 2 eta
                largest = np.linalg.eigvalsh(delta)[-1]
                assert 0.4 < step * largest <= 1


def test_a_mask_of_labels():
    kernel = kernels()["rbf"]
    found = wide(SOLVERS["pgd"], kernel, POSITIVE, MASK, 1.0)
    alpha, _ = exact_duals(kernel, POSITIVE, MASK, 1.0)
    np.testing.assert_allclose(found.alpha, alpha, atol=0.05)
    assert (found.alpha[MASK] == 0).all()


@each_solver
def test_an_anchor_does_not_depend_on_the_others(name):
    kernel = kernels()["narrow"]
    every = wide(SOLVERS[name], kernel, POSITIVE, TWO)
    some = wide(SOLVERS[name], kernel, POSITIVE[:4], TWO[:4])
    np.testing.assert_array_equal(every.num_steps[:4], some.num_steps)
    np.testing.assert_allclose(every.alpha[:4], some.alpha, atol=1e-10)


@each_solver
def test_float32_is_close_to_float64(name):
    kernel = kernels()["rbf"]
    double = wide(SOLVERS[name], kernel, POSITIVE, ONE)
    narrow = SOLVERS[name](np.float32(kernel), POSITIVE, ONE)
    assert narrow.alpha.dtype == jnp.float32
    np.testing.assert_allclose(narrow.objective, double.objective, rtol=1e-4)
    np.testing.assert_allclose(narrow.alpha, double.alpha, atol=2e-2)


@both
@each_solver
def test_finite_on_degenerate_kernels(name, excluded):
    twins = np.repeat(np.repeat(kernels()["narrow"][::2, ::2], 2, 0), 2, 1)
    ragged = np.sign(np.random.default_rng(3).normal(size=(M, M)))
    for kernel in (
        np.ones((M, M)),
        np.zeros((M, M)),
        np.eye(M),
        -np.eye(M),
        twins,
        10 * (ragged + ragged.T),
        kernels()["tanh"],
        1e4 * kernels()["poly"],
        np.eye(M) * -BETA,
    ):
        found = SOLVERS[name](np.float32(kernel), POSITIVE, EXCLUDED[excluded])
        for leaf in found:
            assert jnp.isfinite(leaf).all()
        assert (found.alpha >= 0).all()


@each_solver
def test_one_free_row_or_none(name):
    kernel, positive = np.float32([[1, 0.5], [0.5, 1]]), POSITIVE[:2]
    one = SOLVERS[name](kernel, positive, ONE[:2])
    # One free row: (K_jj - 2 K_xj + 1 + beta) a = 2
    np.testing.assert_allclose(one.alpha, np.float32([[0, 2 / 1.1], [2 / 1.1, 0]]), rtol=1e-3)
    none = SOLVERS[name](kernel, positive, np.int32([[0, 1], [1, 0]]))
    for leaf in none[:4]:
        assert (leaf == 0).all()


@each_solver
def test_no_gradient_and_vmap(name):
    kernel = jnp.float32(kernels()["rbf"])
    objective = lambda kernel: SOLVERS[name](kernel, POSITIVE, ONE).objective  # noqa: E731
    assert (jax.grad(lambda kernel: objective(kernel).sum())(kernel) == 0).all()
    many = jax.jit(jax.vmap(objective))(jnp.stack([kernel, 0.5 * kernel]))
    np.testing.assert_allclose(many[1], objective(0.5 * kernel), rtol=1e-4)


@iterative
def test_few_steps(name):
    solve = {"pgd": pgd, "admm": admm}[name]
    kernel = np.float32(kernels()["rbf"])
    fixed = solve(kernel, POSITIVE, ONE, num_steps=3)
    capped = solve(kernel, POSITIVE, ONE, num_steps=3, tol=1e-9)
    assert (fixed.num_steps == 3).all() and (capped.num_steps == 3).all()
    np.testing.assert_allclose(fixed.alpha, capped.alpha, rtol=1e-5, atol=1e-6 * fixed.alpha.max())
    assert fixed.suboptimality.max() > 1e-9


def test_wrong_arguments_raise():
    kernel, matrix, linear = jnp.eye(M), jnp.eye(3), jnp.ones(3)
    for call, word in (
        (lambda: svm_dual_pgd(kernel[:3], POSITIVE, ONE), "kernel"),
        (lambda: svm_dual_pgd(kernel, POSITIVE, ONE[:3]), "excluded"),
        (lambda: svm_dual_pgd(kernel, POSITIVE, MASK[:, :3]), "excluded"),
        (lambda: svm_dual_pgd(kernel, np.float32(POSITIVE), ONE), "positive"),
        (lambda: svm_dual_pgd(kernel, POSITIVE, ONE, num_steps=0), "num_steps"),
        (lambda: svm_dual_pgd(kernel, POSITIVE, ONE, step="spectral"), "step"),
        (lambda: svm_dual_pgd(kernel, POSITIVE, ONE, step=-1.0), "step"),
        (lambda: svm_dual_pgd(kernel, POSITIVE, ONE, C=0.0), "C"),
        (lambda: svm_dual_pgd(kernel, POSITIVE, ONE, init=jnp.ones((M, 2))), "init"),
        (lambda: svm_dual_pgd(kernel, POSITIVE, ONE, init="best"), "init"),
        (lambda: svm_dual_pgd(kernel, POSITIVE, MASK, init="inv"), "excluded"),
        (lambda: svm_dual_admm(kernel, POSITIVE, MASK), "excluded"),
        (lambda: svm_dual_admm(kernel, POSITIVE, ONE, check_every=0), "check_every"),
        (lambda: svm_dual_inv(kernel, POSITIVE, ONE, regularization=0), "regularization"),
        (lambda: box_qp_pgd(matrix, jnp.ones((2, 3))), "linear"),
        (lambda: box_qp_pgd(matrix, jnp.ones(2)), "matrix"),
        (lambda: box_qp_pgd(matrix, linear, jnp.ones(2)), "lower"),
        (lambda: box_qp_pgd(matrix, linear, num_steps=0), "num_steps"),
        (lambda: box_qp_pgd(matrix, linear, init=jnp.ones(2)), "init"),
    ):
        with pytest.raises(ValueError, match=f"^{word}: expected"):
            jax.eval_shape(call)


@pytest.mark.parametrize("kernel", ["tanh", "poly"])
def test_admm_on_indefinite_kernels(kernel):
    kernel = kernels()[kernel]
    assert min(np.linalg.eigvalsh(delta)[0] for delta, _ in dense(kernel, POSITIVE, ONE)) < -1
    found = wide(admm, kernel, POSITIVE, ONE, 1.0, num_steps=3000)
    assert found.kkt_residual.max() < 1e-3
