"""The held-out loss and the online linear probe of a training run."""

import itertools
import json
from contextlib import closing
from types import SimpleNamespace

import jax
import numpy as np
import optax
import pytest
from jax import numpy as jnp
from tiny import DIGITS, SAVED, STEPS
from workdir_cases import metric_lines, stop

from jaxssl import distributed, losses
from jaxssl.augment.views import Inputs
from jaxssl.data import source
from jaxssl.data.opening import in_memory
from jaxssl.evaluation import pretrain
from jaxssl.evaluation.embedding import embed
from jaxssl.evaluation.protocols import knn
from jaxssl.evaluation.rows import online_rows
from jaxssl.evaluation.run import evaluate
from jaxssl.methods import siamese
from jaxssl.methods.base import Carried
from jaxssl.models import convnet, encoder
from jaxssl.models.heads import MLP
from jaxssl.pretrained.load import load_pretrained
from jaxssl.training import build, config, online_metrics
from jaxssl.training.online_metrics import has_online_probe, make_online_probe, predict
from jaxssl.training.output import metrics_writer
from jaxssl.training.state import TrainState, make_init
from jaxssl.training.workdir import checkpoint

B, CLASSES = 16, 3
RNG = np.random.default_rng(0)
BATCH = {
    "input": RNG.integers(0, 256, (B, 4, 4, 1), np.uint8),
    "label": RNG.integers(0, CLASSES, B, np.int32),
    "index": np.arange(B, dtype=np.int32),
}


def augment(key, images, index):
    """Return two views of each image, the second with a noise that depends on the example."""
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, index)
    noise = jax.vmap(lambda key: jax.random.uniform(key, images.shape[1:]))(keys)
    x = images.astype(jnp.float32) / 255
    return {"views": jnp.stack([x, x + noise])}


def state_of(**values):
    """Return a training state without an encoder."""
    fields = {"step": 5, "skipped": np.zeros(2, np.int32), "key": jax.random.key(1)}
    fields |= {"params": (), "carried": Carried((), (), ()), "opt_state": ()}
    return TrainState(**{**fields, **values})


@pytest.mark.long
def test_held_out_loss_is_the_training_loss_of_a_batch_on_any_number_of_devices():
    net = encoder.Encoder(convnet.net(widths=(16,), strides=(2,)), MLP(16, 6, 1))
    method = siamese.method(net, losses.objective("nt_xent", temperature=0.5))
    values = []
    for devices in (jax.devices()[:1], jax.devices()):
        mesh = distributed.make_mesh(devices)
        state = make_init(method, optax.sgd(0.1), augment, BATCH, B, mesh)(0)
        batch_loss = online_metrics.make_batch_loss(method, augment, mesh)
        values.append(float(batch_loss(state, distributed.shard(BATCH, mesh))))
    assert values[1] == pytest.approx(values[0], rel=1e-5)

    key = jax.random.fold_in(state.key, np.uint32(2**32 - 1))
    views = augment(jax.random.split(key)[0], jnp.asarray(BATCH["input"]), BATCH["index"])["views"]
    args = net, state.params, state.carried.batch_stats, [views], jnp.asarray(BATCH["index"])
    z, _, _ = encoder.embed(*args, key=key, axis_name=None)
    z = np.asarray(z, np.float64).reshape(2 * B, -1)
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    similarity = z @ z.T / 0.5
    np.fill_diagonal(similarity, -np.inf)
    positive = similarity[np.arange(2 * B), (np.arange(2 * B) + B) % (2 * B)]
    expected = np.mean(np.log(np.exp(similarity).sum(1)) - positive)
    assert values[0] == pytest.approx(expected, rel=1e-5)


@pytest.mark.fast
@pytest.mark.parametrize(
    ("per_example", "labelled", "length", "reason"),
    [
        (True, True, 20, "loss 'nt_xent' keeps a memory of each training example"),
        (False, False, 20, "the split 'test' has examples without a label"),
        (False, True, 15, "the split 'test' has 15 examples, fewer than batch_size=16"),
    ],
)
def test_held_out_loss_is_omitted_with_a_stated_reason(per_example, labelled, length, reason):
    settings = config.load(DIGITS, [("batch_size", "16"), ("loss.name", "nt_xent")])
    settings.method.labels = True
    method = SimpleNamespace(per_example=Carried(False, False, per_example))

    class Test(list):
        split = "test"

    test = Test([0] * length)
    test.labelled, test.all_labelled = True, labelled  # Some labels may be missing.
    line, function = online_metrics.make_held_out_loss(settings, method, test, None)
    assert line == f"no held-out loss: {reason}" and function is None


