"""A batch as the loss sees it: its hardest negatives, and the support vectors of MMCL."""

import numpy as np
import pytest
from scipy.optimize import minimize

from jaxssl.evaluation import loss_inspection
from jaxssl.evaluation.loss_inspection import same_class_share, support_vectors
from jaxssl.evaluation.nearest_neighbours import nearest_others

pytestmark = pytest.mark.fast

# Hardest negatives


def cosine(u, v):
    return float(u @ v / max(np.linalg.norm(u), 1e-12) / max(np.linalg.norm(v), 1e-12))


def expected(z, labels, number):
    """Loops: indices, cosines, and the same-class shares among the hardest and among all."""
    indices, cosines, hard, every = [], [], [], []
    for i in range(len(z)):
        others = [(-cosine(z[i], z[j]), j) for j in range(len(z)) if j != i]
        others.sort()
        indices.append([j for _, j in others[:number]])
        cosines.append([-c for c, _ in others[:number]])
        for rank, (_, j) in enumerate(others):
            if labels[i] >= 0 and labels[j] >= 0:
                every.append(labels[i] == labels[j])
                if rank < number:
                    hard.append(labels[i] == labels[j])
    return indices, cosines, np.mean(hard), np.mean(every)


@pytest.mark.parametrize("number", [1, 4])
def test_hardest_negatives_match_loops(number, monkeypatch):
    monkeypatch.setattr(loss_inspection, "HARDEST", number)
    monkeypatch.setattr(loss_inspection, "QUERIES", 12)
    rng = np.random.default_rng(0)
    z = rng.normal(size=(12, 5)).astype(np.float32) * rng.uniform(0.1, 9, (12, 1)).astype("f")
    z[3] = 0
    labels = np.array([0, 1, 2, 0, 1, 2, 0, 1, -1, -1, 0, 0])
    result = loss_inspection._hardest(z, labels)
    indices, cosines, *shares = expected(z.astype(np.float64), labels, number)
    order = result["hard_query"]
    np.testing.assert_array_equal(result["hard_place"], np.array(indices)[order])
    np.testing.assert_allclose(result["hard_similarity"], np.array(cosines)[order], atol=1e-6)
    np.testing.assert_allclose(result["hard_share"], shares)


def test_nearest_others_of_equal_features_are_the_first_examples_except_the_example_itself():
    _, index = nearest_others(np.ones((4, 3), np.float32), 9)
    np.testing.assert_array_equal(index, [[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]])


def test_fraction_of_same_class_pairs_ignores_unlabelled_images_and_an_image_with_itself():
    labels = np.array([0, 0, -1])
    every = np.ones((3, 3), bool)
    assert same_class_share(labels, every) == 1.0
    assert same_class_share(labels, np.eye(3, dtype=bool)) is None
    assert same_class_share(np.full(3, -1), every) is None
    assert same_class_share(None, every) is None


def test_examples_of_each_class_leave_unlabelled_ones_for_the_end():
    labels = np.array([-1, -1, 2, 3, 3])
    np.testing.assert_array_equal(loss_inspection.one_of_each(labels, 4), [2, 3, 0, 1])


# Support vectors of MMCL

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
    delta = kernel + 1 + BETA * np.eye(N) - kernel[:, [anchor]] - kernel[[anchor]]
    delta = delta[np.ix_(others, others)]
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
    result = support_vectors(views[0], LABELS, gamma=GAMMA, C=bound, num_steps=3000)
    expected = np.stack([dual(views[0], anchor, bound) for anchor in range(N)])
    np.testing.assert_allclose(result.alpha, expected, atol=2e-3)
    for share, of_loops in zip(result[1:], shares(result.alpha, np.float32(bound)), strict=True):
        assert share == (of_loops if of_loops is None else pytest.approx(of_loops))
    assert (result.at_bound > 0) == (bound == 0.5)


def test_support_vectors_without_labels_have_no_shares_of_a_class(views):
    assert support_vectors(views[0], None, gamma=GAMMA)[3:] == (None, None, None)


def test_support_vectors_of_embeddings_that_are_not_finite_are_refused(views):
    with pytest.raises(ValueError, match="embeddings must be finite"):
        support_vectors(np.where(np.eye(*views[0].shape, dtype=bool), np.nan, views[0]), LABELS)


def test_same_class_fractions_of_support_vectors_of_a_single_image_are_none(views):
    result = support_vectors(views[0][:1], LABELS[:1])
    assert result[1:] == (0.0, 0.0, None, None, None) and result.alpha.shape == (1, 1)


@pytest.mark.parametrize(
    ("settings", "message"), [({"C": -1}, "C must be > 0"), ({"kernel": "cubic"}, "kernel must be")]
)
def test_support_vectors_reject_invalid_settings(views, settings, message):
    with pytest.raises(ValueError, match=message):
        support_vectors(views[0], LABELS, **settings)
