"""Protocols against float64 loops, and the promises that make their figures comparable."""

import numpy as np
import pytest
from feature_cases import labelled
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import top_k_accuracy_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from jaxssl.evaluation import logistic_regression
from jaxssl.evaluation.protocol import EvalContext
from jaxssl.evaluation.protocols import linear
from jaxssl.training import collapse

SETTINGS = {"validation": 0.25, "tolerance": 1e-4, "max_iter": 500, "seed": 0}
SETTINGS |= {"C": (1.0, 1e-3, 0.1)}


@pytest.mark.parametrize("classes", [2, 7])
def test_linear_probe_of_separable_classes_chooses_the_strongest_regularisation(classes):
    settings = {**SETTINGS, "C": (100.0, 1.0, 10.0)}
    scores = linear.accuracy(labelled(140, 56, 8, classes, spread=0.01), **settings)
    assert scores.pop("gradient_norm") < 1e-3
    assert scores == {"linear_top1": 100, "linear_top5": 100, "C": 1.0}


def test_linear_probe_equals_scikit_learns_pipeline_with_the_chosen_C():
    features = labelled(160, 80, 6, 8, spread=2.0)
    result = linear.accuracy(features, **{**SETTINGS, "C": (10.0, 0.1, 1.0)})
    classifier = LogisticRegression(C=result["C"], tol=1e-8, max_iter=5000)
    model = make_pipeline(StandardScaler(), classifier)
    model.fit(features.train.astype(np.float64), features.train_labels)
    scores = model.decision_function(features.test.astype(np.float64))
    for k in (1, 5):
        expected = 100 * top_k_accuracy_score(features.test_labels, scores, k=k)
        assert result[f"linear_top{k}"] == pytest.approx(expected)
    assert result["linear_top1"] < result["linear_top5"] < 100


def test_logistic_regression_reaches_the_optimum_of_ill_conditioned_features():
    features = labelled(160, 80, 6, 4, spread=2.0)
    scale = np.logspace(0, -3, 6)
    mixed = np.random.default_rng(1).normal(size=(6, 6)) * scale
    x = (features.train @ mixed).astype(np.float32)
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    used = np.ones(160, np.float32)
    used[100:] = 0
    settings = {"C": 0.3, "tolerance": 1e-6, "max_iter": 500}
    y = features.train_labels
    rows = logistic_regression.Examples(x, x.T, y, 4, np.cov(x.T, bias=True))
    result = logistic_regression.regression(rows, used, **settings)
    expected = LogisticRegression(C=0.3, tol=1e-8, max_iter=5000).fit(x[:100], y[:100])
    np.testing.assert_allclose(result.weights.T, expected.coef_, atol=2e-3)
    np.testing.assert_allclose(result.bias, expected.intercept_, atol=2e-3)
    again = logistic_regression.regression(rows, used, **settings, start=result)
    assert again.num_steps < result.num_steps


def test_logistic_regression_takes_a_covariance_that_rounding_has_made_indefinite():
    """The covariance of features of low rank, in float32, has eigenvalues below zero."""
    features = labelled(160, 80, 3, 4, spread=2.0)
    x = features.train @ np.random.default_rng(1).normal(size=(3, 9))
    x = ((x - x.mean(axis=0)) / x.std(axis=0)).astype(np.float32)
    covariance = np.cov(x.T, bias=True) - 4e-8 * 9 * np.eye(9)
    y, used = features.train_labels, np.ones(160, np.float32)
    rows = logistic_regression.Examples(x, x.T, y, 4, covariance)
    result = logistic_regression.regression(rows, used, C=1e5, tolerance=1e-4, max_iter=500)
    expected = LogisticRegression(C=1e5, tol=1e-8, max_iter=5000).fit(x, y)
    assert ((x @ result.weights + result.bias).argmax(axis=1) == expected.predict(x)).mean() > 0.98


