"""Whole runs: crash, stop, resume, rejected input, and the files in the workdir."""

import builtins
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from file_cases import full_disk
from jax import numpy as jnp
from orbax import checkpoint as orbax
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto import event_pb2
from tiny import SAVED, SETTINGS, STEPS, flags
from workdir_cases import (
    assert_resumes,
    assert_same_arrays,
    assert_same_run,
    at_batch,
    initial_state,
    metric_lines,
    stop,
)

import jaxssl
from jaxssl import distributed
from jaxssl.augment.views import Inputs
from jaxssl.data import source
from jaxssl.data.batches import Order
from jaxssl.errors import UserError
from jaxssl.evaluation import features, pretrain, run
from jaxssl.training import collapse, loop, metrics_reporter, nonfinite
from jaxssl.training.build import build
from jaxssl.training.metrics_reporter import MetricsReporter
from jaxssl.training.output import loggers, metrics_writer
from jaxssl.training.programs import make_encoder
from jaxssl.training.workdir import checkpoint, goodput, run_record
from jaxssl.training.workdir.run_lock import lock

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("cache", ["device", pytest.param("none", marks=pytest.mark.long)])
def test_crashed_run_resumes_bit_for_bit(tiny, whole, tmp_path, cache):
    settings = tiny(**{"data.cache": cache})
    stop(settings, tmp_path, 10, 0)
    assert checkpoint.steps(tmp_path) == [SAVED]
    pretrain.train(settings, tmp_path)
    assert_same_run(tmp_path, whole)


# Program that trains until a checkpoint file or folder would be renamed, and then kills itself.
KILLED = """
import os, signal, sys
from jaxssl import cli

def kill(event, arguments):
    if event == "os.rename" and "orbax-checkpoint-tmp" in str(arguments[0]):
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(kill)
cli.main("train")
"""


@pytest.mark.long
def test_run_killed_during_checkpoint_writing_resumes_bit_for_bit(tiny, whole, data_dir, tmp_path):
    settings = flags({**SETTINGS, "data.dir": str(data_dir)})
    command = [sys.executable, "-c", KILLED, "--workdir", str(tmp_path), *settings]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == -signal.SIGKILL, process.stderr
    [unfinished] = (tmp_path / "checkpoints").iterdir()
    assert "tmp" in unfinished.name and checkpoint.steps(tmp_path) == []
    pretrain.train(tiny(), tmp_path)
    assert_same_run(tmp_path, whole)
    assert checkpoint.steps(tmp_path) == [SAVED, STEPS] and not unfinished.exists()


def set_back(monkeypatch) -> None:
    """Let the clock of the system go back by a minute whenever it is read."""
    times = itertools.count(int(1e9 * time.time()), -60 * 10**9)
    monkeypatch.setattr(time, "time_ns", lambda: next(times))
    monkeypatch.setattr(time, "time", lambda: next(times) / 1e9)


def test_stopped_run_resumes_bit_for_bit_with_a_clock_set_back(tiny, whole, tmp_path, monkeypatch):
    set_back(monkeypatch)
    handler = signal.getsignal(signal.SIGINT)
    ended = []
    stop(tiny(), tmp_path, 5)
    assert goodput.read(tmp_path)["ended"]
    assert signal.getsignal(signal.SIGINT) is handler
    assert checkpoint.steps(tmp_path) == [5]
    assert "run the same command to resume" in (tmp_path / "train.log").read_text()
    with pytest.MonkeyPatch.context() as patch:
        at_batch(patch, 6, lambda: ended.append(goodput.read(tmp_path)["ended"]))
        pretrain.train(tiny(), tmp_path)
    assert ended == [False]  # A crash before the next checkpoint would count as an interruption.
    assert_same_arrays(tmp_path, whole)
    rows = metrics_writer.read_metrics(tmp_path / "metrics.jsonl")
    assert min(row["images_per_second"] for row in rows) > 0
    # The interruption added one line of metrics and changed nothing else.
    assert [row for row in metric_lines(tmp_path) if row["step"] != 5] == metric_lines(whole)


