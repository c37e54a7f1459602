"""Accuracy against batch size: which losses keep theirs in small batches.

Every method is trained at every batch size with nothing else changed. The arm "simclr_tuned" has
the temperature that is best for its batch size on a fifth of the training images, which its search
(seed 0) sets aside; the other arms have the papers' settings. All have the same epochs, as in the
papers: a smaller batch takes more steps, which alone may raise its accuracy.
"""

import math
import re
from typing import Any

from jaxssl.errors import UserError
from jaxssl.grid import (
    KNN,
    LINEAR,
    METHODS,
    Grid,
    baselines,
    findings_of,
    run_grid,
    settings_of,
    values,
)
from jaxssl.study import (
    Claim,
    Findings,
    Setting,
    Table,
    Verdict,
    all_of,
    choose,
    larger,
    of_scale,
    spread,
)

BATCHES = {"tiny": (16, 64, 256), "small": (32, 256), "paper": (64, 128, 256, 512)}
TEMPERATURES = (0.1, 0.2, 0.5, 1.0)
TUNED = "simclr_tuned"
FLAGS = ("methods", "batch_sizes")
CLAIMS = {
    "auc_cl_above_simclr": Claim(
        "AUC-CL is above SimCLR at every batch size (k-NN)", "AUC-CL, Table 9"
    ),
    "auc_cl_flat": Claim(
        "AUC-CL loses less than SimCLR from the largest batch to the smallest (k-NN)",
        "AUC-CL, Tables 5 and 9",
    ),
    "auc_cl_above_dcl": Claim(
        "AUC-CL is above DCL at every batch size (linear)", "AUC-CL, Table 10"
    ),
    "auc_cl_above_sogclr": Claim(
        "AUC-CL is above SogCLR at every batch size (linear)", "AUC-CL, Table 5"
    ),
    "auc_cl_above_moco": Claim(
        "AUC-CL is above MoCo-v3 at the smallest batch (linear)", "AUC-CL, Fig. 2"
    ),
    "auc_cl_above_tuned": Claim(
        "AUC-CL is above SimCLR with a tuned temperature too (k-NN)", "ours, no paper"
    ),
    "decl_above_simclr": Claim("DeCL is above SimCLR at every batch size (k-NN)", "DeCL, Table 1"),
    "mmcl_above_simclr": Claim(
        "MMCL is above SimCLR at every batch size (linear)", "MMCL, Tables 7 and 8"
    ),
    "tcl_above_sup_con": Claim(
        "TCL is above SupCon at every batch size, with labels (linear)", "TCL, Fig. 5.2"
    ),
    "tcl_above_simclr": Claim(
        "TCL with three views is above SimCLR, without labels (linear)", "TCL, Table 5.2"
    ),
}
# (above, below): the metric of the claim that compares them at every batch size
PAIRS = {
    "auc_cl_above_simclr": ("auc_cl", "simclr", KNN),
    "auc_cl_above_dcl": ("auc_cl", "dcl", LINEAR),
    "auc_cl_above_sogclr": ("auc_cl", "sogclr", LINEAR),
    "auc_cl_above_tuned": ("auc_cl", TUNED, KNN),
    "decl_above_simclr": ("decl", "simclr", KNN),
    "mmcl_above_simclr": ("mmcl", "simclr", LINEAR),
    "tcl_above_sup_con": ("tcl_labels", "sup_con", LINEAR),
    "tcl_above_simclr": ("tcl", "simclr", LINEAR),
}
PUBLISHED = Table(
    "Published",
    ("CIFAR-10, 200 epochs", "batch 64", "128", "256", "512"),
    (
        ("SimCLR, ResNet-50, k-NN (DeCL Table 1)", "79.6", "81.8", "83.8", "84.9"),
        ("DeCL, ResNet-50, k-NN (DeCL Table 1)", "83.8", "85.7", "86.4", "86.4"),
        ("SimCLR, ResNet-50, k-NN (AUC-CL Table 9)", "79.6", "82.8", "83.8", "–"),
        ("AUC-CL, ResNet-50, k-NN (AUC-CL Table 9)", "85.4", "86.1", "85.7", "–"),
        ("DCL, ResNet-18, linear (AUC-CL Table 10)", "–", "85.7", "85.3", "84.7"),
        ("AUC-CL, ResNet-18, linear (AUC-CL Table 10)", "–", "88.4", "87.9", "88.3"),
        ("SimCLR, STL-10, 400 epochs, linear (MMCL Table 7)", "74.21", "77.18", "80.15", "–"),
        ("MMCL, STL-10, 400 epochs, linear (MMCL Table 7)", "80.11", "86.8", "88.3", "–"),
    ),
)


