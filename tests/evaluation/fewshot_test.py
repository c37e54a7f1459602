"""Few-shot probes against loops, and the promises that make their figures comparable."""

from unittest.mock import Mock

import numpy as np
import pytest
from feature_cases import labelled
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import recall_score

from jaxssl.evaluation import protocol
from jaxssl.evaluation.protocol import EvalContext, Features
from jaxssl.evaluation.protocols import fewshot

DRAWS = {"shots": 2, "draws": 6, "C": 10.0, "max_iter": 1000}


def test_few_shot_accuracy_equals_scikit_learn_on_normalised_features(monkeypatch):
    """With features of unequal norms and test classes of unequal sizes."""
    features = labelled(80, 60, 5, 4, spread=1.5)
    scale = np.random.default_rng(1).uniform(0.1, 9, (80, 1)).astype(np.float32)
    kept = np.flatnonzero((features.test_labels == 0) | (np.arange(60) < 20))
    test = features.test[kept] * scale[kept]
    labels = features.test_labels[kept]
    features = features._replace(train=features.train * scale, test=test, test_labels=labels)
    drawn, draw = [], protocol.draw_shots
    monkeypatch.setattr(protocol, "draw_shots", lambda *a: drawn.append(draw(*a)) or drawn[-1])
    accuracy = fewshot.accuracy(features, **DRAWS, seed=0)
    train, test = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in features[::2])
    expected = []
    for places in map(np.ravel, drawn):
        model = LogisticRegression(C=10.0, max_iter=1000)
        model.fit(train[places], features.train_labels[places])
        expected.append(100 * np.mean(model.predict(test) == features.test_labels))
    np.testing.assert_allclose(accuracy, expected)
    assert len({tuple(places.ravel()) for places in drawn}) == DRAWS["draws"]


def test_drawn_shots_depend_only_on_the_seed():
    """An isometry to another width changes no decision, so equal figures mean equal draws."""
    features = labelled(80, 40, 5, 4, spread=1.5)
    basis, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(9, 5)))
    wider = features._replace(train=features.train @ basis.T, test=features.test @ basis.T)
    accuracy = fewshot.accuracy(features, **DRAWS, seed=0)
    np.testing.assert_array_equal(fewshot.accuracy(features, **DRAWS, seed=0), accuracy)
    np.testing.assert_allclose(fewshot.accuracy(wider, **DRAWS, seed=0), accuracy)
    assert not np.array_equal(fewshot.accuracy(features, **DRAWS, seed=1), accuracy)
    assert len(set(accuracy)) > 1  # the draws differ


def test_shots_are_drawn_per_class_without_replacement():
    labels = np.array([7, 0, 3])[np.arange(42) % 3]
    drawn = protocol.draw_shots(labels, 5, np.random.default_rng(0))
    np.testing.assert_array_equal(labels[drawn], np.repeat([[0], [3], [7]], 5, axis=1))
    assert len(set(drawn.ravel())) == 15


# All tests of ELEVATER use one shape and number of steps, so that they share a program.
SEARCH = {**fewshot.ELEVATER, "shots": 4, "draws": 2, "batch_size": 8}
SEARCH |= {"search_epochs": 6, "epochs": 12, "warmup_epochs": 3}


@pytest.mark.parametrize(
    ("probe", "settings"), [(fewshot.accuracy, DRAWS), (fewshot.elevater, SEARCH)]
)
def test_class_with_fewer_examples_than_shots_is_rejected(probe, settings):
    features = labelled(10, 4, 3, 2)
    labels = np.array([0] * 9 + [1])
    message = f"class 1 has 1 training examples, but {settings['shots']} shots are needed"
    with pytest.raises(ValueError, match=message):
        probe(features._replace(train_labels=labels), **settings, seed=0)


def test_few_shot_results_are_mean_and_std_over_the_draws(monkeypatch):
    settings = {"draws": 4, "C": 10.0, "max_iter": 1000}
    monkeypatch.setitem(fewshot.PRESETS, "default", {"shots": (1, 3), **settings})
    features = labelled(60, 40, 4, 3, spread=1.5)
    rows = fewshot.run(EvalContext(features), seed=3)
    for row, shots in zip(rows, (1, 3), strict=True):
        accuracy = fewshot.accuracy(features, shots=shots, **settings, seed=3)
        assert row.metric == f"fewshot_{shots}shot_top1"
        assert row.value == pytest.approx(sum(accuracy) / 4)
        assert row.std == pytest.approx(np.sqrt(np.mean((accuracy - row.value) ** 2)))
        assert row.details == {"preset": "default", "shots": shots, **settings}