def test_metrics_see_all_views_are_synced_before_checkpoints_and_exclude_their_time(
    tiny, tmp_path, monkeypatch
):
    """The clock of the training speed starts again after each checkpoint."""
    events, shapes = [], []

    def record(owner, name, calls):
        function = getattr(owner, name)

        def recorded(*args):
            calls.append((name, *args))
            return function(*args)

        monkeypatch.setattr(owner, name, recorded)

    record(checkpoint.Manager, "save", events)
    record(MetricsReporter, "restart_clock", events)
    record(metrics_writer.MetricsWriter, "sync", events)
    record(collapse, "embedding_metrics", shapes)
    pretrain.train(tiny(), tmp_path)
    assert {embeddings.shape for _, embeddings in shapes} == {(2, 16, 6)}
    calls = [(name, *args[:1]) for name, _, *args in events]
    for step in (SAVED, STEPS):
        at = calls.index(("save", step))
        assert calls[at - 1 : at + 2] == [("sync",), ("save", step), ("restart_clock", step)]


@pytest.mark.long
def test_signal_at_the_last_step_postpones_evaluation_to_the_next_command(
    tiny, tmp_path, monkeypatch
):
    settings = tiny(**{"eval.protocols": "('knn',)"})
    stop(settings, tmp_path, STEPS, signal.SIGTERM)
    assert checkpoint.steps(tmp_path) == [SAVED, STEPS]
    assert not (tmp_path / "results.json").exists()
    (tmp_path / "report.html").touch()  # as `jaxssl report` writes it for a run that was stopped
    pretrain.train(settings, tmp_path)
    assert (tmp_path / "results.json").exists() and (tmp_path / "report.html").read_bytes()
    monkeypatch.setattr(run, "evaluate", lambda *_, **__: pytest.fail("it was evaluated before"))
    pretrain.train(settings, tmp_path)


def test_signal_while_the_end_of_training_is_logged_postpones_evaluation(
    tiny, tmp_path, monkeypatch
):
    def send(record):
        if record.msg.startswith("finished"):  # The run has looked for signals before.
            os.kill(os.getpid(), signal.SIGTERM)
        return True

    monkeypatch.setattr(loop.log, "filters", [*loop.log.filters, send])
    with pytest.raises(SystemExit) as caught:
        pretrain.train(tiny(**{"eval.protocols": "('knn',)"}), tmp_path)
    assert caught.value.code == 128 + signal.SIGTERM
    assert "stopped before the evaluation" in (tmp_path / "train.log").read_text()
    assert not (tmp_path / "results.json").exists()


def test_second_stop_signal_exits_at_once(monkeypatch):
    ended = []
    monkeypatch.setattr(os, "_exit", ended.append)
    with loop._stop_requests() as signals:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)  # a launcher's second copy of the first one
        assert signals == [signal.SIGINT] and not ended
        monkeypatch.setattr(loop, "REPEATED_SECONDS", 0.0)
        os.kill(os.getpid(), signal.SIGTERM)
        assert ended == [128 + signal.SIGTERM]


def test_stop_signal_that_interrupts_a_write_is_noted_without_a_line(monkeypatch):
    def interrupted(*_):
        raise RuntimeError("reentrant call inside <_io.BufferedWriter name='<stdout>'>")

    monkeypatch.setattr(loop.log, "info", interrupted)
    with loop._stop_requests() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals == [signal.SIGTERM]


def test_second_interrupt_of_a_notebook_leaves_its_kernel_alive(monkeypatch):
    monkeypatch.setattr(loop, "REPEATED_SECONDS", 0.0)
    monkeypatch.setattr(os, "_exit", lambda _: pytest.fail("the kernel ended"))
    monkeypatch.setattr(builtins, "__IPYTHON__", True, raising=False)
    with pytest.raises(KeyboardInterrupt), loop._stop_requests() as signals:
        os.kill(os.getpid(), signal.SIGINT)
        assert signals == [signal.SIGINT]
        os.kill(os.getpid(), signal.SIGINT)


