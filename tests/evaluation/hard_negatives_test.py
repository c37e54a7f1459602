"""The hardest negatives of a batch, and the share of them of the anchor's class."""

import numpy as np
import pytest

from jaxssl.evaluation import loss_inspection
from jaxssl.evaluation.loss_inspection import same_class_share
from jaxssl.evaluation.nearest_neighbours import nearest_others

pytestmark = pytest.mark.fast


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
