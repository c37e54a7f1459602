"""Small workdirs for tests, with everything that a report shows."""

import copy
import json
import os
import signal
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from shared_folders import shared_run
from tiny import SAVED, STEPS

from jaxssl import distributed
from jaxssl.evaluation import pretrain
from jaxssl.training import loop
from jaxssl.training.build import build, make_init
from jaxssl.training.output import metrics_writer
from jaxssl.training.workdir import checkpoint

CONFIG = {
    "seed": 0, "batch_size": 64, "epochs": 5, "total_steps": 0,
    "data": {"name": "digits", "path": "", "classes": "", "train_split": "train", "dir": "a"},
    "loss": {"name": "mmcl", "gamma": 0.5}, "net": {"name": "convnet"},
    "method": {"name": "siamese"}, "eval": {"knn": "cifar_simclr"},
}  # fmt: skip
ROW = {
    "protocol": "knn", "metric": "knn_top1", "value": 90.0, "std": None, "unit": "%",
    "details": {"preset": "cifar_simclr", "k": 200}, "source": "a", "loss": "mmcl (gamma=0.5)",
    "checkpoint": "last", "step": 100, "features": "pretrained", "layer": "backbone",
    "dataset": "digits", "data": "x", "content": "3b9ac1", "bank": "train", "split": "test",
    "seed": 0,
}  # fmt: skip
METRICS = [
    {"step": 20 * i, "epoch": float(i), "loss": 1 / i, "feature_std": 0.5 + i / 10,
     "effective_rank": 9.0, "images_per_second": 1000.0, "knn_top1": 80.0 + i}
    for i in (1, 2, 3)
]  # fmt: skip
TIMES = {"steps": 60.0, "input wait": 3.0, "compilation": 2.0, "checkpoints": 1.0}
TIMES |= {"evaluation": 500.0, "start": 9.0, "restarts": 9.0}
LOG = """2026-01-02 03:04:05,000 INFO begins: somewhere
2026-01-02 03:05:10,500 INFO finished 100 steps
"""


def changed(tree: Any, **changes: object) -> Any:
    """Return a copy with other values at dotted keys, written with two underscores per dot."""
    out = copy.deepcopy(tree)
    for name, value in changes.items():
        *groups, leaf = name.split("__")
        node = out
        for group in groups:
            node = node[group]
        node[leaf] = value
    return out


def write(workdir: Path, config=CONFIG, rows=(ROW,), metrics=METRICS, times=TIMES, gallery=None):
    """Write the files of a workdir."""
    workdir.mkdir(parents=True, exist_ok=True)
    (workdir / "config.json").write_text(json.dumps(config))
    (workdir / "results.json").write_text(json.dumps({"results": list(rows)}))
    (workdir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics))
    (workdir / "train.log").write_text(LOG)
    document = {"seconds": times, "time": 1.0, "ended": True}
    (workdir / "goodput.json").write_text(json.dumps(document))
    if gallery is not None:
        np.savez(workdir / "gallery.npz", **gallery)
    return workdir