def test_online_knn_is_skipped_if_features_are_not_finite(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(pretrain, "extract", lambda *_, **__: np.full((4, 2), np.inf))
    pretrain.train(tiny(), tmp_path)
    assert "knn_top1" not in metric_lines(tmp_path)[-1]
    assert "no k-NN: the features are not finite" in (tmp_path / "train.log").read_text()


@pytest.mark.long
def test_run_with_momentum_network_queue_and_memory_resumes_bit_for_bit(tiny, tmp_path):
    """With a momentum network, a queue, a per-example buffer and schedules."""
    method = {"method.name": "momentum", "method.symmetric": "False", "method.queue_size": "40"}
    copy = "{'schedule': 'cosine', 'start': 0.9, 'end': 1.0}"
    loss = {"loss.name": "decl", "loss.weight": "alternate"}
    settings = tiny(**method, **loss, **{"method.momentum": copy})
    pretrain.train(settings, tmp_path / "whole")
    assert_resumes(settings, tmp_path / "whole", tmp_path / "stopped", at=5)
    memory = checkpoint.restore_arrays(tmp_path / "whole").state["carried"]["memory"]
    assert memory["queue"]["next"] == 12 * 16 % 40 and memory["queue"]["rows"].shape == (40, 6)
    assert memory["objective"].shape == (1304,)  # 1297 padded to a multiple of 8
    assert np.isfinite(memory["objective"][:1297]).sum() == 12 * 16
    assert not memory["objective"][1297:].any()


def test_metrics_jsonl_has_all_fields_with_finite_values(whole):
    rows = metrics_writer.read_metrics(whole / "metrics.jsonl")
    assert [row["step"] for row in rows] == [4, 7, 8, 12]
    needed = {"loss", "images_per_second", "learning_rate", "epoch", "b", "feature_std",
              "effective_rank", "alignment", "uniformity", "positive_similarity",
              "negative_similarity"}  # fmt: skip
    for row in rows:
        assert needed <= set(row)
        assert all(np.isfinite(value) for value in row.values())
    assert "knn_top1" in rows[-1]
    assert list(whole.glob("events.out.tfevents.*"))
    seconds = json.loads((whole / "goodput.json").read_text())["seconds"]
    assert min(seconds[part] for part in ("start", "compilation", "steps", "checkpoints")) > 0
    log = (whole / "train.log").read_text()
    for part in ("peak learning rate 0.003", "16 images", "2 images on each of 8 devices",
                 "parameters", "81 an epoch, 4 of warm-up"):  # fmt: skip
        assert part in log


def test_training_losses_of_all_steps_are_reported_once(whole):
    reported = json.loads((whole / "reported.json").read_text())
    assert [(step, len(values)) for step, values in reported] == [(4, 4), (7, 3), (8, 1), (12, 4)]
    assert len({value for _, values in reported for value in values}) == STEPS
    logged = {row["step"]: row["loss"] for row in metric_lines(whole)}
    assert {step: values[-1] for step, values in reported} == pytest.approx(logged)


def events(workdir: Path) -> dict[int, dict[str, float]]:
    """Read the scalars of each step as TensorBoard shows them, without purged ones."""
    actual = {}
    messages: Any = event_pb2
    for path in sorted(workdir.glob("events.out.tfevents*")):
        data, at = path.read_bytes(), 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 8], "little")
            event = messages.Event.FromString(data[at + 12 : at + 12 + size])
            at += size + 16
            if event.HasField("session_log"):
                actual = {step: values for step, values in actual.items() if step < event.step}
            for value in event.summary.value:
                actual.setdefault(event.step, {})[value.tag] = value.simple_value
    return actual


def test_tensorboard_events_equal_metrics_jsonl_even_with_a_clock_set_back(tmp_path, monkeypatch):
    set_back(monkeypatch)
    killed = (0, range(1, 7))  # before its first checkpoint
    for first, steps in (killed, (0, (1, 2)), (1, (2, 3)), (3, (4,)), (4, (5,))):
        recorder = metrics_writer.MetricsWriter(tmp_path, first)
        for step in steps:
            recorder.write(step, {"loss": step + first / 2, "b": 1.0})
        recorder.sync()
        recorder.close()
    rows = metrics_writer.read_metrics(tmp_path / "metrics.jsonl")
    assert [row.pop("step") for row in rows] == [1, 2, 3, 4, 5]
    assert events(tmp_path) == dict(zip((1, 2, 3, 4, 5), rows, strict=True))


