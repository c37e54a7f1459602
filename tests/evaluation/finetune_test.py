"""Fine-tuning protocols: the search sees no test image, draws are stratified, rows are complete."""

import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from tune_cases import SIZE, digits, flat_encoder, same, tiny_encoder

from jaxssl.evaluation import finetuning
from jaxssl.evaluation.finetuning import Classifier, Training, Tuner
from jaxssl.evaluation.protocol import EvalContext, Features, images_of, stratified
from jaxssl.evaluation.protocols import finetune, semi

BLANK = Features(*[np.zeros((0, 0))] * 4)


@pytest.fixture
def context(data_dir, mesh):
    sets = digits(data_dir, 60), digits(data_dir, 40, "test")
    return EvalContext(BLANK, *sets, encoder=tiny_encoder(), size=SIZE, mesh=mesh)


def oracle(good_lr, monkeypatch):
    """Put in a tuner that predicts all labels if fit with the good rate; return its sources."""
    seen = SimpleNamespace(fitted=[], judged=[])

    def fit(source, *, lr, weight_decay, seed):
        seen.fitted.append((source, lr, weight_decay))
        return Classifier(lr, {}, 0.5)

    def logits(classifier, source):
        seen.judged.append(source)
        right = np.eye(10)[source.labels]
        return right if classifier.variables == good_lr else -right

    monkeypatch.setattr(finetuning, "make_tuner", lambda *_: Tuner(None, fit, logits))
    return seen


SEMI = semi.PRESETS["quick"][0.01]
SEARCH = {"lr": (0.1, 0.2, 0.3), "weight_decay": (0.0, 0.5), "validation": 0.25, "seed": 0}


def names(source):
    return {tuple(image.ravel()) for image in source.images(SIZE)}


def test_fine_tuning_search_trains_and_validates_on_disjoint_training_images(context, monkeypatch):
    seen = oracle(0.2, monkeypatch)
    scores = finetune.evaluate(images_of(context), training=None, **SEARCH)
    assert (scores.lr, scores.weight_decay) == (0.2, 0.0)  # both decays score 100: the first wins
    assert scores.accuracy["top1"] == scores.accuracy["mean_per_class"] == 100
    assert [(p["lr"], p["weight_decay"]) for p in scores.grid] == [
        (lr, decay) for lr in (0.1, 0.2, 0.3) for decay in (0.0, 0.5)
    ]
    assert [p["validation_top1"] for p in scores.grid] == [0, 0, 100, 100, 0, 0]
    *searched, (final, *_) = seen.fitted
    *held_out, judged = seen.judged
    assert final is context.train
    assert judged is context.test
    for (used, *_), kept in zip(searched, held_out, strict=True):
        assert len(used) + len(kept) == 60
        assert names(used) | names(kept) == names(context.train)
        assert not names(used) & names(kept)
        assert set(used.labels) == set(context.train.labels)


def test_fine_tuning_search_selects_the_rate_by_the_requested_metric(context, monkeypatch):
    """One rate predicts the frequent class correctly, the other one the rare classes."""
    rare_known, frequent_known = 0.1, 0.2
    few = [np.flatnonzero(context.train.labels == c)[:n] for c, n in ((0, 6), (1, 2), (2, 2))]
    uneven = context.train.take(np.concatenate(few))

    def logits(classifier, source):
        guess = source.labels if classifier.variables == rare_known else 0 * source.labels
        guess = np.where(source.labels == 0, int(classifier.variables == rare_known), guess)
        return np.eye(10)[guess]

    oracle(0, monkeypatch)
    tuner = finetuning.make_tuner()._replace(logits=logits)
    monkeypatch.setattr(finetuning, "make_tuner", lambda *_: tuner)
    rates = (rare_known, frequent_known)
    pairs = {**SEARCH, "lr": rates, "weight_decay": (0.0,), "validation": 0.5}
    images = images_of(context._replace(train=uneven))
    for metric, best in (("top1", frequent_known), ("mean_per_class", rare_known)):
        scores = finetune.evaluate(images, training=None, **pairs, metric=metric)
        assert scores.lr == best
        assert set(scores.grid[0]) == {"lr", "weight_decay", f"validation_{metric}"}
    with pytest.raises(ValueError, match="metric must be one of top1, top5, .* got 'loss'"):
        finetune.evaluate(images, training=None, **pairs, metric="loss")


def test_fine_tuning_with_one_candidate_skips_validation(context, monkeypatch):
    seen = oracle(0.2, monkeypatch)
    one = {**SEARCH, "lr": (0.2,), "weight_decay": (0.5,)}
    outcome = finetune.evaluate(images_of(context), training=None, **one)
    assert [source for source, *_ in seen.fitted] == [context.train]
    assert outcome.grid == [{"lr": 0.2, "weight_decay": 0.5}]


def test_ssl_transfer_grid_divides_the_decay_by_the_learning_rate(context, monkeypatch):
    oracle(0.1, monkeypatch)
    settings = finetune.PRESETS["ssl_transfer"]
    per_class = finetune.PRESETS["ssl_transfer_per_class"]
    assert per_class == {**settings, "metric": "mean_per_class"}
    scores = finetune.evaluate(images_of(context), **settings, seed=0)
    decays = [0.0, *np.logspace(-6, -3, 4)]
    expected = [(lr, decay / lr) for lr in np.logspace(-1, -4, 4) for decay in decays]
    pairs = [(p["lr"], p["weight_decay"]) for p in scores.grid]
    np.testing.assert_allclose(pairs, expected)