def gallery_of(number: int, name: str = "class {}", side: int = 8) -> dict[str, np.ndarray]:
    """Return the arrays of a gallery.npz with so many classes and all sections."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (12, side, side, 3), np.uint8)
    labels = np.arange(12) % number
    classes = np.arange(number)
    wrong = np.stack([classes, (classes + 1) % number, 1 + classes % 3], axis=1)
    place = np.array([[1, -1, 2, 3, 4], [5, 6, 7, -1, 8]])
    alpha = np.array([[0.5, np.nan, 0.25, 0.125, 0], [0.5, 0.5, 0.25, np.nan, 0]])
    return {
        "step": np.array(100), "class_names": np.array([name.format(i) for i in classes]),
        "pairs": images[:6].reshape(3, 2, side, side, 3), "pairs_original": images[:3],
        "query": images[:2], "neighbour": images[2:12].reshape(2, 5, side, side, 3),
        "query_label": labels[:2], "neighbour_label": labels[2:12].reshape(2, 5),
        "map": rng.normal(size=(60, 2)), "map_label": np.arange(60) % number,
        "nearest_classes": np.concatenate([np.stack([classes, classes, classes + 7], 1), wrong]),
        "block_size": np.array(12), "block": images, "block_label": labels,
        "hard_query": np.array([0, 1]), "hard_place": np.array([[10, 2, 3], [11, 0, 4]]),
        "hard_similarity": np.array([[0.75, 0.5, 0.25], [0.875, -0.5, -1]]),
        "hard_share": np.array([0.625, 0.125]),
        "svm_query": np.array([0, 1]), "svm_place": place, "svm_alpha": alpha,
        "svm_C": np.array(0.5), "svm_share": np.array([0.375, 0.25, 0.5, 0.75, 0.125]),
        "svm_settings": np.array("C 0.5, gamma 0.5, kernel rbf"),
    }  # fmt: skip


class Acting:
    """Batches that call ``action`` when the batch of this number is taken, counted from 1."""

    def __init__(self, batches, number: int, action):
        self._batches, self._left, self._action = batches, number, action

    def __getattr__(self, name):
        return getattr(self._batches, name)

    def _count(self, n: int) -> None:
        if 0 < self._left <= n:
            self._action()
        self._left -= n

    def next(self):
        self._count(1)
        return self._batches.next()

    @property
    def take(self):
        def take(n: int, k: int):
            self._count(n)
            return self._batches.take(n, k)

        return take if self._batches.take else None


def acting(make, number: int, action):
    """Wrap `make_batches` so that taking the batch of this number calls ``action``."""
    return lambda *args, **options: Acting(make(*args, **options), number, action)


def at_batch(monkeypatch, number: int, action) -> None:
    """Call ``action`` when a run takes its batch of this number, counted from the run's start."""
    monkeypatch.setattr(loop, "make_batches", acting(loop.make_batches, number, action))
    monkeypatch.setattr(loop, "CALL_SECONDS", 0)  # one step in each call of the compiled program


class Crash(Exception):
    """The error by which tests end a run."""


def crash() -> None:
    """Fail as no code of the package does."""
    raise Crash


def stop(settings, workdir: Path, number: int, signum: int = signal.SIGINT) -> None:
    """Train until the batch of this number, when this process gets a signal, or fails for 0."""
    end = (lambda: os.kill(os.getpid(), signum)) if signum else crash
    with pytest.MonkeyPatch.context() as patch, pytest.raises((SystemExit, Crash)) as error:
        at_batch(patch, number, end)
        pretrain.train(settings, workdir)
    assert error.type is Crash if not signum else error.value.code == 128 + signum


def assert_resumes(
    settings, whole: Path, workdir: Path, *, at: int = SAVED, steps: int = STEPS
) -> None:
    """Interrupt a run at a batch, and check that it resumes and ends like an uninterrupted one."""
    stop(settings, workdir, at)
    assert checkpoint.steps(workdir)[-1] == at
    pretrain.train(settings, workdir)
    assert_same_arrays(workdir, whole, steps)


def assert_same_run(workdir: Path, other: Path, steps: int = STEPS) -> None:
    """Check that the last checkpoints and the metrics of two runs are equal to the bit."""
    assert_same_arrays(workdir, other, steps)
    assert metric_lines(workdir) == metric_lines(other)


def initial_state(settings, devices=None):
    """Return the state before the first step of a run on small grey images, on the devices."""
    example = {"input": np.zeros((2, 8, 8, 1), np.uint8), "index": np.arange(2, dtype=np.int32)}
    mesh = distributed.make_mesh(devices)
    return make_init(build(settings, 1297), example, 1297, mesh)(settings.seed)


def trained(factory, name: str, settings) -> Path:
    """Return this worker's copy of a run that is trained once in the session."""
    return shared_run(factory, name, lambda workdir: pretrain.train(settings, workdir))


def assert_same_arrays(workdir: Path, other: Path, steps: int = STEPS) -> None:
    """Check that the last checkpoints of two runs of so many steps are equal to the bit."""
    one, two = (checkpoint.restore_arrays(path) for path in (workdir, other))
    assert one.step == two.step == steps
    jax.tree.map(np.testing.assert_array_equal, one.state, two.state)


def metric_lines(workdir: Path) -> list[dict]:
    """Read metrics.jsonl without the field that depends on time."""
    rows = metrics_writer.read_metrics(workdir / "metrics.jsonl")
    return [{k: v for k, v in row.items() if k != "images_per_second"} for row in rows]