FEATURES = labelled(90, 3 * 80, 7, 3, spread=1.5)  # 4 of the 12 shots are for validation
FEATURES.test_labels[:30:3] = 1  # makes the test classes unequal in size


def probe(features, *, seed=0, **changes):
    return fewshot.elevater(features, **{**SEARCH, **changes}, seed=seed)


def classifier(x, y, batches, rates, *, lr, decay, start, momentum):
    """Weights, biases and BatchNorm's statistics, in float64, batch by batch."""
    x, w = x.astype(np.float64), start.astype(np.float64)
    v = np.zeros_like(w)
    for batch, rate in zip(batches, rates, strict=True):
        rows = [i for i in batch if i >= 0]
        z = (x[rows] - x[rows].mean(axis=0)) / np.sqrt(x[rows].var(axis=0) + 1e-5)
        logits = z @ w[:-1] + w[-1]
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        p[np.arange(len(rows)), y[rows]] -= 1
        gradient = np.vstack([z.T @ p, p.sum(axis=0)]) / len(rows)
        v = momentum * v + gradient + decay * w
        w = w - lr * rate * v
    return w, x.mean(axis=0), x.var(axis=0)


def answers(x, w, mean, variance):
    return ((x - mean) / np.sqrt(variance + 1e-5) @ w[:-1] + w[-1]).argmax(axis=1)


@pytest.mark.parametrize("lr", [1e-4, 1e-2, 0.1])
def test_final_training_of_elevater_equals_a_float64_loop(lr, monkeypatch):
    """One rate and one decay are no search, so the figure is that of the final run alone."""
    monkeypatch.setattr(fewshot, "DECAYS", np.array([0.3]))
    spy = Mock(wraps=fewshot.num_correct)
    monkeypatch.setattr(fewshot, "num_correct", spy)
    result = probe(FEATURES, draws=1, lr=(lr,))
    assert (result.lr, result.weight_decay) == ([lr], [0.3])
    # The last recorded call is the final training, whose batches and rates the loop below uses.
    (train, _, batches, rates, *_), options = spy.call_args
    # With two batches per epoch, the learning rate rises for three epochs and falls for nine.
    cosine = [(1 + np.cos(np.pi * t / 18)) / 2 for t in range(18)]
    np.testing.assert_allclose(rates, [*(np.arange(6) / 6), *cosine], rtol=1e-5)
    np.testing.assert_array_equal(spy.call_args_list[0].args[3], np.ones(6))
    x, y = (np.asarray(part) for part in train)
    w = classifier(x, y, batches, rates, lr=lr, decay=0.3, **options)
    predicted = answers(FEATURES.test, *w)
    expected = 100 * np.mean(predicted == FEATURES.test_labels)
    assert result.accuracy == pytest.approx([expected], abs=1e-6)
    right = 100 * recall_score(FEATURES.test_labels, predicted, average="macro")
    assert result.mean_per_class == pytest.approx([right], abs=1e-6)
    assert len(x) == 12 and all((FEATURES.train == row).all(axis=1).any() for row in x)
    assert np.bincount(y).tolist() == [4, 4, 4]


@pytest.mark.parametrize(
    ("n", "size", "expected"),
    [(12, 8, [8, 4]), (8, 8, [8]), (5, 8, [5]), (9, 8, [8]), (10, 8, [8, 2])],
)
def test_elevater_epoch_covers_every_example_without_a_batch_of_size_one(n, size, expected):
    result = fewshot.batches(n, size, 30, np.random.default_rng(0))
    assert result.shape == (30 * len(expected), min(n, size))
    for epoch in result.reshape(30, -1):
        used = epoch[epoch >= 0]
        assert len(set(used)) == len(used) == sum(expected)
    real = (result.reshape(30, len(expected), -1) >= 0).sum(axis=2)
    np.testing.assert_array_equal(real, [expected] * 30)
    assert set(result.ravel()) - {-1} == set(range(n))  # every example is used in some epoch