def test_held_out_loss_reads_schedules_at_the_step_of_the_state():
    loss = lambda *_, step, key, axis_name: (step.astype(jnp.float32), None)  # noqa: E731
    mesh = distributed.make_mesh(jax.devices()[:1])
    batch_loss = online_metrics.make_batch_loss(SimpleNamespace(loss=loss), augment, mesh)
    assert batch_loss(state_of(step=7), BATCH) == 7


@pytest.mark.long
def test_held_out_loss_of_decl_preset_clip_equals_that_of_clip(data_dir):
    mesh, losses_at_start = distributed.make_mesh(jax.devices()[:1]), []
    for values in ({"name": "clip"}, {"name": "decl", "preset": "clip"}):
        overrides = [(f"loss.{key}", value) for key, value in values.items()]
        overrides += [("net.widths", "(8,)"), ("net.strides", "(2,)"), ("text.layers", "1")]
        overrides += [("batch_size", "250"), ("data.dir", str(data_dir))]
        settings = config.load("image_text/digit_captions", overrides)
        test = source.load(settings.data, "test")
        setup = build.build(settings, len(test))
        with closing(build.make_batches(settings, test, mesh)) as stream:
            state = build.make_init(setup, stream.next(), len(test), mesh)(0)
        line, held_out_loss = online_metrics.make_held_out_loss(settings, setup.method, test, mesh)
        losses_at_start.append(held_out_loss(state))
        assert ("CLIP's" in line) == (values["name"] == "decl")
    assert losses_at_start[0] == losses_at_start[1] > 1


def test_held_out_loss_is_the_mean_over_whole_batches(data_dir, monkeypatch):
    overrides = [("batch_size", "200"), ("loss.name", "nt_xent"), ("data.dir", str(data_dir))]
    settings = config.load(DIGITS, overrides)
    test = source.load(settings.data, "test")
    values = iter([1.0, 4.0])
    monkeypatch.setattr(online_metrics, "make_batch_loss", lambda *_: lambda *_: next(values))
    method = SimpleNamespace(per_example=())
    mesh = distributed.make_mesh(jax.devices()[:1])
    line, held_out_loss = online_metrics.make_held_out_loss(settings, method, test, mesh)
    assert held_out_loss(None) == 2.5
    assert line == "held-out loss of 400 of 500 examples of test"


@pytest.mark.fast
def test_held_out_loss_is_computed_on_the_test_split(monkeypatch):
    make = lambda config, method, split, mesh: (f"loss of {split}", lambda state: 1.5)  # noqa: E731
    monkeypatch.setattr(online_metrics, "make_held_out_loss", make)
    monkeypatch.setattr(pretrain, "_accuracy", lambda *_: ("no k-NN", None))
    settings = config.load(DIGITS, [("eval.held_out_loss", "True")])
    splits = SimpleNamespace(train="train", bank="bank", test="test")
    line, probe = pretrain._online(settings, splits, SimpleNamespace(method=None), None, None)
    assert line == "no k-NN; loss of test"
    assert probe(None) == {"held_out_loss": 1.5}


@pytest.mark.fast
def test_online_knn_warns_of_test_classes_that_the_bank_lacks(caplog):
    images = np.zeros((4, 8, 8, 1), np.uint8)
    train = images, ["cat", "cat", "dog", "dog"]
    test = images + 255, ["Cat", "cat", "dog", "dog"]
    settings = config.load(DIGITS, [("eval.protocols", "knn,linear:fast,retrieval")]).eval
    for pair in [(test, train), (train, test)]:
        assert not caplog.records  # of the first pair, whose bank has all classes
        splits, _ = in_memory.load_splits(pair)
        pretrain._accuracy(settings, splits, Inputs(8, 1), None)
    text = caplog.text.strip()
    assert "(1: Cat); k-NN counts them as errors; protocols left out after training" in text
    assert text.endswith(": knn, linear:fast")  # but not retrieval


@pytest.mark.fast
@pytest.mark.parametrize("preset", knn.PRESETS)
def test_online_knn_describes_its_preset(preset):
    splits, _ = in_memory.load_splits((np.zeros((8, 8, 8, 1), np.uint8), [0, 1] * 4))
    settings = config.load(DIGITS, [("eval.knn", preset)]).eval
    line, _ = pretrain._accuracy(settings, splits, Inputs(8, 1), None)
    assert line.startswith(f"k-NN {preset} (k {knn.PRESETS[preset]['k']}, temperature ")


