"""Diagnostics and noise on similarities against NumPy, SciPy and scikit-learn; collapses."""

import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from feature_cases import labelled
from jax import numpy as jnp
from scipy import linalg

from jaxssl.evaluation import feature_rank
from jaxssl.evaluation.protocol import EvalContext, Features
from jaxssl.evaluation.protocols import diagnostics, knn, noise
from jaxssl.training import collapse

SIZES = {"n": 70, "m": 23, "f": 6, "classes": 4}  # arguments of `labelled`


def verdict(features):
    numbers = {"rank": feature_rank.rankme(features), "spread": feature_rank.feature_std(features)}
    return feature_rank.describe_collapse(**numbers, most=min(features.shape))


def gaussian(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def exp_entropy(values):
    share = values[values > 1e-12 * values.max()] / values.sum()
    return np.exp(-(share * np.log(share)).sum())


@pytest.mark.parametrize("shape", [(60, 8), (8, 60), (20, 20)])
def test_rankme_equals_the_entropy_of_the_singular_values(shape):
    features = gaussian(*shape) + 2  # The mean is not zero.
    expected = exp_entropy(linalg.svdvals(features.astype(float)))
    assert feature_rank.rankme(features) == pytest.approx(expected, rel=1e-4)
    assert feature_rank.rankme(1e3 * features) == pytest.approx(expected, rel=1e-4)


def test_rankme_counts_orthogonal_directions():
    assert feature_rank.rankme(np.eye(6, 9)) == pytest.approx(6, rel=1e-4)
    assert feature_rank.rankme(np.outer(gaussian(50), gaussian(9))) == pytest.approx(1, rel=1e-3)
    assert feature_rank.rankme(np.zeros((5, 3))) == 0


@pytest.mark.parametrize(("q", "n", "d"), [(4, 60, 5), (10, 6, 8)])
def test_lidar_equals_the_entropy_of_the_generalised_eigenvalues(q, n, d):
    views = (gaussian(1, n, d) * np.arange(1, d + 1) + 0.5 * gaussian(q, n, d, seed=1)) / 3
    means = views.mean(axis=0, dtype=float)
    between = np.cov(means.T, bias=True)
    within = np.mean([np.cov(v.T, bias=True) for v in np.moveaxis(views, 1, 0)], axis=0)
    values = linalg.eigh(between, within + 1e-2 * np.eye(d), eigvals_only=True)
    result = feature_rank.lidar(views, delta=1e-2)
    assert result == pytest.approx(exp_entropy(values), rel=1e-4)
    assert 1 < result <= min(n - 1, d)


def test_lidar_measures_directions_shared_by_views():
    """Eight dimensions tell views apart, two of them images too."""
    apart = gaussian(10, 400, 8)
    told = 5 * gaussian(1, 400, 8, seed=1) * (np.arange(8) < 2)
    assert feature_rank.rankme((apart + told)[0]) > 4
    # The six other dimensions keep a tenth of their variance in the means over ten views.
    assert 2 <= feature_rank.lidar(apart + told) < 2.2
    assert feature_rank.lidar(apart) > 7.5


def test_lidar_of_features_of_any_scale_is_finite():
    views = gaussian(2, 20, 30)  # fewer images than dimensions
    assert 1 <= feature_rank.lidar(1e9 * views) <= 19
    assert feature_rank.lidar(np.ones((2, 5, 4))) == 0
    assert feature_rank.lidar(views, delta=1e9) == pytest.approx(
        feature_rank.lidar(views, delta=1e6)
    )


@pytest.mark.parametrize(("shape", "delta"), [((1, 5, 3), 0.1), ((3, 1, 3), 0.1), ((3, 5, 3), 0.0)])
def test_lidar_refuses_too_few_views_or_images(shape, delta):
    with pytest.raises(ValueError, match="LiDAR needs at least 2 views, 2 images and delta > 0"):
        feature_rank.lidar(np.zeros(shape), delta=delta)


def test_feature_std_of_diagnostics_equals_the_training_metric_of_that_name():
    features = gaussian(50, 6) + 1
    expected = collapse.embedding_metrics(features[None])["feature_std"]
    assert feature_rank.feature_std(features) == pytest.approx(float(expected), rel=1e-5)
    assert feature_rank.feature_std(np.zeros((4, 3))) == 0


@pytest.mark.parametrize("scale", [1e-6, 1, 1e6])
def test_dead_dimensions_are_constant_features(scale):
    features = gaussian(50, 8)
    features[:, 1] = 0.3
    features[:, 5:7] = 0
    assert feature_rank.dead_dimensions(scale * features) == pytest.approx(100 * 3 / 8)
    assert feature_rank.dead_dimensions(np.full((5, 4), 0.1, np.float32)) == 100


LOW = gaussian(500, 3) @ gaussian(3, 64, seed=1)
CLUSTERS = 3 * gaussian(10, 64, seed=2)[np.arange(500) % 10]
CASES = {
    "constant": (np.ones((500, 64)), "complete collapse"),
    "zero": (np.zeros((500, 64)), "complete collapse"),
    "nearly constant": (5 + gaussian(500, 64), "complete collapse"),
    "one direction": (np.abs(gaussian(500, 1)) * gaussian(1, 64, seed=1), "complete collapse"),
    "a line": (gaussian(500, 1) * gaussian(1, 64, seed=1), "dimensional collapse"),
    "three dimensions": (LOW + 1e-3 * gaussian(500, 64), "dimensional collapse"),
    "a line of few": (gaussian(500, 1) * gaussian(1, 8, seed=1), "dimensional collapse"),
    "gaussian": (gaussian(500, 64), "no collapse"),
    "few features": (gaussian(500, 2), "no collapse"),
    "one feature": (gaussian(500, 1), "no collapse"),
    "few examples": (gaussian(5, 64), "no collapse"),
    "clustered": (CLUSTERS + gaussian(500, 64), "no collapse"),
    "rectified": (np.maximum(gaussian(500, 64), 0), "no collapse"),
}


@pytest.mark.parametrize("name", CASES)
def test_diagnostics_name_the_kind_of_collapse(name):
    features, expected = CASES[name]
    words, _, rest = verdict(features).partition(":")
    assert words == expected
    assert f"rank {feature_rank.rankme(features):.1f} of {min(features.shape)}" in rest


def test_alignment_and_uniformity_use_the_first_two_views():
    views = gaussian(3, 20, 5)
    views[1] = views[0]
    result = diagnostics.evaluate(gaussian(30, 5), views, delta=1e-4)
    z = views[0].astype(float) / np.linalg.norm(views[0], axis=1, keepdims=True)
    distance = ((z[:, None] - z) ** 2).sum(axis=2)[~np.eye(20, dtype=bool)]
    assert result["alignment"] == pytest.approx(0, abs=1e-6)
    assert result["uniformity"] == pytest.approx(np.log(np.exp(-2 * distance).mean()), rel=1e-4)


def test_diagnostics_reject_nonfinite_features():
    with pytest.raises(ValueError, match="features must be finite"):
        diagnostics.evaluate(np.full((5, 3), np.nan), gaussian(2, 5, 3), delta=1e-4)


@pytest.mark.parametrize("split", ["train", "test"])
def test_diagnostics_reject_a_nonfinite_feature_that_is_not_drawn(split, monkeypatch):
    limits = {"features": 7, "images": 4, "views": 2, "delta": 0.1}
    monkeypatch.setitem(diagnostics.PRESETS, "default", limits)
    context = make_context(3)
    features = getattr(context.features, split).copy()
    drawn = np.random.default_rng(0).choice(18, 7, replace=False)
    features[np.setdiff1d(np.arange(18), drawn)[0], 0] = np.nan
    context = context._replace(features=context.features._replace(**{split: features}))
    with pytest.raises(ValueError, match="features must be finite"):
        diagnostics.run(context, seed=0)


def test_nearest_class_mean_equals_numpy():
    rng = np.random.default_rng(0)
    train, test = gaussian(60, 5), gaussian(40, 5, seed=1)
    labels, test_labels = rng.integers(0, 6, 60), rng.integers(0, 7, 40)
    labels[labels == 2] = 3  # Class 2 has no training image, class 6 only test images.
    rows, queries = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (train, test))
    classes = np.unique(labels)
    means = np.stack([rows[labels == c].mean(axis=0) for c in classes])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    predicted = classes[(queries @ means.T).argmax(axis=1)]
    result = diagnostics.nearest_class_mean(Features(train, labels, test, test_labels))
    np.testing.assert_array_equal(result, predicted)


