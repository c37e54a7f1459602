"""MMCL's support vectors of a batch: the SVMs' weights, and the shares that are told of them."""

import numpy as np
import pytest
from scipy.optimize import minimize

from jaxssl.evaluation.loss_inspection import support_vectors

pytestmark = pytest.mark.fast

N, GAMMA, BETA = 9, 0.7, 0.1
LABELS = np.array([0, 1, 0, 1, 2, 2, 0, -1, 1])


@pytest.fixture(scope="module")
def views():
    rng = np.random.default_rng(0)
    z1 = rng.normal(size=(N, 4)).astype(np.float32)
    return z1, z1 + rng.normal(scale=0.3, size=z1.shape).astype(np.float32)


def dual(z1, anchor, bound):
    """The weights of one anchor's SVM by L-BFGS-B on the problem as the paper writes it."""
    x = z1.astype(np.float64)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    kernel = np.exp(-GAMMA * ((x[:, None] - x[None]) ** 2).sum(-1))
    others = [j for j in range(N) if j != anchor]
    delta = np.array(
        [
            [kernel[j, k] - kernel[anchor, j] - kernel[anchor, k] + 1 + BETA * (j == k)]
            for j in others
            for k in others
        ]
    ).reshape(N - 1, N - 1)
    result = minimize(
        lambda a: (a @ delta @ a / 2 - 2 * a.sum(), delta @ a - 2),
        np.zeros(N - 1),
        jac=True,
        bounds=[(0, bound if np.isfinite(bound) else None)] * (N - 1),
        options={"maxiter": 10_000, "ftol": 1e-15, "gtol": 1e-10},
    )
    alpha = np.zeros(N)
    alpha[others] = result.x
    return alpha


def shares(alpha, bound):
    """With loops over anchors and negatives."""
    assert not alpha.diagonal().any()
    negatives = [(i, j) for i in range(N) for j in range(N) if i != j]
    labelled = [(i, j) for i, j in negatives if LABELS[i] >= 0 and LABELS[j] >= 0]

    def of_class(least):
        same = [LABELS[i] == LABELS[j] for i, j in labelled if alpha[i, j] >= least]
        return np.mean(same) if same else None

    weights, smallest = np.array([alpha[pair] for pair in negatives]), np.nextafter(0, 1)
    chosen, at_bound = np.mean(weights > 0), np.mean(weights >= bound)
    return chosen, at_bound, of_class(smallest), of_class(bound), of_class(0)


@pytest.mark.parametrize("bound", [0.5, 100.0, float("inf")])
def test_mmcl_support_vector_weights_and_fractions_equal_independent_computations(views, bound):
    result = support_vectors(*views, LABELS, gamma=GAMMA, C=bound, num_steps=3000)
    expected = np.stack([dual(views[0], anchor, bound) for anchor in range(N)])
    np.testing.assert_allclose(result.alpha, expected, atol=2e-3)
    for share, of_loops in zip(result[1:], shares(result.alpha, np.float32(bound)), strict=True):
        assert share == (of_loops if of_loops is None else pytest.approx(of_loops))
    assert (result.at_bound > 0) == (bound == 0.5)


def test_mmcl_alpha_depends_on_the_first_views_only(views):
    z1, z2 = views
    result = support_vectors(z1, z2, None, gamma=GAMMA)
    np.testing.assert_array_equal(result.alpha, support_vectors(z1, z1, None, gamma=GAMMA).alpha)
    assert np.abs(result.alpha - support_vectors(z2, z1, None, gamma=GAMMA).alpha).max() > 0.01
    assert result[3:] == (None, None, None)


def test_same_class_fractions_of_support_vectors_of_a_single_image_are_none(views):
    result = support_vectors(views[0][:1], views[1][:1], LABELS[:1])
    assert result[1:] == (0.0, 0.0, None, None, None) and result.alpha.shape == (1, 1)


@pytest.mark.parametrize(
    ("settings", "message"), [({"C": -1}, "C must be > 0"), ({"kernel": "cubic"}, "kernel must be")]
)
def test_support_vectors_reject_invalid_settings(views, settings, message):
    with pytest.raises(ValueError, match=message):
        support_vectors(*views, LABELS, **settings)