def test_tensorboard_events_hold_nan_without_a_second_warning(tmp_path, caplog):
    with closing(loggers.open_logger("tensorboard", tmp_path, 0, {})) as writer:
        writer.write(1, {"loss": np.nan})
    assert np.isnan(events(tmp_path)[1]["loss"]) and not caplog.records


def test_finished_run_without_its_checkpoints_is_refused_and_keeps_its_metrics(
    tiny, whole, tmp_path
):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    shutil.rmtree(run / "checkpoints")
    before = (run / "metrics.jsonl").read_bytes()
    with pytest.raises(UserError, match="has ended, and its checkpoints are gone; move it"):
        pretrain.train(tiny(), run)
    assert (run / "metrics.jsonl").read_bytes() == before


def test_train_on_a_finished_run_says_so_and_changes_no_file(tiny, whole, capsys):
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*") if path.is_file()}
    # The cache of the data and the number of workers may change.
    pretrain.train(tiny(**{"data.cache": "none", "data.workers": "1"}), whole)
    assert f"is finished ({STEPS} steps)" in capsys.readouterr().out
    assert before == {path: path.stat().st_mtime_ns for path in whole.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["run[seed=1]", "a*b", "is this?", "b\udcff", "[ab]/run"])
def test_workdir_name_that_the_checkpoint_format_cannot_hold_is_rejected(tiny, tmp_path, name):
    with pytest.raises(UserError, match="of the workdir .*; choose another --workdir"):
        pretrain.train(tiny(), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_training_another_config_in_the_workdir_of_a_run_is_rejected(tiny, whole):
    before = {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match="another config .seed: 0 -> 1; total_steps: 12 -> 20"):
        pretrain.train(tiny(seed="1", total_steps="20"), whole)
    assert before == {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": "1298"}, "batch_size must be between 1 and the 1297"),
        ({"batch_size": "12"}, "batch_size=12 .* must be divisible by the 8 devices; try 8"),
        ({"data.cache": "disk"}, "data.cache='disk' is unknown"),
        ({"data.cache": "devise"}, "data.cache='devise' is unknown; did you mean 'device'"),
        (
            {"data.normalise": "measure"},
            "data.normalise='measure' is unknown; did you mean 'measured'",
        ),
        ({"data.on_error": "skp"}, "data.on_error='skp' is unknown; did you mean 'skip'"),
        ({"optim.sharding": "al"}, "optim.sharding='al' is unknown; did you mean 'all'"),
        (
            {"loss.alpha": "{'schedule': 'linear', 'start': 0.5, 'end': -0.5}"},
            "hyper-parameter alpha must be .*, got -0.5",
        ),
        (
            {"optim.name": "lars", "optim.trust_coefficient": "0"},
            "'optim.trust_coefficient' must be > 0",
        ),
        ({"data.train_split": "trian"}, "no split 'trian'; did you mean 'train'"),
        ({"schedule.warmup_epochs": "50"}, "warm-up of 4050 steps must be shorter than the run of"),
        (
            {"epochs": "0.001", "total_steps": "0"},
            "epochs=0.001 of 81 steps are less than a step; raise epochs",
        ),
        ({"epochs": "1e200", "total_steps": "0"}, r"are 8.1e\+201 steps, but a run has fewer than"),
        ({"optim.name": "adamax"}, "optim.name must be one of"),
        ({"accumulate_steps": "4"}, "must divide the 2 images of a batch on each of 8 devices"),
        ({"batch_norm_group": "3"}, "batch_norm_group=3 must divide the 8 devices"),
        ({"loss.name": "byol"}, "method.name='siamese' cannot train loss.name='byol'"),
        ({"eval.protocols": "('lineer',)"}, "protocol 'lineer' is unknown; did you mean 'linear'"),
    ],
)
def test_invalid_settings_are_refused_before_a_workdir_is_written(tiny, tmp_path, changes, message):
    workdir = tmp_path / "run"
    with pytest.raises(UserError, match=message):
        pretrain.train(tiny(**changes), workdir)
    assert not workdir.exists()


