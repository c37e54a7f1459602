"""The protocols as functions of arrays, which share one convention."""

import inspect
import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from feature_cases import labelled

from jaxssl.evaluation.protocol import EvalContext
from jaxssl.evaluation.protocols import fewshot, knn, linear, retrieval

pytestmark = pytest.mark.fast
MODULES = {"knn": knn, "linear": linear, "fewshot": fewshot, "retrieval": retrieval}
FEATURES = labelled(60, 30, 6, 3, spread=0.5)
NAMES = ("train_features", "train_labels", "test_features", "test_labels")
PAGE = Path(__file__).parents[2] / "docs" / "evaluation.md"
each = pytest.mark.parametrize("module", MODULES.values(), ids=MODULES)


@each
def test_evaluate_of_every_protocol_has_the_same_arguments_and_uses_the_default_preset(module):
    names = tuple(inspect.signature(module.evaluate).parameters)
    assert names[:5] == (*NAMES, "preset")
    scores = module.evaluate(*FEATURES)
    results = module.protocol.run(EvalContext(FEATURES), seed=0)
    assert {r.metric: r.value for r in results}.items() <= scores.items()
    # Also pass lists and float64 arrays.
    lists = [FEATURES.train.astype(np.float64), FEATURES.train_labels.tolist(), *FEATURES[2:]]
    assert module.evaluate(*lists) == scores


@pytest.mark.parametrize(
    ("module", "preset"), [(m, name) for m in (knn, retrieval) for name in m.PRESETS], ids=str
)
def test_result_rows_of_a_preset_contain_its_name_and_settings(module, preset):
    rows = module.run(EvalContext(FEATURES), seed=0, preset=preset)
    assert {row.metric: row.value for row in rows} == module.evaluate(*FEATURES, preset=preset)
    for row in rows:
        assert (row.std, row.unit) == (None, "%")
        expected = dict(module.PRESETS[preset])
        if module is knn:  # At most all training examples vote.
            expected["k"] = min(expected["k"], len(FEATURES.train))
        assert row.details == {"preset": preset, **expected}


@each
def test_example_in_the_docstring_of_evaluate_runs(module):
    (line,) = re.findall(r"scores = .*", module.evaluate.__doc__)
    scope = {module.__name__.rpartition(".")[2]: module, **dict(zip(NAMES, FEATURES, strict=True))}
    exec(line, scope)
    assert scope["scores"] and all(np.isfinite(list(scope["scores"].values())))


def test_keyword_settings_override_values_of_the_preset():
    expected = knn.accuracy(FEATURES, k=3, temperature=0.07)
    assert knn.evaluate(*FEATURES, preset="moco_v3_20", k=3) == expected
    for k in (2, (2,), np.array([2])):
        assert list(retrieval.evaluate(*FEATURES, k=k)) == ["retrieval_r2"]
    assert linear.evaluate(*FEATURES, C=0.1)["C"] == 0.1
    one = fewshot.evaluate(*FEATURES, shots=2, draws=3)
    assert list(one) == ["fewshot_2shot_top1", "fewshot_2shot_top1_std"]


