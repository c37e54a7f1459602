"""Studies in tests: their settings, and made-up results in place of training."""

import importlib
import math
import zlib
from pathlib import Path

import numpy as np

from jaxssl import components
from jaxssl.studies.grid import KNN, LINEAR, SVM
from jaxssl.studies.run_results import RunResult
from jaxssl.studies.study import Claim, Setting, scale_config

ROOT = Path(__file__).parents[1]
NAMES = components.names("study")
EPOCHS = (4.0, 8.0, 12.0, 16.0, 20.0)


def study(name):
    return importlib.import_module(f"jaxssl.studies.{name}")


def setting(tmp_path, scale="tiny", name="", **changes):
    paper = getattr(study(name), "PAPER", "") if name else ""
    return Setting(scale, scale_config(scale, paper), "", 3, tmp_path, **changes)


def made_up(cell, seed, diverged=()):
    """Return a result whose values depend on cell and seed alone."""
    rng = np.random.default_rng(zlib.crc32(str((sorted(map(str, cell.items())), seed)).encode()))
    keys = ("b", "feature_std", "support", "at_bound", "positive_gradient", "negative_gradient")
    history = [
        {"step": i, "epoch": epoch, KNN: 60 + i + rng.normal(), **dict.fromkeys(keys, rng.random())}
        for i, epoch in enumerate(EPOCHS)
    ]
    metrics = {KNN: 80 + rng.normal(), LINEAR: 90 + rng.normal(), SVM: 85 + rng.normal()}
    if seed in diverged:
        metrics, history = dict.fromkeys(metrics, math.nan), history[:1]
        history[0] = {key: math.nan for key in history[0] if key != KNN} | {"step": 1}
    return RunResult(seed, Path("nowhere"), metrics, history, 1.0, "abc")


def with_accuracy(accuracy, seed=0):
    """Return a result whose accuracy is the same up to a hundredth for all seeds."""
    noise = np.random.default_rng([round(10 * accuracy), seed]).random()
    metrics = dict.fromkeys((KNN, LINEAR, SVM), accuracy + 0.01 * noise)
    others = {"support": 0.3, "at_bound": 0.1, "feature_std": 0.1, "b": 0.97}
    row = {"step": 1, "epoch": 1.0, KNN: metrics[KNN], **others}
    return RunResult(seed, Path("nowhere"), metrics, [row], 1.0, "abc")


def claim(difference=None):
    return Claim("a is above b", "AUC-CL, Table 0", difference=difference)
