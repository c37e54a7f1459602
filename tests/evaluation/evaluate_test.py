"""Evaluation as a user asks for it: encoder, features, protocols and data; what is refused."""

import errno
import json
import os
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import jax
import numpy as np
import pytest
from data_cases import data_config
from file_cases import refused
from jax.errors import JaxRuntimeError
from ml_collections import ConfigDict
from tiny import DIGITS, TINY
from tune_cases import digits
from workdir_cases import ROW, changed, initial_state, trained

import jaxssl
from jaxssl import cli, components, distributed
from jaxssl.data import source
from jaxssl.errors import UserError
from jaxssl.evaluation import context, finetuning, overrides, pretrain, suite
from jaxssl.evaluation import run as evaluate
from jaxssl.evaluation.finetuning import Training
from jaxssl.evaluation.protocol import Result
from jaxssl.evaluation.protocols import episodes, finetune, linear
from jaxssl.evaluation.selection import drop_unlabelled, select_protocols
from jaxssl.pretrained import load
from jaxssl.pretrained.encoder import make_encode, weights_digest
from jaxssl.report import results
from jaxssl.training import config
from jaxssl.training.output import file_io
from jaxssl.training.workdir import checkpoint

SETTINGS = {**TINY, "total_steps": "6", "schedule.warmup_epochs": "0", "eval.every": str(3 / 81)}