def test_linear_probe_is_that_of_scikit_learn_if_the_devices_hold_padding():
    x, y, *_ = labelled(157, 80, 6, 4, spread=2.0)
    probe = logistic_regression.fit_probe(x + 5, y, **{**SETTINGS, "C": (0.3,), "tolerance": 1e-6})
    scaler = StandardScaler().fit(x.astype(np.float64) + 5)
    expected = LogisticRegression(C=0.3, tol=1e-8, max_iter=5000)
    expected.fit(scaler.transform(x.astype(np.float64) + 5), y)
    np.testing.assert_allclose(probe.mean, scaler.mean_, rtol=1e-5)
    np.testing.assert_allclose(probe.scale, scaler.scale_, rtol=1e-5)
    np.testing.assert_allclose(probe.fit.weights.T, expected.coef_, atol=2e-3)
    np.testing.assert_allclose(probe.fit.bias, expected.intercept_, atol=2e-3)


@pytest.mark.long
def test_logistic_regression_in_blocks_equals_the_fit_on_all_examples(monkeypatch):
    x, y, *_ = labelled(160, 80, 6, 4, spread=2.0)
    settings = {**SETTINGS, "C": (0.1, 1.0), "validation": 0.2}
    whole = logistic_regression.fit_probe(x, y, **settings)
    for name, size in (("SCORES", 4 * 50), ("TRANSPOSED", 0)):
        monkeypatch.setattr(logistic_regression, name, size)
        parts = logistic_regression.fit_probe(x, y, **settings)
        np.testing.assert_allclose(parts.fit.weights, whole.fit.weights, atol=2e-3)


def test_linear_probe_chooses_C_on_a_subset_of_many_examples(monkeypatch):
    features = labelled(160, 80, 6, 4, spread=2.0)
    monkeypatch.setattr(logistic_regression, "CHOICE", 60)
    monkeypatch.setattr(logistic_regression, "CHOICE_OF_CLASS", 5)
    seen, fit = [], logistic_regression.regression

    def spy(rows, used, **settings):
        seen.append((len(rows.x), int(used.sum())))
        return fit(rows, used, **settings)

    monkeypatch.setattr(logistic_regression, "regression", spy)
    result = linear.accuracy(features, **SETTINGS)
    assert seen == [(60, 44)] * 3 + [(160, 160)]
    assert 25 < result["linear_top1"] < 100


def test_linear_probe_ranks_classes_with_equal_scores_by_number(monkeypatch):
    monkeypatch.setattr(logistic_regression, "scores", lambda probe, x: np.zeros((len(x), 100)))
    features = labelled(400, 5, 3, 100)  # The test examples belong to the classes 0 to 4.
    scores = linear.accuracy(features, **SETTINGS)
    assert (scores["linear_top1"], scores["linear_top5"]) == (20, 100)


def test_linear_probe_supports_single_example_classes_and_constant_features():
    features = labelled(61, 40, 6, 4, spread=0.1)
    labels = np.where(np.arange(61) == 60, 4, features.train_labels)
    assert linear.accuracy(features._replace(train_labels=labels), **SETTINGS)["linear_top1"] > 90
    balanced = labelled(60, 40, 6, 4)
    constant = balanced._replace(train=np.ones((60, 6), np.float32))
    result = linear.accuracy(constant, **SETTINGS)
    assert result["gradient_norm"] == 0 and np.isfinite(list(result.values())).all()
    few = labelled(8, 8, 6, 4)
    with pytest.raises(ValueError, match="needs a class with 3 training images or more"):
        linear.accuracy(few._replace(train_labels=np.arange(8)), **SETTINGS)
    with pytest.raises(ValueError, match="train_labels have one class"):
        linear.accuracy(few._replace(train_labels=np.zeros(8, np.int32)), **SETTINGS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"C": ()}, r"C must be one or more finite numbers > 0, got \(\)"),
        ({"C": (1.0, -1.0)}, "C must be one or more finite numbers > 0"),
        ({"C": (np.inf,)}, "C must be one or more finite numbers > 0"),
        ({"validation": 0.0}, r"validation must be a share in \(0, 1\), got 0.0"),
        ({"validation": 1.5}, "validation must be a share in .*, got 1.5"),
        ({"tolerance": 0.0}, "setting tolerance must be > 0, got 0.0"),
        ({"max_iter": 0}, "setting max_iter must be >= 1, got 0"),
    ],
)
def test_linear_probe_refuses_settings_out_of_range(changes, message):
    with pytest.raises(ValueError, match=message):
        linear.accuracy(labelled(60, 30, 4, 3), **{**SETTINGS, **changes})