@pytest.mark.parametrize(("share", "least"), [(0.2, 3), (0.25, 3), (0.5, 2), (0.9, 2)])
def test_fine_tuning_search_without_validation_images_is_rejected(context, share, least):
    few = context.train.take(stratified(context.train.labels, 0.0, seed=0, least=1))
    with pytest.raises(ValueError, match=f"needs a class with {least} training images or more"):
        settings = {**SEARCH, "training": finetuning.Training(steps=1), "validation": share}
        finetune.evaluate(images_of(context._replace(train=few)), **settings)


def test_stratified_subset_has_the_same_share_of_each_class():
    labels = np.repeat([3, 0, 7, 5], [100, 40, 9, 1])
    for share, least, counts in (
        (0.1, 0, {3: 10, 0: 4, 7: 1}),
        (0.1, 1, {3: 10, 0: 4, 7: 1, 5: 1}),
        (0.01, 1, {3: 1, 0: 1, 7: 1, 5: 1}),
        (0.99, 0, {3: 99, 0: 39, 7: 8}),
    ):
        indices = stratified(labels, share, seed=0, least=least)
        assert dict(zip(*np.unique(labels[indices], return_counts=True), strict=True)) == counts
        assert len(set(indices)) == len(indices)
        assert list(indices) == sorted(indices)
    small, large = (stratified(labels, s, seed=0, least=1) for s in (0.01, 0.1))
    assert set(small) < set(large)
    assert set(small) != set(stratified(labels, 0.01, seed=1, least=1))


WHOLE = {"crop_scale": (1.0, 1.0), "flip": 0.0}
SHORT = Training(optimiser="adam", batch_size=30, steps=40, schedule="constant", **WHOLE)


def test_fine_tuning_learns_and_reports_its_settings(context, monkeypatch):
    quick = {**finetune.PRESETS["quick"], "training": SHORT, "lr": (1e-6, 0.02)}
    monkeypatch.setitem(finetune.PRESETS, "quick", quick)
    context = context._replace(encoder=flat_encoder())
    before = jax.tree.map(np.array, context.encoder.variables)
    rows = finetune.run(context, seed=0)
    assert same(before, context.encoder.variables)
    assert [row.metric for row in rows] == [
        f"finetune_{name}" for name in ("top1", "top5", "mean_per_class")
    ]
    details = json.loads(json.dumps(rows[0].details))
    assert (details["preset"], details["batch_size"], details["lr"]) == ("quick", 30, 0.02)
    assert [point["lr"] for point in details["grid"]] == [1e-6, 0.02]
    assert rows[0].value > 50  # chance level is 10 %
    assert rows[1].value >= rows[0].value


def test_labelled_subset_depends_only_on_the_seed(context, monkeypatch):
    drawn, metrics = [], [f"semi_{share}pct_top{k}" for share in (1, 10) for k in (1, 5)]
    for encoder, seed in ((context.encoder, 0), (tiny_encoder(), 0), (context.encoder, 5)):
        drawn.append(oracle(1e-3, monkeypatch))
        rows = semi.run(context._replace(encoder=encoder), seed=seed)
        assert [(row.metric, row.value) for row in rows] == [(name, 100) for name in metrics]
    # A run trains on both subsets, of 1 % and of 10 % of the training images.
    sets = [[names(source) for source, *_ in seen.fitted] for seen in drawn]
    assert [len(run) for run in sets] == [2, 2, 2]
    assert sets[0] == sets[1]
    assert sets[0][0] != sets[2][0]
    for small, large in sets:
        assert small <= large
    details = rows[0].details
    assert (details["images"], details["share"], details["batch_size"]) == (10, 0.01, 8)


def test_share_of_labels_that_rounding_changes_much_is_logged(context, monkeypatch, caplog):
    oracle(1e-3, monkeypatch)
    monkeypatch.setitem(semi.PRESETS, "halves", dict.fromkeys((0.01, 0.5), SEMI))
    semi.run(context, seed=0, preset="halves")
    lines = [line for line in caplog.messages if line.startswith("semi: instead of")]
    assert len(lines) == 1 and "1 % of the training images, 10 of 60 (16.7 %)" in lines[0]


@pytest.mark.parametrize("protocol", [finetune, semi])
def test_fine_tuning_presets_have_valid_settings(protocol):
    for settings in protocol.PRESETS.values():
        parts = [settings] if "training" in settings else settings.values()
        for part in parts:
            details = finetuning.summarise(part["training"], 0.1, 0.0, 5000, 8)
            assert details["steps"] > 0
            json.dumps(details)
            for number in (5000, 50_000):
                resolved = finetuning.resolve(part["training"], number, 8)
                rates = np.asarray(finetuning.learning_rates(resolved, 0.1, number))
                assert rates[-1] < rates.max() / 20


@pytest.mark.parametrize("protocol", [finetune, semi])
def test_fine_tuning_without_an_encoder_is_rejected(protocol, context):
    with pytest.raises(ValueError, match="fine-tuning needs the backbone layer"):
        protocol.run(context._replace(encoder=None), seed=0)


def test_fine_tuning_rejects_training_images_of_a_single_class(context):
    one = context.train.take(np.flatnonzero(context.train.labels == 2))
    for protocol in (finetune, semi):
        with pytest.raises(ValueError, match="have one class, expected two or more"):
            protocol.run(context._replace(train=one), seed=0)