@pytest.fixture(scope="module")
def run(data_dir, tmp_path_factory) -> Path:
    """The workdir of a tiny run whose best checkpoint is not its last one."""
    settings = config.load(DIGITS, [*SETTINGS.items(), ("data.dir", str(data_dir))])
    scores = iter((90.0, 80.0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pretrain.knn, "accuracy", lambda *_, **__: {"knn_top1": next(scores)})
        workdir = trained(tmp_path_factory, "tiny", settings)
    assert checkpoint.steps(workdir) == [3, 6]
    return workdir


@pytest.fixture
def out(tmp_path) -> Path:
    return tmp_path / "out"


RESULT = Result("linear_top1", 50.0, None, {})


def knn(run, out, **options):
    return evaluate.evaluate(run, ["knn:uniform"], out=out, **options)


def by_kind(rows, metric="knn_top1"):
    return {row["features"]: row for row in rows if row["metric"] == metric}


@pytest.mark.long
def test_rows_and_printed_results_name_encoder_data_set_and_seed(run, out, capsys):
    rows = by_kind(knn(run, out))
    assert set(rows) == {"raw", "untrained", "pretrained"}
    row = rows["pretrained"]
    assert row == {
        **{"protocol": "knn", "metric": "knn_top1", "value": row["value"], "std": None},
        **{"unit": "%", "details": row["details"], "source": "tiny", "loss": row["loss"]},
        **{"checkpoint": "last", "step": 6, "features": "pretrained", "layer": "backbone"},
        **{"dataset": "digits", "data": row["data"], "content": row["content"]},
        **{"bank": "train", "bank_size": 1297, "split": "test", "split_size": 500},
        **{"seed": 0, "weights": weights_digest(load.load_pretrained(run))},
    }
    assert row["details"]["preset"] == "uniform" and row["loss"].startswith("auc_cl")
    assert rows["raw"]["layer"] == "pixels" and rows["raw"]["step"] is None
    assert rows["untrained"]["step"] == 0
    assert "1297 images of 8x8x1, 10 classes; test: 500 images\n" in (run / "train.log").read_text()
    text = capsys.readouterr().out
    for shown in ("tiny, auc_cl", "last checkpoint (step 6)", "tested on test (500 examples); "):
        assert shown in text
    for shown in ("backbone features; seed 0", "knn:uniform", "knn_top1", "percent"):
        assert shown in text


def test_results_of_encoders_of_one_name_are_kept_apart(run, out):
    """Encoders that are passed as objects differ in weights or inputs, not in a path."""
    encoder = load.load_pretrained(run)
    other = encoder._replace(variables=jax.tree.map(lambda x: 2 * x, encoder.variables))
    brighter = encoder._replace(inputs=encoder.inputs._replace(mean=(0.1,)))
    for one in (encoder, other, brighter, encoder):
        knn(one, out, kinds=["pretrained"])
    rows = [row for row in results.read_results(out) if row["metric"] == "knn_top1"]
    assert len({row["data"] for row in rows}) == len(rows) == 3


@pytest.mark.parametrize(
    ("protocol", "kind", "reads"),
    [
        ("linear", "image", True),
        ("linear:cifar", "image", False),
        ("finetune:quick", "image", False),
        ("captions", "image_text", False),
    ],
)
def test_features_are_only_extracted_for_protocols_that_read_them(protocol, kind, reads):
    (selected,) = select_protocols([protocol], kind)
    assert selected.protocol.needs_features == reads


def test_read_only_folder_of_results_is_refused_before_any_work(run, out, monkeypatch):
    monkeypatch.setattr(evaluate.source, "load_splits", lambda *_: pytest.fail("data were opened"))
    monkeypatch.setattr(os, "access", lambda path, _: path != out.parent)
    with refused(f"{out} is read-only; write to another folder with --out"):
        evaluate.evaluate(run, ["knn"], out=out)


def test_best_checkpoint_is_the_one_with_the_best_online_knn_accuracy(run, out):
    rows = by_kind(knn(run, out, step="best"))
    assert (rows["pretrained"]["step"], rows["pretrained"]["checkpoint"]) == (3, "best")
    third = by_kind(knn(run, out, step=3))["pretrained"]
    assert (third["value"], third["checkpoint"]) == (rows["pretrained"]["value"], "by step")
    apply, variables, preprocess = jaxssl.load_encoder(run, "best")
    last = jaxssl.load_encoder(run)[1]
    different = jax.tree.map(lambda a, b: not np.array_equal(a, b), variables, last)
    assert any(jax.tree.leaves(different))


def test_untrained_baseline_equals_the_initial_training_state(run):
    settings = ConfigDict(json.loads((run / "config.json").read_text()))
    encoder = load.load_pretrained(run).untrained(settings.seed)["net"]
    initial = initial_state(settings).params["net"]
    jax.tree.map(np.testing.assert_array_equal, encoder["params"], initial)
    other = load.load_pretrained(run).untrained(settings.seed + 1)["net"]
    assert not jax.tree.all(jax.tree.map(np.array_equal, other["params"], encoder["params"]))


def test_projector_features_are_the_embeddings(run, out, data_dir):
    rows = by_kind(knn(run, out, layer="projector", kinds=["pretrained"]))
    assert rows["pretrained"]["layer"] == "projector"
    encoder = load.load_pretrained(run)
    images = digits(data_dir, 4, "test").images(8)
    embeddings = make_encode(encoder, encoder.inputs, "projector")(encoder.variables, images)
    assert embeddings.shape == (4, 6)
    h = make_encode(encoder, encoder.inputs)(encoder.variables, images)
    projector = encoder.variables["projector"]
    dense = projector["params"]
    x = np.asarray(h) @ dense["Dense_0"]["kernel"]
    norm, stats = dense["BatchNorm_0"], projector["batch_stats"]["BatchNorm_0"]
    x = (x - stats["mean"]) / np.sqrt(stats["var"] + 1e-5) * norm["scale"] + norm["bias"]
    expected = np.maximum(x, 0) @ dense["Dense_1"]["kernel"] + dense["Dense_1"]["bias"]
    np.testing.assert_allclose(embeddings, expected, atol=1e-4)


def test_fine_tuning_starts_from_the_evaluated_encoder(run, data_dir):
    encoder = load.load_pretrained(run)
    train, test = digits(data_dir, 1297), digits(data_dir, 6, "test")
    splits, mesh = source.Splits(train, train, test), distributed.make_mesh()
    options = {"layer": "backbone", "features": False, "seed": 0}
    [(_, made)] = context.make_contexts(encoder, None, splits, ["pretrained"], mesh, **options)
    expected = np.asarray(make_encode(encoder, encoder.inputs)(encoder.variables, test.images(8)))
    identity = {"kernel": np.eye(8, dtype=np.float32), "bias": np.zeros(1, np.float32)}
    training = Training(steps=1, frozen=True, moving_statistics=True)
    tuner = finetuning.make_tuner(made.encoder, training, 10, mesh)
    before = finetuning.Classifier(made.encoder.variables["net"], identity)
    np.testing.assert_allclose(tuner.logits(before, test), expected, atol=1e-5)
    moved = tuner.fit(train, lr=0.1, weight_decay=0.0, seed=0).variables
    means = (v["batch_stats"]["BatchNorm_0"]["mean"] for v in (before.variables, moved))
    assert not np.array_equal(*means)
    jax.tree.map(np.testing.assert_array_equal, moved["params"], before.variables["params"])


def test_eval_reads_published_corrupted_sets_from_the_data_folder(run, out, data_dir):
    with refused(f"protocol 'corruptions:imagenet_c': {data_dir / 'ImageNet-C'} lacks gaussian"):
        evaluate.evaluate(run, ["corruptions:imagenet_c"], out=out)
    assert not out.exists()


@pytest.mark.parametrize("streamed", [False, True])
def test_gallery_is_written_if_no_protocol_fits_unless_a_stream_would_be_read(
    run, monkeypatch, streamed
):
    monkeypatch.setattr(source.Source, "streamed", streamed)
    monkeypatch.setattr(evaluate.gallery, "write", written := Mock())
    assert evaluate.evaluate(run) == []
    assert written.called != streamed and (streamed or written.call_args.args[3].test.size)


def test_features_are_not_extracted_if_no_protocol_needs_them(run, out, monkeypatch):
    seen = []
    run_protocol = lambda context, **_: seen.append(context) or []  # noqa: E731
    monkeypatch.setattr(finetune, "protocol", finetune.protocol._replace(run=run_protocol))
    with pytest.raises(UserError, match="trains the network"):
        evaluate.evaluate(run, ["finetune"], out=out)
    assert [context.features.train.size for context in seen] == [0]
    assert len(seen[0].features.train_labels) == 1297


def test_kinds_of_features_that_no_protocol_takes_are_left_out(run, out, monkeypatch):
    monkeypatch.setattr(evaluate, "make_contexts", made := Mock(return_value=iter(())))
    for names, kinds in ((["finetune"], ["pretrained"]), (["finetune", "knn"], [*results.KINDS])):
        evaluate.evaluate(run, names, out=out, dry_run=True)
        assert made.call_args.args[3] == kinds
    with refused("protocol 'finetune' has no results for raw features; it may need pretrained"):
        evaluate.evaluate(run, ["knn", "finetune"], out=out, kinds=["raw"])
    assert made.call_count == 2  # It is refused before any work is done.


def test_results_before_a_protocol_that_fails_are_printed(run, out, monkeypatch, capsys):
    fail = Mock(side_effect=ValueError("too few images"))
    monkeypatch.setattr(linear, "protocol", linear.protocol._replace(run=fail))
    with refused("protocol 'linear': too few images"):
        evaluate.evaluate(load.load_pretrained(run), ["knn", "linear"], kinds=["raw"])
    assert "knn_top1" in capsys.readouterr().out


def test_results_that_cannot_be_written_are_printed(run, out, monkeypatch, capsys):
    fail = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr(file_io.os, "fsync", fail)
    with refused("No space left on device"):
        knn(run, out, kinds=["raw"])
    assert "knn_top1" in capsys.readouterr().out


def test_seed_of_numpy_is_stored_as_a_number(run, out):
    knn(run, out, seed=np.int64(5), kinds=["raw"])
    assert {row["seed"] for row in results.read_results(out)} == {5}
    with refused("seed must be an integer >= 0 and below 2^31, got 'a'"):
        knn(run, out, seed="a")


def test_error_of_a_protocol_with_several_lines_is_shown_in_one(run, out, monkeypatch):
    refuse = Mock(side_effect=ValueError("Input X\nis too small"))
    monkeypatch.setattr(linear, "protocol", linear.protocol._replace(run=refuse))
    with refused("protocol 'linear': Input X is too small"):
        evaluate.evaluate(run, ["linear"], out=out, kinds=["raw"])


@pytest.mark.long
@pytest.mark.parametrize("error", [MemoryError("32 GiB"), JaxRuntimeError("RESOURCE_EXHAUSTED:")])
def test_protocol_that_does_not_fit_in_memory_leaves_the_results_of_others(
    run, out, monkeypatch, error
):
    monkeypatch.setattr(linear, "protocol", linear.protocol._replace(run=Mock(side_effect=error)))
    rows = evaluate.evaluate(run, ["all"], out=out, kinds=["raw"])
    assert "knn" in {row["protocol"] for row in rows}
    lost = Mock(side_effect=JaxRuntimeError("UNAVAILABLE: another process has ended"))
    monkeypatch.setattr(linear, "protocol", linear.protocol._replace(run=lost))
    with pytest.raises(JaxRuntimeError, match="UNAVAILABLE"):
        evaluate.evaluate(run, ["linear"], out=out, kinds=["raw"])


def test_each_named_preset_without_results_is_refused(run, out, monkeypatch):
    nothing = lambda context, *, seed, preset="fast": [] if preset == "cifar" else [RESULT]  # noqa: E731
    monkeypatch.setattr(linear, "protocol", linear.protocol._replace(run=nothing))
    with refused("protocol 'linear:cifar' has no results for raw features; it may need pretrained"):
        evaluate.evaluate(run, ["linear", "linear:cifar"], out=out, kinds=["raw"])


def test_results_in_the_workdir_under_another_path_are_those_of_the_run(run, tmp_path):
    (tmp_path / "link").symlink_to(run)
    options = {"kinds": ["raw"], "page": False}
    rows = [knn(run, out, **options)[0] for out in (run, tmp_path / "link")]
    assert rows[0]["data"] == rows[1]["data"]


def test_features_of_augmented_views_use_the_training_augmentation(run, data_dir):
    encoder = load.load_pretrained(run)
    settings = ConfigDict(encoder.metadata["config"])
    splits, mesh = source.load_splits(settings.data), distributed.make_mesh()
    images = splits.bank.images(8)[:5]
    options = {"seed": 0, "features": False}
    [(_, made)] = context.make_contexts(encoder, settings, splits, ["raw"], mesh, **options)
    pixels = made.views(images, 3, 1)
    assert pixels.shape == (3, 5, 8 * 8)
    np.testing.assert_array_equal(pixels, made.views(images, 3, 1))
    assert np.abs(pixels[0] - pixels[1]).mean() > 0.01


def test_results_of_different_class_lists_are_stored_separately(run, out, tmp_path):
    for name, classes in (("low", "0123"), ("high", "6789")):
        path = tmp_path / f"{name}.txt"
        path.write_text("\n".join(classes))
        given = [("data.classes", str(path))]
        data = overrides.data_config(run, ConfigDict(data_config()), None, given)
        rows = knn(run, out, data=data, kinds=["raw"])
        assert rows[0]["dataset"] == f"digits ({name}.txt)"
    assert len(results.read_results(out)) == 4


def test_relative_paths_of_the_command_line_become_absolute(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = [("data.classes", "low.txt")]
    data = overrides.data_config(run, ConfigDict(data_config()), None, given)
    assert data is not None and data.classes == str(tmp_path / "low.txt")


def test_untrained_baseline_does_not_depend_on_the_seed_of_the_protocol(run, out):
    rows = [knn(run, out, seed=seed, kinds=["untrained"])[0] for seed in (0, 5)]
    assert rows[0]["value"] == rows[1]["value"] and [row["seed"] for row in rows] == [0, 5]


@pytest.mark.long
def test_evaluation_on_another_data_set_leaves_the_results_of_the_run_unchanged(run, out, data_dir):
    knn(run, out)
    half = [("data.train_split", "train[:50%]")]
    data = overrides.data_config(run, ConfigDict(data_config()), "digits", half)
    assert data.dir == str(data_dir) and data.train_split == "train[:50%]"
    rows = knn(run, out, data=data)
    assert {row["bank"] for row in rows} == {"train[:50%]"}
    assert len(results.read_results(out)) == 12
    assert knn(run, out, data=data) and len(results.read_results(out)) == 12
    assert not (out / "report.html").exists()


def chosen(kind, *protocols):
    return {run.text for run in select_protocols(protocols, kind)}


def test_protocols_all_selects_protocols_for_the_kind_of_examples():
    on_features = {"knn", "linear", "fewshot", "episodes", "retrieval", "noise"}
    on_images = {"finetune", "semi", "corruptions", "diagnostics"}
    on_captions = {"captions", "zeroshot"}
    assert chosen("image", "all") == on_features | on_images
    assert chosen("image_text", "all") == on_features | on_images | on_captions
    assert chosen("video", "all") == on_features
    assert chosen("graph", "all") == on_features | {"svm"}
    assert chosen(None, "all") == on_features | on_images | on_captions | {"svm"}
    # A protocol given by name, not by `all`, runs on any kind of examples.
    assert chosen("image", "svm:kernel") == {"svm:kernel"}
    assert chosen("image", "all", "svm:kernel") == on_features | on_images | {"svm:kernel"}


def test_protocols_that_need_labels_are_dropped_or_refused_on_data_without_labels():
    selected = select_protocols(["knn", "diagnostics", "linear"], "image")
    splits = SimpleNamespace(labelled=False, test=SimpleNamespace(name="pictures"))
    rest = drop_unlabelled(selected, splits, strict=False)
    assert [one.text for one in rest] == ["diagnostics"]
    with refused("protocols knn,linear need labels, and 'pictures' has none"):
        drop_unlabelled(selected, splits, strict=True)


def test_online_metrics_on_other_test_examples_are_no_results_on_the_present_ones(tmp_path, caplog):
    online = [
        changed(ROW, protocol="online", step=step, details__preset=str(step)) for step in (20, 40)
    ]
    results.add_results(tmp_path, [*online, changed(ROW, step=60, content="5e11f9")])
    assert evaluate._last_step_on_other_data(tmp_path, "3b9ac1") == -1 and not caplog.text
    assert evaluate._last_step_on_other_data(tmp_path, "5e11f9") == 40
    assert "the bank or the test examples have changed after step 40" in caplog.text


def test_protocols_that_need_labels_are_dropped_or_refused_on_data_with_one_class():
    part = SimpleNamespace(labels=np.zeros(3, np.int32), name="pictures")
    splits = SimpleNamespace(labelled=True, bank=part, test=part)
    selected = select_protocols(["knn", "diagnostics", "linear"], "image")
    rest = drop_unlabelled(selected, splits, strict=False)
    assert [one.text for one in rest] == ["diagnostics"]
    with refused("all labels of 'pictures' are the same", "100 % in knn,linear"):
        drop_unlabelled(selected, splits, strict=True)


def test_protocols_without_labels_accept_classes_without_training_images():
    def part(*labels):
        names = {"name": "set", "split": "split", "class_names": ("a", "b")}
        return SimpleNamespace(labels=np.array(labels), **names)

    splits = SimpleNamespace(labelled=True, bank=part(0, 0), test=part(0, 1))
    selected = select_protocols(["captions"], "image_text")
    assert drop_unlabelled(selected, splits, strict=True) == selected
    with refused("images of classes without images"):
        drop_unlabelled(select_protocols(["knn"], "image"), splits, strict=True)
    selected = select_protocols(["knn", "retrieval", "diagnostics"], "image")
    rest = drop_unlabelled(selected, splits, strict=False)
    assert [one.text for one in rest] == ["retrieval", "diagnostics"]


def test_protocols_that_all_stands_for_are_dropped_and_named_ones_refused():
    splits = SimpleNamespace(labelled=False, test=SimpleNamespace(name="pictures"))
    rest = drop_unlabelled(select_protocols(["all"], "image"), splits, strict=True)
    assert [one.text for one in rest] == ["diagnostics"]
    with refused("protocols knn need labels, and 'pictures' has none"):
        drop_unlabelled(select_protocols(["all", "knn"], "image"), splits, strict=True)


def test_every_protocol_names_existing_kinds_of_examples():
    kinds = set(components.names("kind"))
    for run in select_protocols(components.names("protocol")):
        assert set(run.protocol.examples or kinds) <= kinds, run.name


def test_protocols_all_warns_about_skipped_protocols(monkeypatch, run, out):
    names = components.names
    only = {"protocol": ("knn", "linear")}
    monkeypatch.setattr(components, "names", lambda group: only.get(group) or names(group))
    warned = Mock()
    monkeypatch.setattr(evaluate.logs.log, "warning", warned)

    refuse = Mock(side_effect=ValueError("too few images"))
    monkeypatch.setattr(linear, "protocol", linear.protocol._replace(run=refuse))
    rows = evaluate.evaluate(run, ["all"], out=out, kinds=["raw"])
    assert {row["protocol"] for row in rows} == {"knn"}
    text, *parts = warned.call_args.args
    assert text % tuple(parts) == "protocol 'linear' is left out: too few images"
    with pytest.raises(UserError, match="protocol 'linear': too few images"):
        evaluate.evaluate(run, ["linear"], out=out, kinds=["raw"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"protocols": ["knm"]}, "protocol 'knm' is unknown; did you mean 'knn'"),
        ({"protocols": ["kNN"]}, "protocol 'kNN' is unknown; did you mean 'knn'"),
        ({"protocols": ["knn:k7"]}, "preset 'k7' of protocol 'knn' is unknown"),
        ({"kinds": ["pixels"]}, "'pixels' in kinds is unknown"),
        ({"layer": "head"}, "layer must be one of backbone, projector, got 'head'"),
        ({"step": 5}, r"no checkpoint of step 5, only of \[3, 6\]"),
    ],
)
def test_eval_rejects_invalid_options(run, out, options, message):
    with pytest.raises(UserError, match=message):
        evaluate.evaluate(run, **{"protocols": ["knn"], "out": out, **options})
    assert not out.exists()


