"""k-NN against float64 loops, and against what a PyTorch form of the public codes predicts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from feature_cases import labelled

from jaxssl.evaluation import nearest_neighbours
from jaxssl.evaluation.nearest_neighbours import neighbours
from jaxssl.evaluation.protocol import Features
from jaxssl.evaluation.protocols import knn

pytestmark = pytest.mark.fast

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "knn.npz")


def ranking_oracle(bank, labels, queries, *, k, temperature, num_classes, weight="exp"):
    """Classes by votes of each query's nearest neighbours, row by row."""
    bank, queries = (
        x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
        for x in (np.float64(bank), np.float64(queries))
    )
    ranked = []
    for query in queries:
        similarity = bank @ query
        votes = np.zeros(num_classes)
        for j in np.argsort(-similarity, kind="stable")[:k]:
            s = similarity[j]
            votes[labels[j]] += {
                "linear": (1 + s) / 2,
                "exp": np.exp((s - 1) / temperature),
                "equal": 1,
            }[weight]
        ranked.append(np.argsort(-votes, kind="stable"))
    return np.array(ranked)


def knn_oracle(features, **hyper):
    """`knn.accuracy`."""
    train, labels, test, truth = features
    classes = 1 + max(labels.max(), truth.max())
    ranked = ranking_oracle(train, labels, test, num_classes=classes, **hyper)
    hit = ranked[:, :5] == truth[:, None]
    return {"knn_top1": 100 * hit[:, 0].mean(), "knn_top5": 100 * hit.any(axis=1).mean()}


# ---- Compared with predictions of public implementations.


@pytest.mark.parametrize("preset", knn.PRESETS)
@pytest.mark.parametrize("dtype", ["int8", "float16", "float64"])
def test_knn_preset_predicts_like_the_public_implementation(preset, dtype):
    bank, queries = (GOLDEN[name].astype(dtype) for name in ("bank", "queries"))
    result = knn.predict(bank, GOLDEN["labels"], queries, num_classes=10, **knn.PRESETS[preset])
    np.testing.assert_array_equal(result, GOLDEN[f"ranking/{preset}"])
    if dtype == "int8":
        features = Features(bank, GOLDEN["labels"], queries, GOLDEN["query_labels"])
        scores = knn.accuracy(features, **knn.PRESETS[preset])
        hit = result == GOLDEN["query_labels"][:, None]
        assert scores["knn_top1"] == pytest.approx(100 * hit[:, 0].mean())
        assert scores["knn_top5"] == pytest.approx(100 * hit[:, :5].any(axis=1).mean())


def test_knn_uses_all_examples_if_there_are_fewer_than_k():
    bank, labels = GOLDEN["bank"][:90], GOLDEN["labels"][:90]
    result = knn.predict(bank, labels, GOLDEN["queries"], k=200, temperature=0.1, num_classes=10)
    np.testing.assert_array_equal(result, GOLDEN["ranking/k_above_bank"])


# ---- Compared with a float64 loop.


@pytest.mark.parametrize("k", [1, 5, 60, 1000])
@pytest.mark.parametrize(
    ("m", "classes"), [(130, 8), (130, 2), (7, 8)], ids=["blocks", "two classes", "few queries"]
)
@pytest.mark.parametrize("bank_block", [2**27, 4 * 6 * 25], ids=["one block", "several"])
def test_knn_matches_a_float64_loop(k, m, classes, bank_block, monkeypatch):
    assert m % nearest_neighbours.QUERY_BLOCK
    features = labelled(60, m, 6, classes)
    monkeypatch.setattr(nearest_neighbours, "BANK_BLOCK", bank_block)
    result = knn.accuracy(features, k=k, temperature=0.2)
    expected = knn_oracle(features, k=k, temperature=0.2)
    assert result == pytest.approx(expected)
    if classes == 2:
        assert result["knn_top5"] == 100
    else:
        assert result["knn_top1"] < result["knn_top5"] or m == 7


@pytest.mark.parametrize("temperature", [1e-3, 1e3])
def test_knn_votes_are_finite_at_extreme_temperatures(temperature):
    features = labelled(60, 130, 6, 4)
    train, labels, test, _ = features
    similarity, place = neighbours(train, test, 60)
    votes = knn.votes(similarity, labels[place], num_classes=4, temperature=temperature)
    assert np.isfinite(votes).all()
    assert (votes.max(axis=1) > 0).all()
    expected = knn_oracle(features, k=60, temperature=temperature)
    assert knn.accuracy(features, k=60, temperature=temperature) == pytest.approx(expected)