def flip(path: Path) -> None:
    """Flip one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 8
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("damage", [pytest.param(truncate, marks=pytest.mark.long), flip])
def test_damaged_checkpoint_is_set_aside_and_an_earlier_one_restored(tiny, whole, tmp_path, damage):
    workdir = shutil.copytree(whole, tmp_path / "run")
    for path in (workdir / "checkpoints" / str(STEPS) / "state").rglob("*"):
        if path.is_file() and path.stat().st_size > 100:
            damage(path)
    with pytest.raises(UserError, match=rf"checkpoint .*{STEPS} is damaged .* also \[{SAVED}\]"):
        jaxssl.load_encoder(workdir, STEPS)
    jaxssl.load_encoder(workdir)
    pretrain.train(tiny(), workdir)
    log = (workdir / "train.log").read_text()
    assert f"{STEPS} is damaged or incomplete" in log and f"going back to step {SAVED}" in log
    assert (workdir / "damaged" / str(STEPS) / "state").is_dir()
    assert_same_run(workdir, whole)


def test_run_stops_without_overwriting_if_all_checkpoints_are_damaged(tiny, whole, tmp_path):
    workdir = shutil.copytree(whole, tmp_path / "run")
    for path in (workdir / "checkpoints").rglob("manifest.ocdbt"):
        truncate(path)
    before = sorted(workdir.rglob("*"))
    for action in (lambda: pretrain.train(tiny(), workdir), lambda: jaxssl.load_encoder(workdir)):
        with pytest.raises(UserError, match="is damaged or incomplete.*no other is left"):
            action()
    assert sorted(workdir.rglob("*")) == before


def test_resuming_names_changed_packages_and_sets_linked_checkpoints_aside(
    tiny, whole, tmp_path, monkeypatch
):
    workdir = shutil.copytree(whole, tmp_path / "run")
    folder = workdir / "checkpoints"
    os.rename(folder / str(STEPS), tmp_path / "elsewhere")
    (folder / str(STEPS)).symlink_to(tmp_path / "elsewhere")
    environment = run_record.environment(tiny())
    monkeypatch.setattr(run_record, "environment", lambda _: {**environment, "jaxlib": "9.9"})
    pretrain.train(tiny(), workdir)
    log = (workdir / "train.log").read_text()
    assert f"resumes at step {SAVED}" in log
    assert f"jaxlib: '{environment['jaxlib']}' -> '9.9'; the results may differ" in log
    assert f"checkpoints/{STEPS} is a symbolic link; it is ignored and moved" in log
    assert (workdir / "damaged" / str(STEPS)).is_symlink()
    assert_same_arrays(workdir, whole)


def test_error_names_a_missing_checkpoint_folder_or_step(whole, tmp_path):
    with pytest.raises(UserError, match="holds no checkpoint; train first"):
        jaxssl.load_encoder(tmp_path)
    (pictures := tmp_path / "pictures").mkdir()
    (pictures / "a.png").touch()
    with pytest.raises(UserError, match="holds no checkpoint; it holds other files; name the fold"):
        jaxssl.load_encoder(pictures)
    with pytest.raises(UserError, match=rf"of step 3, only of \[{SAVED}, {STEPS}\]"):
        jaxssl.load_encoder(whole, 3)
    with pytest.raises(UserError, match="holds no run"):
        run.evaluate(tmp_path)


@pytest.mark.parametrize("written", [1, pytest.param(8, marks=pytest.mark.long)])
def test_checkpoint_is_restored_on_any_number_of_devices(tiny, tmp_path, written):
    """With a replicated queue, sharded per-example buffers, and each `optim.sharding`."""
    method = {"method.name": "momentum", "method.symmetric": "False", "method.queue_size": "16"}
    settings = tiny(**method, **{"loss.name": "decl"})

    def state_on(devices, sharding="all"):
        settings.optim.sharding = sharding
        return initial_state(settings, jax.devices()[:devices])

    def arrays(state):
        """The arrays without the rows of zeros that pad per-example buffers."""
        tree = state.replace(key=jax.random.key_data(state.key))
        memory = {**tree.carried.memory, "objective": tree.carried.memory["objective"][:1297]}
        return jax.tree.leaves(tree.replace(carried=tree.carried._replace(memory=memory)))

    state: Any = state_on(written)
    remembered = jax.random.normal(jax.random.key(1), state.carried.memory["objective"].shape)
    remembered = jnp.where(jnp.arange(len(remembered)) < 1297, remembered, 0)
    memory = {**state.carried.memory, "objective": remembered}
    state = state.replace(carried=state.carried._replace(memory=memory))
    saved = checkpoint.Manager(tmp_path)
    saved.save(3, state, {}, {}, None)
    saved.close()
    cases = [(1, "all"), (2, "none"), (4, "optimizer"), (8, "all"), (8, "none")]
    for devices, sharding in cases:
        actual = checkpoint.restore(tmp_path, state_on(devices, sharding)).state
        assert {len(x.sharding.device_set) for x in jax.tree.leaves(actual)} == {devices}
        part = actual.carried.memory["objective"].addressable_shards[0].data
        assert part.shape == (-(-1297 // devices),)
        for a, b in zip(arrays(actual), arrays(state), strict=True):
            np.testing.assert_array_equal(a, b)


def test_checkpoint_of_a_network_with_other_shapes_is_rejected(tiny, whole, tmp_path):
    """Although rows of zeros may be added or removed."""
    template = initial_state(tiny(**{"net.widths": "(4, 16)"}))
    with pytest.raises(UserError, match="does not match its checksum"):
        checkpoint.restore(whole, template)


@pytest.mark.long
@pytest.mark.parametrize("which", ["online", "target"])
def test_features_of_load_encoder_equal_the_evaluated_features(tiny, whole, tmp_path, which):
    settings, workdir = tiny(), whole
    if which == "target":
        changes = {"method.evaluate": "target", "schedule.warmup_epochs": "0", "total_steps": "2"}
        settings, workdir = tiny(**{"method.name": "momentum"}, **changes), tmp_path / "run"
        pretrain.train(settings, workdir)
    images: Any = source.load(settings.data, "test").images(8)[:20]
    apply, variables, preprocess = jaxssl.load_encoder(workdir)
    actual = apply(variables, preprocess(images))
    assert actual.shape == (20, 8)
    mesh, method = distributed.make_mesh(), build(settings, 1297).method
    state = checkpoint.restore(workdir, initial_state(settings)).state
    encode = make_encoder(method, Inputs(settings.augment.size, 1))
    expected = features.extract(images, encode, (state.params, state.carried), mesh)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
    if which == "target":  # differs from the trained network
        own = state.carried._replace(target={**state.carried.target, "params": state.params})
        others = features.extract(images, encode, (state.params, own), mesh)
        assert np.abs(others - expected).max() > 1e-3


def test_damaged_lines_and_those_after_the_checkpoint_of_metrics_jsonl_are_dropped(tmp_path):
    rows = [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}]
    path = tmp_path / "metrics.jsonl"
    text = "[]\n".join(json.dumps(row) + "\n" for row in rows)
    path.write_text(f'{{"step": 0, "lo\n{text}{{"step": 3, "lo')
    assert metrics_writer.read_metrics(path) == rows
    recorder = metrics_writer.MetricsWriter(tmp_path, step=1)
    recorder.write(2, {"loss": float("nan")})
    recorder.close()
    assert metrics_writer.read_metrics(path) == [rows[0], {"step": 2, "loss": None}]


@pytest.mark.long
def test_run_with_nonfinite_steps_stops_and_writes_a_diagnosis(tiny, tmp_path, monkeypatch):
    make, diagnosed = loop.make_diagnosis, []

    def make_diagnosis(*arguments):
        diagnose = make(*arguments)

        def recorded(state, batch):
            diagnosed.append((int(state.step), batch["index"].tolist()))
            return diagnose(state, batch)

        return recorded

    monkeypatch.setattr(loop, "make_diagnosis", make_diagnosis)
    settings = tiny(**{"optim.lr": "1e38", "max_skipped": "3", "schedule.warmup_epochs": "0"})
    message = r"stopped: steps 2 to 4 were not finite; first in step 2 were 'embeddings: .* more;"
    with pytest.raises(UserError, match=message):
        pretrain.train(settings, tmp_path)
    actual = json.loads((tmp_path / "fault.json").read_text())
    assert actual["step"] == 2 and actual["skipped_in_a_row"] == 3
    assert set(actual["norms"]) == set(nonfinite.ORDER)
    assert actual["norms"]["views"]["views"] > 0
    assert "loss: loss" in actual["not_finite"]
    order = Order(1297, 16, 0)
    assert actual["batch"] == {str(n): order(n - 1).tolist() for n in (2, 3, 4)}
    assert diagnosed == [(1, actual["batch"]["2"])]  # diagnoses the first skipped step
    assert checkpoint.steps(tmp_path) == []


@pytest.mark.long
def test_run_that_skips_all_of_its_few_steps_stops(tiny, tmp_path):
    code = "def loss(pairs):\n    return 0 / (pairs.anchor * 0)[:, 0]\n"
    (tmp_path / "nan.py").write_text(code)
    settings = tiny(
        **{
            "total_steps": "2",
            "schedule.warmup_epochs": "0",
            "loss.name": f"{tmp_path}/nan.py:loss",
        }
    )
    with pytest.raises(UserError, match="stopped: steps 1 to 2 were not finite"):
        pretrain.train(settings, tmp_path / "run")


@pytest.mark.fast
@pytest.mark.parametrize(
    ("counts", "causes"),
    [
        ({}, "'the parameters after the step'; norms"),
        ({"loss": 1}, "'loss: x'; norms"),
        ({"gradient": 1, "statistics": 3, "loss": 2}, "'statistics: x' and 2 more; norms"),
    ],
)
def test_first_quantity_that_is_not_finite_is_named(counts, causes):
    measures = {name: {"x": (np.float32(1), counts.get(name, 0))} for name in nonfinite.ORDER}
    batch = lambda number: np.array([number])  # noqa: E731
    document, message = nonfinite.describe(5, 2, batch, measures, Path("fault.json"))
    assert f"steps 5 to 6 were not finite; first in step 5 were {causes}" in message
    assert document["batch"] == {"5": [4], "6": [5]}


def test_second_run_in_a_workdir_is_rejected(tiny, whole, tmp_path):
    with lock(whole), pytest.raises(UserError, match="is in use by another run"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(checkpoint, "steps", lambda workdir: [SAVED])
            pretrain.train(tiny(), whole)


def test_loss_spikes_and_skipped_steps_are_logged_once(caplog):
    monitor = metrics_reporter.LossMonitor()
    monitor.check(40, [2 + 0.1 * np.sin(i) for i in range(40)], skipped=0)
    assert not caplog.messages
    monitor.check(43, [2.0, 9.0, float("nan")], skipped=1)
    monitor.check(44, [2.0], skipped=1)
    assert caplog.messages == [
        "step 42: loss spike: 9, the median of the 41 steps before is 2",
        "step 43: 1 of the steps so far were not finite and skipped",
    ]
    caplog.clear()
    monitor.check(300, [9.0] * 256, skipped=1)  # a lasting rise is logged once
    assert [line[:8] for line in caplog.messages] == ["step 45:"]


def full_for_orbax(*_, **__):
    raise ValueError("Error writing in OCDBT database: [os_error_code='28']")


@pytest.mark.parametrize(
    ("module", "name", "fail", "at"),
    [(EventsWriter, "flush", full_disk, 3), (orbax.CheckpointManager, "save", full_for_orbax, 2)],
)
def test_run_on_a_full_disk_stops_with_an_error_and_resumes_later(
    tiny, whole, tmp_path, monkeypatch, module, name, fail, at
):
    write, calls = getattr(module, name), itertools.count(1)

    def full(*args, **options):
        return (fail if next(calls) == at else write)(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(module, name, full)
        with pytest.raises(UserError, match="cannot write .*: No space left on device; fix this"):
            pretrain.train(tiny(), tmp_path)
    assert checkpoint.steps(tmp_path) == [SAVED]
    pretrain.train(tiny(), tmp_path)
    assert_same_run(tmp_path, whole)
