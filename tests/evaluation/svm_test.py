"""Ten-fold support vector machines against searches by hand; which examples count; histograms."""

import inspect
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from graph_cases import NUM_TAGS, graph, random_graphs
from sklearn.model_selection import StratifiedKFold
from sklearn.svm import SVC, LinearSVC

from jaxssl.data.opening.in_memory import load_splits
from jaxssl.data.splits import PreparedSplit, Source
from jaxssl.evaluation.protocol import EvalContext, Features
from jaxssl.evaluation.protocols import svm
from jaxssl.kinds.graph import MAX_DEGREE, GraphArray, histograms

C = (0.1, 30.0)
QUICK = {"C": (1.0,), "machines": ("kernel",), "standardised": True}


def clouds(per_class=14, classes=2, apart=1.2, f=4, seed=0):
    """Features of classes that overlap, on axes of very different scales."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), per_class)
    x = rng.normal(size=(len(labels), f)) + apart * rng.normal(size=(classes, f))[labels]
    order = rng.permutation(len(labels))
    return (x * np.logspace(0, 1, f)).astype(np.float32)[order], labels[order]


def evaluate(x, y, **changes):
    settings = {"C": C, "machines": ("kernel",), "standardised": False, "seed": 0}
    return svm.evaluate(x, y, **settings | changes)


def model_of(machine, strength, x):
    if machine == "linear":
        return LinearSVC(C=strength, dual=False, max_iter=1000)
    return SVC(C=strength, gamma=1 / (x.shape[1] * x.var()))


def by_hand(x, y, machines, standardised=False, seed=0):
    """Loops over folds, machines and strengths; each fold's accuracy."""
    x, result = x.astype(np.float64), []
    for train, test in StratifiedKFold(10, shuffle=True, random_state=seed).split(x, y):
        own, other = x[train], x[test]
        if standardised:
            mean, std = own.mean(0), own.std(0)
            own, other = (own - mean) / std, (other - mean) / std
        best, chosen = -1.0, None
        for machine in machines:
            for strength in C:
                scores = []
                for a, b in StratifiedKFold(5).split(own, y[train]):
                    model = model_of(machine, strength, own).fit(own[a], y[train][a])
                    scores.append(np.mean(model.predict(own[b]) == y[train][b]))
                if np.mean(scores) > best:
                    best, chosen = np.mean(scores), model_of(machine, strength, own)
        hits = chosen.fit(own, y[train]).predict(other) == y[test]
        result.append(100 * hits.mean())
    return result


@pytest.mark.parametrize(
    ("machines", "standardised"),
    [(("kernel",), True), (("linear",), False), (("kernel", "linear"), False)],
)
def test_each_svm_fold_uses_the_C_that_is_best_on_the_other_folds(machines, standardised):
    x, y = clouds()
    result = evaluate(x, y, machines=machines, standardised=standardised)
    assert result.shape == (10,) and result.std() > 0
    np.testing.assert_allclose(result, by_hand(x, y, machines, standardised))


def test_svm_standardises_with_the_training_folds_only():
    """One example is far off; when it is predicted, its feature must still count for the others."""
    x, y = clouds(per_class=30, apart=0.0, f=8)
    x[:, 0] += 4 * y
    x[0, 0] = 1e3
    result = evaluate(x, y, standardised=True)
    np.testing.assert_allclose(result, by_hand(x, y, ("kernel",), standardised=True))


@pytest.mark.parametrize("preset", svm.PRESETS)
def test_svm_accuracy_is_100_on_separable_classes(preset):
    x, y = clouds(per_class=10, apart=30.0)
    np.testing.assert_array_equal(svm.evaluate(x, y, **svm.PRESETS[preset], seed=0), 100)


def test_settings_of_svm_are_those_of_the_preset_graphcl_and_seed_0():
    defaults = inspect.getfullargspec(svm.evaluate).kwonlydefaults
    assert defaults == {**svm.PRESETS["graphcl"], "seed": 0}


def test_cross_validation_folds_depend_on_the_seed():
    x, y = clouds(apart=0.5)
    first, again, other = (evaluate(x, y, C=(1.0,), seed=seed) for seed in (5, 5, 6))
    np.testing.assert_array_equal(first, again)
    assert first.tolist() != other.tolist()


@pytest.mark.parametrize("standardised", [False, True])
@pytest.mark.parametrize("machine", ["kernel", "linear"])
def test_svm_on_constant_features_predicts_the_largest_class(machine, standardised):
    x, y = np.full((50, 3), 0.1, np.float32), np.repeat([0, 1], [30, 20])
    result = evaluate(x, y, C=(1.0,), machines=(machine,), standardised=standardised)
    np.testing.assert_allclose(result, 60)