def test_confused_classes_are_sorted_by_most_confused_first():
    counts = {(0, 0): 8, (0, 1): 1, (0, 2): 1, (1, 1): 9, (1, 2): 1, (2, 0): 6, (2, 2): 14}
    labels, predicted = np.repeat(list(counts), list(counts.values()), axis=0).T
    assert diagnostics.confused_pairs(labels, predicted) == [
        (0, 2, pytest.approx(100 * 7 / 30)),
        (0, 1, 5.0),
        (1, 2, pytest.approx(100 / 30)),
    ]
    assert diagnostics.confused_pairs(labels, labels) == []
    # With many classes, a matrix of all pairs would not fit in memory.
    many = np.array([60_000, 3, 3])
    assert diagnostics.confused_pairs(many, np.array([3, 3, 3])) == [
        (3, 60_000, pytest.approx(100 / 3))
    ]


def make_context(num_classes, names=()):
    """Images of 2 x 2 pixels in classes of one colour; classes 0 and 1 are nearly alike."""
    rng = np.random.default_rng(0)
    colours = rng.integers(0, 256, (num_classes, 3))
    colours[1] = colours[0] + 1
    labels = np.arange(6 * num_classes) % num_classes

    def noisy(images, seed):
        change = np.random.default_rng(seed).integers(-3, 4, images.shape)
        return np.clip(images + change, 0, 255).astype(np.uint8)

    images = noisy(np.broadcast_to(colours[labels][:, None, None], (len(labels), 2, 2, 3)), 1)
    source = SimpleNamespace(images=lambda size: images, class_names=names)

    def encode(x):
        return np.float32(x.reshape(len(x), -1)) - 128

    def views(x, number, seed):
        return np.stack([encode(noisy(x.astype(int), (seed, v))) for v in range(number)])

    features = Features(encode(images), labels, encode(noisy(images, 2)), labels)
    return EvalContext(features, source, source, encode, views, size=2)