def test_hyper_parameter_search_tries_the_learning_rates_and_decays_of_elevater():
    """A plain loop per rate, as published: 7 decays, then neighbours of the best so far."""
    grid = np.logspace(-6, 6, 97)
    table = np.random.default_rng(0).integers(0, 5, (4, 97))  # scores with many ties
    lr = (0.1, 0.2, 0.3, 0.4)
    tried = [[] for _ in lr]

    def score(rates, decays):
        np.testing.assert_allclose(rates, lr, rtol=1e-6)
        indices = [int(np.abs(grid - d).argmin()) for d in decays]
        for row, place in zip(tried, indices, strict=True):
            row.append(place)
        return table[np.arange(4), indices]

    result = fewshot.search(score, lr)
    best = (-1, None, None)
    for i in range(4):
        order = list(range(0, 97, 16))
        peak = max(order, key=lambda place: table[i, place])  # the first of equal maxima
        for span in (8, 4, 2, 1):
            around = [max(peak - span, 0), min(peak + span, 96)]
            order += around
            for place in around:
                peak = place if table[i, place] > table[i, peak] else peak
        assert tried[i] == order
        if table[i, peak] > best[0]:
            best = (table[i, peak], lr[i], grid[peak])
    assert result == (best[1], pytest.approx(best[2]))


def test_elevater_hyper_parameters_are_chosen_on_the_shots_only():
    rng = np.random.default_rng(1)
    labels, other = rng.permutation(FEATURES.test_labels), rng.normal(size=FEATURES.test.shape)
    one = probe(FEATURES)
    shuffled = probe(FEATURES._replace(test_labels=labels))
    changed = probe(FEATURES._replace(test=other.astype(np.float32)))
    for name in ("lr", "weight_decay"):
        np.testing.assert_array_equal(getattr(one, name), getattr(shuffled, name))
        np.testing.assert_array_equal(getattr(one, name), getattr(changed, name))
    assert not np.array_equal(one.accuracy, shuffled.accuracy)


def test_elevater_validation_shots_cover_every_class_and_are_not_trained_on(monkeypatch):
    n, classes = 60, 3
    labels = np.arange(n) % classes
    # All features of an example equal its index.
    number = np.arange(n, dtype=np.float32)[:, None] * np.ones(7, np.float32)
    seen = []

    def spy(train, test, *args, start, momentum):
        seen.append([np.asarray(x)[:, 0].astype(int) for x, _ in (train, test)])
        return np.zeros((len(args[2]), classes))

    monkeypatch.setattr(fewshot, "num_correct", spy)
    probe(Features(number, labels, number, labels), draws=1)
    (kept, held), (every, _) = seen[0], seen[-1]
    assert all((k == kept).all() and (h == held).all() for k, h in seen[:-1])
    assert sorted(np.concatenate([kept, held])) == sorted(every)
    assert len(set(every)) == 4 * classes
    assert np.bincount(labels[kept]).tolist() == [3, 3, 3]
    assert np.bincount(labels[held]).tolist() == [1, 1, 1]


def test_elevater_is_deterministic_given_the_seed():
    one, again, other = (probe(FEATURES, seed=seed) for seed in (0, 0, 1))
    for name, value in one._asdict().items():
        np.testing.assert_array_equal(value, getattr(again, name))
    assert not np.array_equal(one.accuracy, other.accuracy)
    assert one.accuracy[0] != one.accuracy[1]  # the draws differ


def test_elevater_is_invariant_to_scale_offset_and_dead_features():
    """BatchNorm takes them away, so the choice and the answers are the same."""
    scale = np.float32([8, 4, 2, 1, 16, 2, 1])  # Scaling by powers of two does not round.

    def changed(rows):
        return np.where(np.arange(7) < 6, rows * scale + 1, 3).astype(np.float32)

    def dead(rows):
        return np.where(np.arange(7) < 6, rows, 0).astype(np.float32)

    one, other = (
        probe(FEATURES._replace(train=f(FEATURES.train), test=f(FEATURES.test)))
        for f in (dead, changed)
    )
    for name, value in one._asdict().items():
        atol = 0 if name in ("lr", "weight_decay") else 0.5
        np.testing.assert_allclose(getattr(other, name), value, atol=atol)


def test_elevater_accepts_class_numbers_with_gaps():
    features = labelled(90, 240, 7, 3, spread=0.01)
    names = np.array([2, 7, 40])
    labels = {name: names[getattr(features, name)] for name in ("train_labels", "test_labels")}
    features = features._replace(**labels)
    np.testing.assert_array_equal(probe(features, lr=(0.1,)).accuracy, [100, 100])
    # Test examples of a class without training examples are never classified correctly.
    unseen = np.where(np.arange(240) < 120, features.test_labels, 5)
    result = probe(features._replace(test_labels=unseen), lr=(0.1,))
    np.testing.assert_array_equal(result.accuracy, [50, 50])
    # Three of the four test classes have accuracy 100 %, the unseen class has 0 %.
    np.testing.assert_allclose(result.mean_per_class, [75, 75])
    some = np.flatnonzero(features.test_labels != 7)  # class 7 is only in training
    fewer = features._replace(test=features.test[some], test_labels=features.test_labels[some])
    np.testing.assert_allclose(probe(fewer, lr=(0.1,)).mean_per_class, [100, 100])