@pytest.mark.parametrize("temperature", [1e-45, 1e-39, 1e-30])
def test_knn_at_the_smallest_temperatures_predicts_the_class_of_the_nearest_neighbour(temperature):
    train, labels, test, _ = labelled(60, 130, 6, 4)
    nearest = knn.predict(train, labels, test, k=1, temperature=1.0)[:, 0]
    result = knn.predict(train, labels, test, k=60, temperature=temperature)[:, 0]
    np.testing.assert_array_equal(result, nearest)


@pytest.mark.parametrize("weight", knn.WEIGHTS)
def test_knn_predicts_the_smaller_class_on_equal_votes(weight):
    """Each row is in the bank under two classes: their votes are the same numbers."""
    rows = np.random.default_rng(0).normal(size=(40, 5))
    labels = np.arange(40) % 4
    bank, twice = np.concatenate([rows, rows]), np.concatenate([labels, (labels + 2) % 4])
    hyper = {"k": 8, "temperature": 0.3, "weight": weight}
    queries = np.random.default_rng(1).normal(size=(130, 5))
    result = knn.predict(bank, twice, queries, **hyper)
    expected = ranking_oracle(bank, twice, queries, num_classes=4, **hyper)
    np.testing.assert_array_equal(result, expected)
    assert set(result[:, 0]) == {0, 1}


@pytest.mark.parametrize("bank_block", [2**27, 4 * 2 * 7])
def test_knn_takes_the_neighbour_with_a_smaller_index_on_equal_similarity(bank_block, monkeypatch):
    monkeypatch.setattr(nearest_neighbours, "BANK_BLOCK", bank_block)
    bank = np.tile(np.eye(2, dtype=np.float32), (10, 1))
    similarity, place = neighbours(bank, 3 * bank[:2], 12)
    np.testing.assert_array_equal(place[0], [*range(0, 20, 2), 1, 3])
    np.testing.assert_array_equal(place[1], [*range(1, 20, 2), 0, 2])
    np.testing.assert_allclose(similarity, [[1] * 10 + [0] * 2] * 2)


def test_knn_similarity_is_equal_for_parallel_features():
    """Division rounds (3, 4) / 5 and (9, 12) / 15 alike, a product with 1 / norm does not."""
    rows = np.array([[3, 4], [-4, 3], [5, 12], [-8, 15]], np.float32)
    factor = np.array([1, 3, 7, 11, 2.0**80, 2.0**-30], np.float32)
    bank = (factor[:, None, None] * rows).reshape(-1, 2)
    similarity, place = neighbours(bank, rows, 6)
    np.testing.assert_array_equal(place, np.arange(4)[:, None] + 4 * np.arange(6))
    np.testing.assert_allclose(similarity, 1, atol=1e-6)


# ---- Unusual banks and labels.


def test_knn_accepts_features_of_any_finite_norm():
    features = labelled(60, 7, 6, 8)
    size = np.float32(10) ** np.linspace(-9, 37, 60, dtype=np.float32)
    similarity, place = neighbours(features.train * size[:, None], 1e37 * features.test, 20)
    expected = neighbours(features.train, features.test, 20)
    np.testing.assert_allclose(similarity, expected[0], atol=1e-6)
    np.testing.assert_array_equal(place, expected[1])


def test_knn_similarity_of_zero_features_is_zero():
    bank = np.array([[0, 0], [1, 0], [-1, 0]], np.float32)
    similarity, place = neighbours(bank, np.array([[2, 0], [0, 0]], np.float32), 3)
    np.testing.assert_array_equal(similarity, [[1, 0, -1], [0, 0, 0]])
    np.testing.assert_array_equal(place[0], [1, 0, 2])


def test_knn_reads_a_memory_mapped_bank_in_blocks(tmp_path, monkeypatch):
    features = labelled(200, 130, 6, 8)
    np.save(tmp_path / "bank.npy", features.train.astype(np.float16))
    bank = np.load(tmp_path / "bank.npy", mmap_mode="r")
    seen = []

    class Bank:
        """Of which nobody takes more than a part."""

        shape, ndim = bank.shape, 2

        def __len__(self):
            return len(bank)

        def __getitem__(self, part):
            seen.append(part.stop - part.start)
            return bank[part]

    monkeypatch.setattr(nearest_neighbours, "BANK_BLOCK", 4 * 6 * 40)
    lazy: Any = Bank()
    rest = features.train_labels, features.test
    result = knn.predict(lazy, *rest, k=20, temperature=0.1)
    assert max(seen) == 40
    expected = ranking_oracle(bank, *rest, k=20, temperature=0.1, num_classes=8)
    np.testing.assert_array_equal(result, expected)


