"""Retrieval against a float64 loop, and the promises that make its figures comparable."""

import numpy as np
import pytest
from feature_cases import labelled

from jaxssl.evaluation.protocol import Features
from jaxssl.evaluation.protocols import retrieval

pytestmark = pytest.mark.fast
SIZES = {"n": 40, "m": 30, "f": 5, "classes": 6, "spread": 1.2}


def oracle(features, *, k, centred, within):
    """Figures query by query, in float64."""
    test = features.test.astype(np.float64)
    bank = test if within else features.train.astype(np.float64)
    labels = features.test_labels if within else features.train_labels
    if centred:
        test, bank = test - test.mean(axis=0), bank - bank.mean(axis=0)
    hits, average = {n: [] for n in k}, []
    for q, (query, label) in enumerate(zip(test, features.test_labels, strict=True)):
        similarity = bank @ query / np.linalg.norm(bank, axis=1)
        ranked = [j for j in np.argsort(-similarity) if not (within and j == q)]
        right = labels[ranked] == label
        for n in k:
            hits[n].append(right[:n].any())
        number = right.sum()
        precisions = [right[: i + 1].mean() for i in range(number) if right[i]]
        average.append(sum(precisions) / number if number else 0)
    result = {f"retrieval_r{n}": 100 * np.mean(hits[n]) for n in k}
    return {**result, **({"retrieval_map_at_r": 100 * np.mean(average)} if within else {})}


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("centred", [False, True])
def test_retrieval_matches_a_loop(centred, within):
    settings = {"k": (1, 3, 25), "centred": centred, "within": within}
    features = labelled(**SIZES)
    features = features._replace(train=features.train + 0.7, test=features.test + 0.7)
    result = retrieval.recall(features, **settings)
    assert result == pytest.approx(oracle(features, **settings))
    assert result["retrieval_r1"] < result["retrieval_r3"] < result["retrieval_r25"]


def test_centring_removes_an_offset_of_features_between_splits():
    features = labelled(**SIZES)
    moved = features._replace(train=features.train + 7, test=features.test - 5)
    settings = {"k": (1, 5), "centred": True}
    plain, result = (retrieval.recall(f, **settings) for f in (features, moved))
    assert result == pytest.approx(plain)
    assert retrieval.recall(moved, k=(1, 5)) != pytest.approx(plain)


def test_centring_does_not_hide_which_features_are_not_finite():
    features = labelled(**SIZES)
    features.test[7, 0] = np.nan
    with pytest.raises(ValueError, match="features of test images have NaN"):
        retrieval.recall(features, k=(1,), centred=True)


def test_retrieval_within_a_split_never_returns_the_query():
    """Each label occurs once, so nothing can be found but the query."""
    rows = np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32)
    features = Features(rows, np.arange(12), rows, np.arange(12))
    result = retrieval.recall(features, k=(1, 11), within=True)
    assert result == {"retrieval_r1": 0, "retrieval_r11": 0, "retrieval_map_at_r": 0}
    assert retrieval.recall(features, k=(1,)) == {"retrieval_r1": 100}


def test_retrieval_within_a_split_returns_other_images_with_equal_features():
    """The query may come after its copies, or not among the neighbours at all."""
    rows, labels = np.ones((9, 5), np.float32), np.array([0, 1, 1, 1, 1, 1, 1, 1, 1])
    features = Features(rows, labels, rows, labels)
    result = retrieval.recall(features, k=(1, 2), within=True)
    # Equally near neighbours are ordered by index, so image 0, of another label, comes first.
    assert result["retrieval_r1"] == 0
    assert result["retrieval_r2"] == pytest.approx(100 * 8 / 9)
    precision = np.mean([0, *(i / (i + 1) for i in range(1, 7))])
    assert result["retrieval_map_at_r"] == pytest.approx(100 * 8 / 9 * precision)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"k": (1, 41)}, r"each k must be in \[1, 40\] \(the bank has 40 images\), got \(1, 41\)"),
        ({"k": (2.5,)}, r"got \(2.5,\)"),
        ({"k": ("5",)}, r"got \('5',\)"),
        ({"k": (0, 1)}, r"got \(0, 1\)"),
        ({"k": ()}, r"got \(\)"),
        ({"k": (1, 30), "within": True}, r"k must be in \[1, 29\]"),
    ],
)
def test_k_outside_the_bank_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        retrieval.recall(labelled(**SIZES), **settings)


def test_retrieval_in_small_blocks_equals_one_block(monkeypatch):
    settings = {"k": (1, 3), "within": True}
    features = labelled(**SIZES)
    monkeypatch.setattr(retrieval, "BLOCK", 40)
    result = retrieval.recall(features, **settings)
    assert result == pytest.approx(oracle(features, **settings, centred=False))