def test_linear_probe_chooses_C_without_the_test_labels():
    features = labelled(120, 60, 10, 4, spread=3.0)
    shuffled = np.random.default_rng(1).permutation(features.test_labels)
    one = linear.accuracy(features, **SETTINGS)
    other = linear.accuracy(features._replace(test_labels=shuffled), **SETTINGS)
    assert one["C"] == other["C"]
    assert one["linear_top1"] != other["linear_top1"]


def test_linear_probe_is_invariant_to_scale_offset_and_dead_features():
    features = labelled(120, 60, 4, 3, spread=1.5)
    scale = np.array([1e-2, 1, 30, 5], np.float32)

    def changed(rows):
        dead = np.full((len(rows), 1), 3, np.float32)
        return np.concatenate([rows * scale + 2, dead], axis=1)

    same = features._replace(train=changed(features.train), test=changed(features.test))
    expected, result = (linear.accuracy(f, **SETTINGS) for f in (features, same))
    # Differences of float32 losses show a gradient down to the root of their precision, 3.5e-4.
    assert max(expected.pop("gradient_norm"), result.pop("gradient_norm")) < 1e-3
    assert result == pytest.approx(expected)


@pytest.mark.parametrize("size", [1e-31, 1e-38, 1e-44])
def test_linear_probe_takes_a_feature_of_tiny_size_as_constant(size):
    features = labelled(120, 60, 4, 3, spread=1.5)

    def widened(rows):
        noise = np.random.default_rng(0).normal(size=(len(rows), 1)) * size
        return np.concatenate([rows, noise.astype(np.float32)], axis=1)

    wider = features._replace(train=widened(features.train), test=widened(features.test))
    expected, result = (linear.accuracy(f, **SETTINGS) for f in (features, wider))
    assert result["linear_top1"] == expected["linear_top1"]


def test_normalised_linear_probe_equals_the_probe_on_features_of_unit_norm():
    features = labelled(120, 120, 5, 4, spread=1.5)
    scale = np.random.default_rng(1).uniform(0.1, 9, (120, 1)).astype(np.float32)
    other = features._replace(train=features.train * scale, test=features.test * scale[::-1])
    rows = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (features.train, features.test)]
    expected = linear.accuracy(features._replace(train=rows[0], test=rows[1]), **SETTINGS)
    result = linear.accuracy(other, **SETTINGS, normalised=True)
    names = ("linear_top1", "linear_top5", "C")
    assert [result[name] for name in names] == [expected[name] for name in names]
    plain = linear.accuracy(other, **SETTINGS)
    assert [plain[name] for name in names] != [result[name] for name in names]


@pytest.mark.parametrize(
    ("lost", "won", "worse"),
    [(4, 0, True), (1, 0, False), (9, 4, True), (7, 4, False), (0, 5, False)],
)
def test_candidate_C_is_worse_only_if_less_accurate_by_more_than_a_standard_error(lost, won, worse):
    hit = np.array([False] * lost + [True] * won + [True, False])
    other = np.array([True] * lost + [False] * won + [True, False])
    assert logistic_regression._is_worse(hit, other) is worse


@pytest.mark.parametrize(
    ("right", "chosen", "number"),
    [
        (((0, 10), (4, 16)), 0.1, 2),
        (((0, 3), (2, 14), (4, 17)), 1.0, 3),
        (((0, 3), (0, 4), (0, 14), (0, 5), (0, 20)), 10.0, 4),  # stops after the drop from 14 to 5
    ],
)
def test_strongest_regularisation_within_a_standard_error_of_the_best_is_chosen(
    right, chosen, number, monkeypatch
):
    """The examples that each candidate classifies rightly are the range in ``right``."""
    strengths, tried = (0.1, 1.0, 10.0, 100.0, 1000.0)[: len(right)], []

    def regression(examples, used, *, C, start, **settings):
        tried.append(C)
        labels = np.ones(20, int)
        labels[slice(*right[strengths.index(C)])] = 0  # 0 is the true label
        return logistic_regression.Fit(np.eye(2)[labels], np.zeros(2), 0.0, len(tried))

    monkeypatch.setattr(logistic_regression, "regression", regression)
    held_out = np.eye(20), np.zeros(20, int)
    options = {"tolerance": 1.0, "max_iter": 1}
    c, fit = logistic_regression._choose(None, None, held_out, strengths, **options)
    assert (c, strengths[fit.num_steps - 1]) == (chosen, chosen)
    assert tried == list(strengths[:number])