def test_eval_rejects_a_data_set_that_does_not_fit_the_run(run, out, labelled, data_dir):
    colour = data_config(name="folder", path=str(labelled), dir=str(data_dir))
    with pytest.raises(UserError, match="takes 1-channel images, .* has 3"):
        knn(run, out, data=colour)
    other = data_config(dir=str(data_dir), classes=str(out))
    out.write_text("\n".join("0123456789"))
    unseen = {**other, "classes": "", "train_split": "train[:3]"}
    with pytest.raises(UserError, match=r"has images of classes without images in .* \(\d"):
        knn(run, out.with_name("x"), data=unseen)


def test_load_encoder_rejects_network_options_for_a_run(run):
    with pytest.raises(UserError, match=r"is a run, whose config defines the network; remove stem"):
        jaxssl.load_encoder(run, stem="cifar")


def test_step_flag_of_eval_accepts_a_number_last_or_best():
    assert [cli.parse_step(text) for text in (None, "best", "12")] == [None, "best", 12]
    with pytest.raises(UserError, match="--step must be a number, last or best"):
        cli.parse_step("-1")


def test_eval_refuses_a_wrong_later_encoder_before_it_evaluates_the_first(
    run, out, tmp_path, run_command
):
    (tmp_path / "damaged.safetensors").write_bytes(b"none")
    arguments = (f"--workdir={run}", f"--out={out}", "--protocols=knn:uniform", "--kinds=raw")
    for weights, message in (
        ("none.safetensors", "none.safetensors"),
        ("damaged.safetensors", "damaged.safetensors"),
    ):
        weights = f"--weights={tmp_path / weights}"
        status, output, errors = run_command("eval", *arguments, weights, "--dataset=digits")
        assert status == 2 and message in errors and "knn" not in output
        assert not out.exists()