@each
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_features": FEATURES.train[0]}, "train_features must be real numbers [n, f]"),
        ({"train_features": FEATURES.train[:0]}, "real numbers [n, f] of at least one row, got"),
        ({"train_features": FEATURES.train * 1j}, "train_features must be real numbers [n, f]"),
        ({"test_features": FEATURES.test[:, :2]}, "the same number of columns, got 6 and 2"),
        ({"test_labels": FEATURES.test_labels[:4]}, "test_labels must be integers [30]"),
        ({"train_labels": FEATURES.train_labels / 2}, "train_labels must be integers [60]"),
        ({"train_labels": np.ma.array(FEATURES.train_labels)}, "train_labels is a masked array"),
        ({"test_features": np.ma.array(FEATURES.test)}, "test_features is a masked array"),
        (
            {"train_labels": FEATURES.train_labels - 1},
            "train_labels must be indices in [0, 2147483648), got -1",
        ),
        (
            {"train_labels": FEATURES.train_labels.astype(np.int64) + 2**32},
            f"train_labels must be indices in [0, 2147483648), got {2**32}",
        ),
        ({"preset": "defualt"}, "preset 'defualt' is unknown; did you mean 'default'"),
        ({"temprature": 1}, "the setting 'temprature' is unknown"),
    ],
)
def test_error_of_evaluate_names_the_wrong_argument(module, changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        module.evaluate(**{**dict(zip(NAMES, FEATURES, strict=True)), **changes})


@pytest.mark.parametrize(
    ("module", "changes", "message"),
    [
        (knn, {"k": 2.5}, "k must be int, got 2.5"),
        (knn, {"k": "20"}, "k must be int, got '20'"),
        (knn, {"k": True}, "k must be int, got True"),
        (knn, {"weight": 3}, "weight must be str, got 3"),
        (fewshot, {"shots": 1.5}, "shots must be int or a list of them, got 1.5"),
        (fewshot, {"max_iter": 0}, "max_iter must be >= 1"),
        (fewshot, {"seed": -1}, "seed must be an integer >= 0 and below 2^31, got -1"),
        (linear, {"seed": 2**31}, "seed must be an integer >= 0 and below 2^31, got 2147483648"),
        (linear, {"seed": 0.5}, "seed must be an integer >= 0 and below 2^31, got 0.5"),
        (linear, {"C": "1"}, "C must be float or a list of them, got '1'"),
        (retrieval, {"k": np.array([1.5])}, "k must be int or a list of them"),
        (
            fewshot,
            {"train_labels": 0 * FEATURES.train_labels},
            "the training images have one class",
        ),
    ],
)
def test_setting_of_a_wrong_type_or_range_is_refused(module, changes, message):
    arguments = {**dict(zip(NAMES, FEATURES, strict=True)), **changes}
    with pytest.raises(ValueError, match=re.escape(message)):
        module.evaluate(**arguments)


# k-NN divides by a norm of at least 1e-12, as PyTorch does.
@pytest.mark.parametrize(
    ("module", "exponent"), [(knn, 99), (linear, 99), (linear, -99), (fewshot, 99), (fewshot, -99)]
)
def test_accuracy_does_not_depend_on_the_scale_of_the_features(module, exponent):
    train, test = (np.ldexp(x, exponent) for x in (FEATURES.train, FEATURES.test))
    scores = module.evaluate(train, FEATURES.train_labels, test, FEATURES.test_labels)
    assert scores == module.evaluate(*FEATURES)


def test_numbers_of_shots_that_a_class_lacks_are_left_out(caplog):
    train = np.concatenate([FEATURES.train, FEATURES.train[:2]])
    labels = np.concatenate([FEATURES.train_labels, [9, 9]])
    context = EvalContext(FEATURES._replace(train=train, train_labels=labels))
    assert [r.metric for r in fewshot.run(context, seed=0)] == ["fewshot_1shot_top1"]
    assert "a class has 2 training examples" in caplog.text


@pytest.mark.parametrize(
    ("preset", "setting"), [("default", "batch_size"), ("elevater", "max_iter"), ("elevater", "C")]
)
def test_setting_of_the_other_few_shot_probe_is_refused(preset, setting):
    with pytest.raises(ValueError, match=f"the setting '{setting}' is unknown; .*valid: "):
        fewshot.evaluate(*FEATURES, preset=preset, **{setting: 1})


def test_features_of_jax_in_half_precision_are_evaluated_in_single_precision():
    halved = [jnp.asarray(x, jnp.bfloat16) for x in (FEATURES.train, FEATURES.test)]
    labels = FEATURES.train_labels, FEATURES.test_labels
    single = [np.asarray(x, np.float32) for x in halved]
    expected = knn.evaluate(single[0], labels[0], single[1], labels[1])
    assert knn.evaluate(halved[0], labels[0], halved[1], labels[1]) == expected


def test_presets_that_train_on_images_are_refused():
    with pytest.raises(ValueError, match="call jaxssl.evaluate with 'linear:cifar'"):
        linear.evaluate(*FEATURES, preset="cifar")


def test_example_of_the_evaluation_page_runs():
    code = PAGE.read_text().partition("## In your own code")[2]
    block = re.search(r"```python\n(.*?)```", code, re.DOTALL)
    assert block
    scope = {}
    exec(block[1], scope)
    assert scope["scores"]["knn_top1"] > 50