def test_diagnostics_with_labels_report_class_metrics():
    context = make_context(5, ("ape", "ass", "bat", "bee", "cat"))
    rows = {row.metric: row for row in diagnostics.run(context, seed=0)}
    units = {name: row.unit for name, row in rows.items()}
    percent = ("dead_dimensions", "class_mean_top1", "worst_class_top1", "most_confused_pair")
    assert [name for name in units if units[name] == "%"] == list(percent)
    assert list(units)[:5] == ["rankme", "lidar", "alignment", "uniformity", "feature_std"]
    said = rows["rankme"].details["verdict"]
    assert said == verdict(context.features.train)
    assert [name for name, row in rows.items() if "verdict" in row.details] == ["rankme"]
    drawn = {"preset": "default", "features": 30, "images": 30, "views": 10, "delta": 1e-4}
    by_class = {"preset": "default", "classifier": "nearest class mean"}
    for name, row in rows.items():
        known = by_class if name in percent[1:] else drawn
        assert row.details.items() >= known.items() and row.details.keys() & drawn.keys() in (
            known.keys(),
            {"preset"},
        )
        assert row.std is None
        assert np.isfinite(row.value)
    json.dumps([row._asdict() for row in rows.values()])

    means = rows["class_mean_top1"].details
    counts = np.array(means["confusion"])
    assert counts.sum() == 30
    assert rows["class_mean_top1"].value == pytest.approx(100 * np.trace(counts) / 30)
    assert set(means["per_class"]) == {"ape", "ass", "bat", "bee", "cat"}
    assert rows["worst_class_top1"].value == min(means["per_class"].values())
    assert rows["most_confused_pair"].details["pairs"][0][:2] == ("ape", "ass")