def test_dry_run_opens_encoder_and_data_and_writes_nothing(run, out, capsys):
    assert knn(run, out, dry_run=True) == []
    assert not out.exists() and "knn" not in capsys.readouterr().out
    with refused("layer must be one of backbone, projector, got 'head'"):
        knn(run, out, layer="head", dry_run=True)


def test_eval_of_weights_with_data_overrides_needs_the_name_of_the_data_set(tmp_path):
    weights, defaults = tmp_path / "vit.safetensors", ConfigDict(data_config())
    with refused(f"name the data set to evaluate {weights} on: --dataset NAME"):
        overrides.data_config(weights, defaults, None, [("data.dir", "x")])
    named = overrides.data_config(weights, defaults, None, [("data.name", "cifar10")])
    assert named is not None and named.name == "cifar10"


def test_eval_overrides_accept_only_data_keys(run):
    data, net = overrides.split_overrides([("data.dir", "x"), ("net.num_heads", "6")])
    assert data == [("data.dir", "x")] and net == {"num_heads": 6}
    with pytest.raises(UserError, match="eval has no --config.net.name: a run has its own config"):
        overrides.split_overrides([("net.name", "vit")])
    with pytest.raises(UserError, match="net.num_heads expects a number, got 'six'"):
        overrides.split_overrides([("net.num_heads", "six")])
    with pytest.raises(UserError, match="data.splt.* is unknown"):
        overrides.data_config(run, ConfigDict(data_config()), None, [("data.splt", "x")])
    for key, value in {"channels": "17", "cache": "all", "on_error": "Skip"}.items():
        with pytest.raises(UserError, match=rf"data\.{key}.* (must be <= 16|is unknown)"):
            overrides.data_config(run, ConfigDict(data_config()), None, [(f"data.{key}", value)])