def test_diverging_hyper_parameters_score_zero_and_are_not_chosen(monkeypatch):
    result = probe(FEATURES)
    assert fewshot.DECAYS.max() * max(SEARCH["lr"]) > 1e4
    assert (result.lr * result.weight_decay < 2 * (1 + SEARCH["momentum"])).all()
    monkeypatch.setattr(fewshot, "DECAYS", np.array([1e6]))
    np.testing.assert_array_equal(probe(FEATURES, lr=(0.1,)).accuracy, [0, 0])


def test_elevater_with_equal_features_gives_finite_results():
    flat = probe(FEATURES._replace(train=np.zeros_like(FEATURES.train)))
    assert np.isfinite(flat).all()


@pytest.mark.parametrize("shots", [1, 0])
def test_elevater_rejects_too_few_shots_for_a_validation_split(shots):
    with pytest.raises(ValueError, match=f"{shots} shots are too few to hold"):
        probe(FEATURES, shots=shots)


def test_elevater_preset_reports_the_chosen_hyper_parameters(monkeypatch):
    settings = {**SEARCH, "shots": (4,)}
    monkeypatch.setitem(fewshot.PRESETS, "elevater", settings)
    rows = fewshot.run(EvalContext(FEATURES), seed=2, preset="elevater")
    result = probe(FEATURES, seed=2)
    chosen = {f"chosen_{name}": getattr(result, name).tolist() for name in ("lr", "weight_decay")}
    figures = {"top1": "accuracy", "mean_per_class": "mean_per_class"}
    for row, (name, figure) in zip(rows, figures.items(), strict=True):
        assert row.metric == f"fewshot_4shot_{name}"
        assert row.value == pytest.approx(getattr(result, figure).mean())
        assert row.std == pytest.approx(getattr(result, figure).std())
        assert row.details == {"preset": "elevater", **SEARCH, **chosen}


@pytest.mark.parametrize(
    ("probe", "settings"), [(fewshot.accuracy, DRAWS), (fewshot.elevater, SEARCH)]
)
@pytest.mark.parametrize(("name", "split"), [("train", "training"), ("test", "test")])
def test_few_shot_probes_refuse_features_that_are_not_finite(probe, settings, name, split):
    rows = getattr(FEATURES, name).copy()
    rows[0, 0] = np.nan
    message = f"features must be finite, but features of {split} images have NaN or infinity$"
    with pytest.raises(ValueError, match=message):
        probe(FEATURES._replace(**{name: rows}), **settings, seed=0)


@pytest.mark.parametrize(
    ("probe", "settings", "message"),
    [
        (fewshot.accuracy, {**DRAWS, "shots": 0}, "setting shots must be >= 1, got 0"),
        (fewshot.accuracy, {**DRAWS, "draws": 0}, "draws must be >= 1, got 0"),
        (fewshot.accuracy, {**DRAWS, "max_iter": 0}, "max_iter must be >= 1, got 0"),
        (fewshot.elevater, {**SEARCH, "draws": 0}, "draws must be >= 1, got 0"),
        (fewshot.elevater, {**SEARCH, "search_epochs": 0}, "search_epochs must be >= 1, got 0"),
        (fewshot.elevater, {**SEARCH, "batch_size": 1}, "batch_size must be >= 2, got 1"),
        (fewshot.elevater, {**SEARCH, "epochs": 0}, "must be < epochs=0, got 3"),
        (fewshot.elevater, {**SEARCH, "warmup_epochs": 12}, "must be < epochs=12, got 12"),
        (fewshot.elevater, {**SEARCH, "warmup_epochs": -1}, "warmup_epochs must be >= 0, got -1"),
        (fewshot.elevater, {**SEARCH, "lr": (0.1, -1.0)}, r"lr must be > 0, got \(0.1, -1.0\)"),
        (fewshot.elevater, {**SEARCH, "momentum": 1.0}, r"must be in \[0, 1\), got 1.0"),
    ],
)
def test_few_shot_probes_refuse_settings_out_of_range(probe, settings, message):
    with pytest.raises(ValueError, match=message):
        probe(FEATURES, **settings, seed=0)