def test_worst_class_is_found_among_classes_of_the_same_name():
    context = make_context(3, ("ape", "ape", "ape"))
    labels = context.features.test_labels
    # All test images of class 1 are confused, and those of the last class are not.
    test = context.features.test.copy()
    test[labels == 1] = context.features.test[labels == 0]
    context = context._replace(features=context.features._replace(test=test))
    rows = {row.metric: row for row in diagnostics.run(context, seed=0)}
    counts = np.array(rows["class_mean_top1"].details["confusion"])
    accuracies = 100 * np.diag(counts) / counts.sum(axis=1)
    assert accuracies.min() < accuracies[-1]
    assert rows["worst_class_top1"].value == pytest.approx(accuracies.min())
    per_class = rows["class_mean_top1"].details["per_class"]
    assert per_class == pytest.approx({f"ape ({c})": accuracies[c] for c in range(3)})


def test_diagnostics_without_labels_omit_class_metrics():
    context = make_context(3)
    unknown = np.full_like(context.features.train_labels, -1)
    features = context.features._replace(train_labels=unknown, test_labels=unknown)
    rows = diagnostics.run(context._replace(features=features), seed=0)
    whole = diagnostics.run(context, seed=0)
    assert [row.metric for row in rows] == [row.metric for row in whole[:6]]
    assert [row.value for row in rows] == [row.value for row in whole[:6]]
    assert not diagnostics.protocol.needs_labels


def test_confusion_matrix_of_many_classes_is_not_stored(monkeypatch):
    monkeypatch.setattr(diagnostics, "MATRIX", 11)
    *_, means, _, pairs = diagnostics.run(make_context(12), seed=0)
    assert "confusion" not in means.details
    assert 1 <= len(pairs.details["pairs"]) <= diagnostics.PAIRS


def test_diagnostics_use_a_limited_number_of_features_and_images(monkeypatch):
    limits = {"features": 7, "images": 4, "views": 2, "delta": 0.1}
    monkeypatch.setitem(diagnostics.PRESETS, "default", limits)
    context = make_context(3)
    row = diagnostics.run(context, seed=0)[0]
    assert row.details.items() >= limits.items()
    chosen = np.sort(np.random.default_rng(0).choice(18, 7, replace=False))
    assert row.value == pytest.approx(feature_rank.rankme(context.features.train[chosen]))


def test_diagnostics_views_are_of_training_images_and_drawn_with_the_seed():
    context, seen = make_context(3), []
    images = context.train.images(context.size)
    test = SimpleNamespace(images=lambda size: 255 - images, class_names=())

    def views(x, number, seed):
        seen.append((x, number, seed))
        return gaussian(number, len(x), 5)

    rows = diagnostics.run(context._replace(test=test, views=views), seed=3)
    [(viewed, number, seed)] = seen
    np.testing.assert_array_equal(viewed, images)
    assert (number, seed) == (10, 3)
    dimensions = {row.metric: row.details["dimensions"] for row in rows[:6]}
    assert [name for name in dimensions if dimensions[name] == 5] == list(diagnostics.VIEW_METRICS)
    assert sorted(dimensions.values()) == [5, 5, 5, 12, 12, 12]


NOISE = {"draws": 2, "k": 9, "temperature": 0.5, "seed": 5}