def test_knn_accepts_class_numbers_with_gaps_or_missing_in_the_bank():
    train, labels, test, truth = labelled(60, 30, 6, 4)
    hyper = {"k": 10, "temperature": 0.1}
    result = knn.predict(train, labels * 50, test, num_classes=200, **hyper)
    expected = knn.predict(train, labels, test, **hyper)
    np.testing.assert_array_equal(result[:, 0], 50 * expected[:, 0])
    np.testing.assert_array_equal(np.sort(result), np.tile(np.arange(200), (30, 1)))
    scores = knn.accuracy(Features(train, labels, test, np.where(truth == 3, 900, truth)), **hyper)
    right = (expected[:, 0] == truth) & (truth < 3)
    assert scores["knn_top1"] == pytest.approx(100 * right.mean())


def test_knn_accuracy_is_100_for_a_single_class():
    train, _, test, _ = labelled(60, 7, 6, 1)
    zeros = np.zeros(60, np.int64)
    assert knn.predict(train, zeros, test, k=5, temperature=0.1).tolist() == [[0]] * 7
    scores = knn.accuracy(Features(train, zeros, test, zeros[:7]), k=5, temperature=0.1)
    assert scores == {"knn_top1": 100, "knn_top5": 100}


# ---- Arguments that are refused.


def last(value):
    """Return the function that changes the last number of an array."""
    return lambda array: np.array([*array[:-1], np.full_like(array[-1], value, dtype=type(value))])


LABELS = [
    (lambda labels: labels[:-1], r"must be integers \[(10|4)\], one for each row"),
    (last(-1), r"indices in \[0, 2147483648\), got -1"),
    (last(10**9), "between 1 and 1000000, got 1000000001"),
    (last(0.5), "must be integers .*, got float64"),
    (last(np.nan), "must be integers .*, got float64"),
    (last(2**32), r"indices in \[0, 2147483648\), got 4294967296"),
]


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("k", 0, "setting k must be >= 1, got 0"),
        ("temperature", np.inf, "temperature must be finite, got inf"),
        ("temperature", 0.0, "temperature must be > 0, got 0.0"),
        ("temperature", np.nan, "temperature must be finite, got nan"),
        ("weight", "cosine", "one of exp, linear, equal, got 'cosine'"),
        *(("train_labels", *case) for case in LABELS),
        *(("test_labels", *case) for case in LABELS),
        ("train", last(np.nan), "must be finite, but row 9 of the bank has NaN"),
        ("train", last(np.inf), "must be finite, but row 9 of the bank has NaN"),
        ("test", last(np.nan), "must be finite, but row 3 of queries has NaN"),
    ],
)
def test_knn_refuses_impossible_settings_labels_and_features(name, change, message):
    features, settings = labelled(10, 4, 3, 2), {"k": 3, "temperature": 0.1}
    if name in features._fields:
        features = features._replace(**{name: change(getattr(features, name))})
    else:
        settings[name] = change
    with pytest.raises(ValueError, match=message):
        knn.evaluate(*features, **settings)


@pytest.mark.parametrize(
    ("shift", "message"), [(0, "below the number of classes 1, got 1"), (2**32, "got 4294967296")]
)
def test_knn_refuses_a_label_beyond_the_classes(shift, message):
    train, labels, test, _ = labelled(10, 4, 3, 2)
    with pytest.raises(ValueError, match=message):
        knn.predict(train, labels + shift, test, k=1, temperature=1.0, num_classes=1)


@pytest.mark.parametrize(
    ("bank", "queries", "message"),
    [
        ((10, 3), (4, 2), r"got \[10, 3\] and \[4, 2\]"),
        ((10,), (4,), r"got \[10\] and \[4\]"),
        ((0, 3), (4, 3), r"must not be empty, got \[0, 3\] and \[4, 3\]"),
        ((10, 3), (0, 3), r"must not be empty, got \[10, 3\] and \[0, 3\]"),
        ((10, 0), (4, 0), r"must not be empty, got \[10, 0\] and \[4, 0\]"),
    ],
)
def test_knn_refuses_features_of_invalid_shape(bank, queries, message):
    with pytest.raises(ValueError, match=message):
        neighbours(np.ones(bank), np.ones(queries), 1)