def run(setting: Setting) -> Findings:
    """Train the grid and compare."""
    batches = setting.batch_sizes or of_scale(setting, BATCHES)
    methods = choose(setting.methods, (*METHODS, TUNED))
    cells = {
        (name, size): {**METHODS[name], "batch_size": size}
        for name in methods
        if name != TUNED
        for size in batches
    }
    found = run_grid(setting, cells)
    temperatures = {}
    if TUNED in methods:
        temperatures = {size: _tuned(setting, size) for size in batches}
        cells = {(TUNED, size): _simclr(size, tau) for size, tau in temperatures.items()}
        found |= run_grid(setting, cells)
    base = baselines(next(iter(found.values()))[0])
    axis = methods, batches, "batch size"
    tables = [PUBLISHED]
    if temperatures:
        rows = [(f"{size}", f"{tau:g}") for size, tau in temperatures.items()]
        tuned = Table("Tuned temperatures of SimCLR", ("batch size", "temperature"), rows)
        tables.insert(0, tuned)
    verdicts = _verdicts(found, methods, batches)
    data = {"base": base, "log": "x", "temperatures": temperatures}
    return findings_of(found, axis, [KNN, LINEAR], verdicts, *tables, **data)


def _simclr(size: int, temperature: float) -> dict[str, Any]:
    return {**METHODS["simclr"], "batch_size": size, "loss.temperature": temperature}


def _tuned(setting: Setting, size: int) -> float:
    """The temperature with the best k-NN on images of the training split that are set aside."""
    split = settings_of(setting, {}).data.train_split
    found = re.fullmatch(r"(\w+)(?:\[:(\d+)%\])?", split)
    if not found or int(found[2] or 100) < 5:
        raise UserError(
            f"{TUNED} sets a fifth of data.train_split aside, and {split!r} is no split such as "
            "'train' or 'train[:20%]'; leave it out: --methods simclr,auc_cl,..."
        )
    name, whole = found[1], int(found[2] or 100)
    cut = round(0.8 * whole)
    kept = {
        "data.train_split": f"{name}[:{cut}%]",
        "data.test_split": f"{name}[{cut}%:{whole}%]",
    }
    cells = {(TUNED, "search", size, tau): {**_simclr(size, tau), **kept} for tau in TEMPERATURES}
    found = run_grid(setting, cells, seeds=1)
    scores = {tau: run.figures[KNN] for (*_, tau), [run] in found.items()}
    known = {tau: score for tau, score in scores.items() if math.isfinite(score)}
    if not known:
        raise UserError(f"no temperature of {TUNED} at batch size {size} gave a finite run")
    return max(known, key=known.get)


def _verdicts(found: Grid, methods: tuple, batches: tuple) -> dict[str, Verdict]:
    verdicts = {}
    for claim, (above, below, metric) in PAIRS.items():
        if {above, below} <= set(methods):
            verdicts[claim] = all_of(
                {
                    f"B={size}": larger(
                        values(found[above, size], metric), values(found[below, size], metric)
                    )
                    for size in batches
                }
            )
    if {"auc_cl", "moco_v3"} <= set(methods):
        pair = (values(found[name, min(batches)], LINEAR) for name in ("auc_cl", "moco_v3"))
        verdicts["auc_cl_above_moco"] = larger(*pair)
    if {"auc_cl", "simclr"} <= set(methods) and len(batches) > 1:
        verdicts["auc_cl_flat"] = _flat(found, batches)
    return verdicts


def _flat(found: Grid, batches: tuple) -> Verdict:
    """Whether AUC-CL gains more, or loses less, than SimCLR from the largest batch to the least."""
    change = {}
    for name in ("auc_cl", "simclr"):
        ends = (values(found[name, size], KNN) for size in (min(batches), max(batches)))
        change[name] = [a - b for a, b in zip(*ends, strict=True)]
    verdict = larger(change["auc_cl"], change["simclr"])
    words = ", ".join(f"{name} changes by {spread(points)}" for name, points in change.items())
    figure = f"{words} from B={max(batches)} to B={min(batches)}: {verdict.figure}"
    return Verdict(figure, verdict.holds)