def test_noisy_knn_with_zero_noise_equals_knn():
    features = labelled(**SIZES)
    expected = knn.accuracy(features, k=9, temperature=0.5)["knn_top1"]
    result = noise.evaluate(features, stddevs=(0.0, 1e-9), **NOISE)
    np.testing.assert_array_equal(result, np.full((2, 2), expected))


def test_noisy_knn_neighbours_match_a_full_sort(monkeypatch):
    monkeypatch.setattr(noise, "BANK_BLOCK", 32)
    features, key = labelled(**SIZES), jax.random.key(1)
    stddevs = np.array([0.1, 0.4], np.float32)
    result = noise.neighbours(features.train, features.test, 9, jnp.asarray(stddevs), key)
    train, test = (
        x.astype(float) / np.linalg.norm(x, axis=1, keepdims=True) for x in features[::2]
    )
    index = np.arange(23, dtype=np.int32)
    drawn = [noise._noise(key, index, first, min(32, 70 - first)) for first in (0, 32, 64)]
    drawn = np.concatenate(drawn, axis=1)
    assert np.unique(drawn).size > 0.99 * drawn.size
    assert drawn.std() == pytest.approx(1, abs=0.05)
    for stddev, similarity, place in zip(stddevs, *result, strict=True):
        noisy = test @ train.T + stddev * drawn
        np.testing.assert_array_equal(place, np.argsort(-noisy, axis=1)[:, :9])
        np.testing.assert_allclose(similarity, -np.sort(-noisy, axis=1)[:, :9], atol=1e-5)


def test_similarity_noise_of_a_query_does_not_depend_on_other_queries(monkeypatch):
    features = labelled(**{**SIZES, "m": 40})
    result = noise.evaluate(features, stddevs=(0.3, 1.0), **NOISE)
    monkeypatch.setattr(noise, "QUERY_BLOCK", 7)
    np.testing.assert_array_equal(noise.evaluate(features, stddevs=(0.3, 1.0), **NOISE), result)
    other = noise.evaluate(features, stddevs=(0.3, 1.0), **{**NOISE, "seed": 6})
    assert not np.array_equal(result, other)


def test_noisy_knn_accuracy_falls_to_chance_with_large_noise(monkeypatch):
    preset = {"stddevs": (0.0, 0.1, 50.0), "draws": 3, "limit": 60, "k": 20, "temperature": 0.5}
    monkeypatch.setitem(noise.PRESETS, "cifar_simclr", preset)
    rows = noise.run(EvalContext(labelled(**{**SIZES, "n": 200, "m": 90})), seed=0)
    assert [row.metric for row in rows] == ["noise_0_top1", "noise_0.1_top1", "noise_50_top1"]
    assert rows[0].std == 0
    assert rows[0].value > 60
    assert 10 < rows[2].value < 45
    assert rows[2].std > 0  # noise differs between draws
    for row, stddev in zip(rows, preset["stddevs"], strict=True):
        expected = {**preset, "preset": "cifar_simclr", "stddev": stddev, "images": 60}
        assert row.details == expected


def test_noisy_knn_rows_have_mean_and_std_over_the_random_draws(monkeypatch):
    preset = {**noise.PRESETS["cifar_simclr"], "stddevs": (0.0, 0.5)}
    monkeypatch.setitem(noise.PRESETS, "cifar_simclr", preset)
    accuracy = np.array([[90.0, 90.0, 90.0], [80.0, 50.0, 65.0]])
    monkeypatch.setattr(noise, "evaluate", lambda *_, **__: accuracy)
    rows = noise.run(EvalContext(labelled(**SIZES)), seed=0)
    assert [(row.value, row.std) for row in rows] == [(90, 0), (65, pytest.approx(150**0.5))]


@pytest.mark.parametrize("stddev", [-0.1, np.nan, np.inf])
def test_similarity_noise_that_is_negative_or_not_finite_is_rejected(stddev):
    with pytest.raises(ValueError, match="setting stddevs must be (>= 0|finite)"):
        noise.evaluate(labelled(**SIZES), stddevs=(0.1, stddev), **NOISE)