def test_results_of_earlier_protocols_are_kept_when_a_later_protocol_fails(run, out, monkeypatch):
    stopped = Mock(side_effect=KeyboardInterrupt)
    monkeypatch.setattr(linear, "protocol", linear.protocol._replace(run=stopped))
    with pytest.raises(KeyboardInterrupt):
        evaluate.evaluate(run, ["knn", "linear"], out=out, kinds=["raw"])
    assert {row["metric"] for row in results.read_results(out)} == {"knn_top1", "knn_top5"}


def test_networks_with_nonfinite_features_are_rejected(run, out, monkeypatch):
    restore = checkpoint.restore_arrays

    def spoilt(*args):
        result = restore(*args)
        result.state["params"]["net"]["Conv_0"]["kernel"] = np.full((3, 3, 1, 4), np.nan)
        return result

    monkeypatch.setattr(checkpoint, "restore_arrays", spoilt)
    with pytest.raises(UserError, match="params/Conv_0/kernel has values that are not finite"):
        knn(run, out)


def test_episodes_support_classes_without_training_images(run, out, monkeypatch):
    three = [("data.train_split", "train[:3]")]
    data = overrides.data_config(run, ConfigDict(data_config()), None, three)
    preset = {"ways": 3, "shots": 2, "queries": 2, "episodes": 5}
    monkeypatch.setitem(episodes.PRESETS, "cdfsl_5way_20shot", preset)
    assert len(evaluate.evaluate(run, ["episodes"], data=data, out=out, kinds=["raw"])) == 1