def test_linear_probe_reports_the_chosen_C():
    features = labelled(60, 30, 4, 3, spread=1.5)
    rows = linear.run(EvalContext(features), seed=2)
    preset = linear.PRESETS["fast"]
    scores = linear.accuracy(features, **preset, seed=2)
    for row, metric in zip(rows, ["linear_top1", "linear_top5"], strict=True):
        assert (row.metric, row.value, row.std) == (metric, scores[metric], None)
        result = {name: scores[name] for name in ("C", "gradient_norm")}
        assert row.details == {**preset, "preset": "fast", **result}


def measures(embeddings):
    return {name: float(value) for name, value in collapse.embedding_metrics(embeddings).items()}


def measures_oracle(embeddings):
    z = embeddings.astype(np.float64)
    z /= np.linalg.norm(z, axis=2, keepdims=True)
    num_views, b, d = z.shape
    agree, distance, apart, potential = [], [], [], []
    for v, w in np.ndindex(num_views, num_views):
        for i, j in np.ndindex(b, b):
            if i == j and (v != w or num_views == 1):
                agree.append(z[v, i] @ z[w, j])
                distance.append(((z[v, i] - z[w, j]) ** 2).sum())
            elif i != j:
                apart.append(z[v, i] @ z[w, j])
                potential.append(np.exp(-2 * ((z[v, i] - z[w, j]) ** 2).sum()))
    rows = z.reshape(-1, d)
    share = np.linalg.svd(rows)[1]
    share = share[share > 1e-12] / share.sum()
    return {
        "feature_std": rows.std(axis=0).mean() * np.sqrt(d),
        "effective_rank": np.exp(-(share * np.log(share)).sum()),
        "alignment": np.mean(distance),
        "uniformity": np.log(np.mean(potential)),
        "positive_similarity": np.mean(agree),
        "negative_similarity": np.mean(apart),
    }


@pytest.mark.parametrize("num_views", [1, 2, 3])
def test_collapse_metrics_match_their_definitions(num_views, monkeypatch):
    monkeypatch.setattr(collapse, "BLOCK", 4)
    z = np.random.default_rng(0).normal(0.3, 1, (num_views, 5, 4)).astype(np.float32)
    z += z[:1]  # The views of an example become similar.
    assert measures(z) == pytest.approx(measures_oracle(z), rel=1e-4, abs=1e-5)


def test_collapse_metrics_report_equal_embeddings_as_collapsed():
    result = measures(np.ones((2, 6, 4), np.float32))
    ones = dict.fromkeys(("effective_rank", "positive_similarity", "negative_similarity"), 1)
    zeros = dict.fromkeys(("feature_std", "alignment", "uniformity"), 0)
    assert result == pytest.approx({**ones, **zeros}, abs=1e-3)
    assert result["feature_std"] < collapse.COLLAPSED_STD


def test_orthogonal_embeddings_have_full_rank_and_spherical_ones_unit_feature_std():
    assert measures(5 * np.eye(6, 8, dtype=np.float32)[None])["effective_rank"] == pytest.approx(6)
    sphere = np.random.default_rng(0).normal(size=(1, 500, 8)).astype(np.float32)
    assert measures(sphere)["feature_std"] == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("shape", [(2, 1, 4), (1, 1, 4)])
def test_collapse_metrics_of_one_example_are_finite(shape):
    result = measures(np.random.default_rng(0).normal(size=shape).astype(np.float32))
    assert np.isfinite(list(result.values())).all()
    assert (result["uniformity"], result["negative_similarity"]) == (0, 0)


def test_collapse_metrics_of_nan_embeddings_are_nan():
    assert np.isnan(list(measures(np.full((2, 3, 4), np.nan, np.float32)).values())).all()


def test_collapse_metrics_of_zero_embeddings_are_finite():
    assert np.isfinite(list(measures(np.zeros((2, 3, 4), np.float32)).values())).all()