@pytest.mark.fast
def test_finished_run_prints_only_baselines_and_results_of_its_last_step(tmp_path, monkeypatch):
    of_run = {"protocol": "knn", "layer": "backbone", "data": "own", "seed": 0}
    rows = [{**of_run, "step": step} for step in (None, 0, 4, 8)]
    # Results of `jaxssl eval` with other layers, data and seeds, and metrics of the training.
    others = {"layer": "projector"}, {"data": "other"}, {"seed": 1}, {"protocol": "online"}
    rows += [{**of_run, "step": 8, **other} for other in others]
    shown = []
    monkeypatch.setattr(pretrain.results, "read_results", lambda _: rows)
    monkeypatch.setattr(pretrain.results, "print_results", shown.extend)
    for evaluated_step in (None, 4):  # An evaluation at step 8 that was killed may have left rows.
        monkeypatch.setattr(pretrain.results, "read_evaluated_step", lambda _: evaluated_step)  # noqa: B023
        assert not pretrain._show(tmp_path, 8, ("knn",)) and not shown
    monkeypatch.setattr(pretrain.results, "read_evaluated_step", lambda _: 8)
    assert pretrain._show(tmp_path, 8, ("knn",))
    assert shown == rows[:2] + rows[3:4]
    # The protocol "captions" always uses the projector. Early versions did not record the layer.
    new = [{**rows[3], "protocol": "captions", "layer": "projector"}, dict(rows[3])]
    del new[1]["layer"]
    rows, shown[:] = new, []
    assert pretrain._show(tmp_path, 8, ("all",))
    assert shown == new