SUITE = """
def get_suite():
    half = {"name": "digits", "train_split": "train[:50%]", "metric": "knn_top5"}
    datasets = {"A": {"name": "digits"}, "B": half}
    return {"protocol": "knn", "metric": "knn_top1", "datasets": datasets}
"""


def test_suite_prints_a_table_of_encoders_by_data_sets(run, tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text(SUITE)
    rows = suite.run(path, [run], ConfigDict(data_config()), out=tmp_path / "out")
    assert {(row["column"], row["bank"]) for row in rows} == {("A", "train"), ("B", "train[:50%]")}
    shown = {(r["column"], r["metric"]): r["value"] for r in rows}
    text = capsys.readouterr().out
    mean = (shown["A", "knn_top1"] + shown["B", "knn_top5"]) / 2
    for figure in (shown["A", "knn_top1"], shown["B", "knn_top5"], mean):
        assert f"{figure:.2f}" in text


def test_suite_refuses_a_wrong_later_encoder_before_it_evaluates_the_first(run, tmp_path):
    path, out = tmp_path / "mine.py", tmp_path / "out"
    path.write_text(SUITE)
    with pytest.raises(UserError, match="nowhere"):
        suite.run(path, [run, tmp_path / "nowhere"], ConfigDict(data_config()), out=out)
    assert not out.exists()


def suite_row(encoder, value, **changes):
    """Return a row of a suite with one data set A."""
    row = {"features": "pretrained", "step": 1, "checkpoint": "last", "split": "test"}
    row |= {"metric": "knn_top1", "details": {}, "std": None, "layer": "backbone", "seed": 0}
    return {**row, "encoder": encoder, "value": value, "column": "A", **changes}


def test_suite_reports_wins_and_means_of_each_encoder():
    made = suite.Suite("knn", "knn_top1", {"A": {}, "B": {}, "C": {}})
    scores = {"x": (50.0, 60.001, 70.0), "y": (40.0, 60.002, 80.0), "z": (45.0, None, 10.0)}
    rows = [
        suite_row(encoder, value, column=column)
        for encoder, values in scores.items()
        for column, value in zip("ABC", values, strict=True)
        if value is not None
    ]
    columns = {column.header: list(column.cells) for column in suite.table(made, rows).columns}
    assert columns["wins"] == ["2", "2", "0"]  # encoders with equal rounded results both win
    assert columns["mean"] == ["60.00", "60.00", "–"]
    cells = {name.partition("\n")[0]: values for name, values in columns.items()}
    assert [cells[name] for name in ("encoder", *"ABC")] == [
        ["x", "y", "z"],
        ["50.00", "40.00", "45.00"],
        ["60.00", "60.00", "–"],
        ["70.00", "80.00", "10.00"],
    ]


def test_suite_has_no_mean_of_metrics_with_other_units_or_directions():
    rows = [suite_row("x", 90.0), suite_row("x", 50.0, column="B", metric="corruption_mce")]
    columns = {"A": {}, "B": {"metric": "corruption_mce", "protocol": "corruptions"}}
    *_, mean, _ = suite.table(suite.Suite("knn", "knn_top1", columns), rows).columns
    assert list(mean.cells) == ["–"]


@pytest.mark.parametrize(
    ("metric", "wins"),
    [("rankme", ["0", "1"]), ("alignment", ["1", "0"]), ("uniformity", ["1", "0"])],
)
def test_suite_wins_follow_the_direction_of_the_metric(metric, wins):
    rows = [suite_row(x, v, metric=metric, unit="") for x, v in (("x", 1.0), ("y", 2.0))]
    made = suite.table(suite.Suite("diagnostics", metric, {"A": {}}), rows)
    assert list(made.columns[-1].cells) == wins


@pytest.mark.parametrize(
    ("metric", "values", "wins", "means"),
    [
        ("knn_top1", (np.nan, 2.0, 3.0), ["0", "0", "1"], ["–", "2.00", "3.00"]),
        ("knn_top1", (2.0, np.inf, np.nan), ["1", "0", "0"], ["2.00", "–", "–"]),
        ("alignment", (np.nan, 2.0, 3.0), ["0", "1", "0"], ["–", "2.00", "3.00"]),
        ("knn_top1", (np.nan, np.nan), ["0", "0"], ["–", "–"]),
    ],
)
def test_suite_value_that_is_not_finite_never_wins_and_has_no_mean(metric, values, wins, means):
    rows = [suite_row(str(i), value, metric=metric) for i, value in enumerate(values)]
    *_, mean, won = suite.table(suite.Suite("knn", metric, {"A": {}}), rows).columns
    assert (list(won.cells), list(mean.cells)) == (wins, means)


@pytest.mark.parametrize(
    ("metric", "unit"), [("rankme", "; nats"), ("spread", ""), ("worst", "; percent")]
)
def test_suite_title_names_the_unit_of_the_metric_that_is_shown(metric, unit):
    units = {"worst": "%", "rankme": "nats", "spread": ""}
    rows = [suite_row("x", 1.0, metric=name, unit=text) for name, text in units.items()]
    made = suite.table(suite.Suite("diagnostics", metric, {"A": {}}), rows)
    assert made.title == f"diagnostics, {metric}; backbone features, seed 0{unit}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("get_suite = lambda: {'protocol': 'knn'}", "expected get_suite.* protocol, metric"),
        ("def get_suite():\n    raise ValueError('a\\nb')", "failed: ValueError: a b; expected"),
        (SUITE.replace('"A"', "2012"), "the heading of data set 2012 must be a text, got 2012"),
        (SUITE.replace('{"name": "digits"}', '{"name": 3}'), "the name of data set 'A' must be a"),
        (SUITE.replace('"knn"', "['knn']"), "the protocol of data set 'A' must be a text, got"),
        (SUITE.replace('"knn_top5"', "5"), "the metric of data set 'B' must be a text, got 5"),
        ("x = 1", "failed: AttributeError"),
        (SUITE.replace('{"A": {"name": "digits"}, "B": half}', "{}"), "must be a dict of"),
        (SUITE.replace('{"A": {"name": "digits"}, "B": half}', "['A']"), "must be a dict of"),
        (SUITE.replace('{"A": {"name": "digits"}', '{"A": {}'), "data set 'A' has no 'name'"),
    ],
)
def test_invalid_suite_file_is_rejected(tmp_path, text, message):
    path = tmp_path / "mine.py"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        suite.read(path)
    with pytest.raises(UserError, match="does not exist"):
        suite.read(tmp_path / "none.py")


def test_suites_of_the_repository_name_existing_protocols():
    paths = sorted((DIGITS.parent / "suites").glob("*.py"))
    assert len(paths) == 6
    for path in paths:
        result = suite.read(path)
        own = [values.get("protocol", result.protocol) for values in result.datasets.values()]
        select_protocols([result.protocol, *own])