@pytest.mark.parametrize(
    ("labels", "value", "message"),
    [
        ([0] * 9 + [1] * 11, 0.0, r"each with at least 10 examples; got classes of \[9, 11\]"),
        ([0] * 20, 0.0, r"each with at least 10 examples; got classes of \[20\]"),
        ([0] * 10 + [1] * 10, np.nan, "features must be finite"),
        ([0] * 10 + [1] * 10, np.inf, "features must be finite"),
        ([[0]] * 10 + [[1]] * 10, 0.0, r"labels must be integers \[20\], one for each row, got"),
    ],
)
def test_svm_rejects_invalid_features_and_labels(labels, value, message):
    x = np.ones((20, 2), np.float32)
    x[3, 1] = value
    with pytest.raises(ValueError, match=message):
        evaluate(x, np.array(labels))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"machines": ("rbf",)}, r"machines must be one or more of \('kernel', 'linear'\), got"),
        ({"machines": ()}, "machines must be one or more of"),
        ({"C": ()}, "C must be one or more finite numbers > 0, got"),
        ({"C": (1.0, -1.0)}, "C must be one or more finite numbers > 0, got"),
        ({"C": np.inf}, "C must be one or more finite numbers > 0, got inf"),
    ],
)
def test_svm_rejects_unknown_machines_and_strengths(changes, message):
    with pytest.raises(ValueError, match=message):
        evaluate(np.ones((20, 2), np.float32), np.arange(20) % 2, **changes)


def test_svm_takes_one_machine_and_one_strength_without_a_tuple():
    x, y = clouds()
    expected = evaluate(x, y, machines=("kernel",), C=(30.0,))
    np.testing.assert_array_equal(evaluate(x.tolist(), y, machines="kernel", C=30.0), expected)


def test_svm_refuses_a_kernel_matrix_that_memory_may_not_hold(monkeypatch):
    monkeypatch.setattr(svm, "MAX_KERNEL", 8 * 20**2 - 1)
    x, labels = np.ones((20, 2), np.float32), np.array([0] * 10 + [1] * 10)
    with pytest.raises(ValueError, match="the kernel matrix of 20 examples takes over"):
        evaluate(x, labels, machines=("kernel",))
    assert evaluate(x, labels, machines=("linear",)).shape == (10,)


def test_all_examples_of_both_splits_of_data_in_memory_are_cross_validated(monkeypatch):
    images = np.random.default_rng(0).integers(0, 256, (30, 4, 4, 1), np.uint8)
    splits, _ = load_splits(((images[:20], np.arange(20) % 2), (images[20:], np.arange(10) % 2)))
    seen = []
    monkeypatch.setattr(svm, "evaluate", lambda x, y, **_: seen.append(len(y)) or np.zeros(10))
    x = images.reshape(30, -1).astype(np.float32)
    features = Features(x[:20], splits.train.labels, x[20:], splits.test.labels)
    svm.run(EvalContext(features, splits.train, splits.test), seed=0)
    svm.run(EvalContext(features, splits.train, splits.train.take(np.arange(10))), seed=0)
    assert seen == [30, 20]


def split_of(places, keep="train"):
    """A split without records: only where its examples lie is asked for."""
    part = PreparedSplit([], path=Path("prepared", keep))
    return Source("set", "", ((part, np.array(places)),), ("a", "b"), (1,))


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setitem(svm.PRESETS, "quick", QUICK)


@cache
def whole():
    x, y = clouds(per_class=20)
    return x, y, evaluate(x, y, **QUICK)


@pytest.mark.parametrize(
    ("train", "test"),
    [
        (range(40), range(40)),  # train and test have the same examples
        (range(30), range(30, 40)),
        (range(30), range(20, 40)),
        (range(40), range(10)),
    ],
)
def test_svm_uses_an_example_only_once_if_it_is_in_both_splits(train, test):
    x, y, expected = whole()
    of = [x[list(train)], y[list(train)], x[list(test)], y[list(test)]]
    context = EvalContext(Features(*of), split_of(train), split_of(test))
    [row] = svm.run(context, seed=0, preset="quick")
    assert row.metric == "svm_top1" and row.details["examples"] == 40
    assert (row.details["folds"], row.details["preset"]) == (10, "quick")
    np.testing.assert_allclose([row.value, row.std], [expected.mean(), expected.std()])


def test_svm_keeps_examples_of_two_splits_with_the_same_index_apart():
    x, y, expected = whole()
    features = Features(x[:25], y[:25], x[25:], y[25:])
    context = EvalContext(features, split_of(range(25)), split_of(range(15), "test"))
    [row] = svm.run(context, seed=0, preset="quick")
    np.testing.assert_allclose([row.value, row.std], [expected.mean(), expected.std()])


def test_svm_uses_features_once_if_train_and_test_arrays_are_the_same():
    x, y, expected = whole()
    source = split_of(range(40))
    for of in ((None, None), (source, source)):
        [row] = svm.run(EvalContext(Features(x, y, x, y), *of), seed=0, preset="quick")
        np.testing.assert_allclose(row.value, expected.mean())


def test_graph_histograms_count_degrees_node_labels_and_sizes():
    star = graph(MAX_DEGREE + 8, [(0, i) for i in range(1, MAX_DEGREE + 8)])
    graphs = [graph(1, [], [2]), star, *random_graphs(6)]
    expected = np.zeros((len(graphs), MAX_DEGREE + 1 + NUM_TAGS + 2))
    for row, one in zip(expected, graphs, strict=True):
        for node, tag in enumerate(one.tag.tolist()):
            degree = sum(node in edge for edge in one.edge.tolist())
            row[min(degree, MAX_DEGREE)] += 1
            row[MAX_DEGREE + 1 + tag] += 1
        row[-2:] = np.log(len(one.tag) + 1), np.log(len(one.edge) + 1)
    array = GraphArray(graphs, NUM_TAGS)
    result = histograms(array)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, expected, rtol=1e-6)