def probe_of(devices):
    """Return a probe of pixels and its state, and a batch on the devices."""
    mesh = distributed.make_mesh(devices)
    method = SimpleNamespace(features=lambda params, carried, x: x.reshape(len(x), -1))
    probe = make_online_probe(method, augment, BATCH, CLASSES, B, mesh, resident=False)
    state = distributed.replicate(state_of(), mesh)
    rows = np.arange(B, dtype=np.int32)[None] % (B // mesh.size)
    rows = distributed.shard_rows(rows, mesh, axis=1)
    return probe, probe.init(state), distributed.shard(BATCH, mesh), rows


@pytest.mark.parametrize("devices", [1, 8])
def test_first_step_of_the_online_probe_uses_the_gradient_of_all_devices(devices):
    probe, state, data, rows = probe_of(jax.devices()[:devices])
    weights = jax.device_get(probe.update(state.probe, state, data, rows).params)
    # At weights of 0 all classes have probability 1 / 3.
    x, error = BATCH["input"].reshape(B, -1) / 255, np.eye(CLASSES)[BATCH["label"]] - 1 / CLASSES
    rate = 0.1 * B / 256
    np.testing.assert_allclose(weights["kernel"], rate * x.T @ error / B, rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(weights["bias"], rate * error.mean(0), rtol=1e-5, atol=1e-8)


def test_online_probe_has_momentum_and_trains_on_the_first_views_of_each_step():
    noisy = lambda *args: {"views": augment(*args)["views"][::-1]}  # noqa: E731
    method = SimpleNamespace(features=lambda params, carried, x: x.reshape(len(x), -1))
    mesh = distributed.make_mesh(jax.devices()[:1])
    probe = make_online_probe(method, noisy, BATCH, CLASSES, B, mesh, resident=False)
    state = probe.init(distributed.replicate(state_of(), mesh))
    data, rows = distributed.shard(BATCH, mesh), np.arange(B, dtype=np.int32)[None]
    trained = state.probe
    weights, velocity = np.zeros((2, 17, CLASSES))  # the last row is the bias
    for step in (5, 6):  # after step 4, state.step is 5
        trained = probe.update(trained, state.replace(step=jnp.int32(step)), data, rows)
        key, _ = jax.random.split(jax.random.fold_in(jax.random.key(1), step - 1))
        x = noisy(key, jnp.asarray(BATCH["input"]), BATCH["index"])["views"][0]
        x = np.concatenate([np.asarray(x).reshape(B, -1), np.ones((B, 1))], axis=1)
        p = np.asarray(jax.nn.softmax(x @ weights, axis=1))
        velocity = 0.9 * velocity + x.T @ (p - np.eye(CLASSES)[BATCH["label"]]) / B
        weights = weights - 0.1 * B / 256 * velocity
    np.testing.assert_allclose(trained.params["kernel"], weights[:-1], rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(trained.params["bias"], weights[-1], rtol=1e-4, atol=1e-7)


def test_online_probe_learns_and_ignores_skipped_steps():
    probe, state, data, rows = probe_of(jax.devices()[:1])
    trained = state.probe
    for _ in range(300):
        trained = probe.update(trained, state, data, rows)
    pixels = BATCH["input"].reshape(B, -1).astype(np.float32) / 255
    assert np.mean(predict(trained, pixels) == BATCH["label"]) > 0.7
    before = jax.device_get(trained)
    skipped = state.replace(skipped=state.skipped.at[1].set(1))
    after = jax.device_get(probe.update(trained, skipped, data, rows))
    jax.tree.map(np.testing.assert_array_equal, after, before)


@pytest.mark.long
def test_online_probe_leaves_the_encoder_unchanged_and_resumes_bit_for_bit(tiny, whole, tmp_path):
    switches = {"eval.held_out_loss": "True", "eval.online_linear": "True", "eval.every": "0.05"}

    def run(name):
        pretrain.train(tiny(**switches), tmp_path / name)
        return checkpoint.restore_arrays(tmp_path / name).state, metric_lines(tmp_path / name)

    plain = checkpoint.restore_arrays(whole).state
    probed, rows = run("probed")
    probe = probed.pop("probe")
    jax.tree.map(np.testing.assert_array_equal, probed, plain)
    assert np.any(probe["params"]["kernel"])
    for row in rows:
        evaluated = row["step"] in (4, 8, STEPS)
        assert ("online_linear_top1" in row) == ("held_out_loss" in row) == evaluated

    settings = config.read_config(whole)
    test = source.load(settings.data, settings.data.test_split)
    features = embed(load_pretrained(tmp_path / "probed"), test.images(settings.augment.size))
    scores = features @ probe["params"]["kernel"] + probe["params"]["bias"]
    expected = 100 * np.mean(scores.argmax(axis=1) == test.labels)
    assert 5 < expected == pytest.approx(rows[-1]["online_linear_top1"])

    stop(tiny(**switches), tmp_path / "resumed", SAVED + 3, 0)
    resumed, resumed_rows = run("resumed")
    jax.tree.map(np.testing.assert_array_equal, resumed.pop("probe"), probe)
    jax.tree.map(np.testing.assert_array_equal, resumed, plain)
    assert resumed_rows == rows


def test_online_knn_equals_the_evaluation_of_the_last_checkpoint(whole, tmp_path):
    last = metrics_writer.read_metrics(whole / "metrics.jsonl")[-1]
    preset = config.read_config(whole).eval.knn
    rows = evaluate(whole, [f"knn:{preset}"], out=tmp_path / "out", kinds=["pretrained"])
    after = {row["metric"]: row["value"] for row in rows}
    assert last["step"] == STEPS and 10 < after["knn_top1"] < 95
    assert {name: last[name] for name in after} == pytest.approx(after)


@pytest.mark.fast
def test_config_without_held_out_loss_and_online_linear_counts_them_as_off():
    settings = config.load(DIGITS)
    earlier = json.loads(settings.to_json())
    del earlier["eval"]["held_out_loss"], earlier["eval"]["online_linear"]
    assert config.conflicts(settings, earlier) == []
    with settings.unlocked():
        settings.eval.online_linear = True
    assert config.conflicts(settings, earlier) == ["eval.online_linear: False -> True"]


@pytest.mark.fast
@pytest.mark.parametrize("labelled", list(itertools.product([True, False], repeat=4)), ids=str)
def test_online_probe_runs_only_if_enabled_and_all_splits_are_labelled(labelled):
    switch, *splits = labelled
    settings = config.load(DIGITS, [("eval.online_linear", str(switch))])
    parts = source.Splits(*(SimpleNamespace(labelled=x, all_labelled=x) for x in splits))
    assert has_online_probe(settings.eval, parts) == all(labelled)


@pytest.mark.fast
def test_online_rows_hold_the_last_and_the_best_online_evaluation():
    metrics = [
        {"step": 1, "knn_top1": 90.0, "held_out_loss": 4.0, "loss": 5.0},
        {"step": 2, "knn_top1": 90.0, "held_out_loss": None, "online_linear_top1": 30.0},
        {"step": 3, "knn_top1": 80.0, "held_out_loss": 2.0},
        {"step": 4, "loss": 1.0},
    ]
    rows = online_rows(metrics, {"source": "a", "step": 4, "checkpoint": "last"}, "uniform")
    names = "checkpoint", "step", "metric", "value", "unit"
    assert [tuple(row[name] for name in names) for row in rows] == [
        ("last", 3, "knn_top1", 80.0, "%"),
        ("last", 3, "held_out_loss", 2.0, ""),
        ("best", 2, "knn_top1", 90.0, "%"),
        ("best", 2, "online_linear_top1", 30.0, "%"),
    ]
    assert all(row["details"] == {"preset": row["checkpoint"], "knn": "uniform"} for row in rows)
    assert online_rows([{"step": 1, "loss": 1.0}], {}, "uniform") == []
