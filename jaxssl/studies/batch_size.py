"""Accuracy by batch size, to find losses that keep their accuracy in small batches.

Every method is trained at every batch size with all other settings equal. All runs have the same
number of epochs, as in the papers: a smaller batch takes more steps, which alone may raise its
accuracy. With --equal_steps all runs have the same number of steps. MMCL, losses with labels, and
TCL without labels have their own studies: batch_size_mmcl, batch_size_tcl and views.
"""

from collections.abc import Sequence

import numpy as np

from jaxssl.studies import grid
from jaxssl.studies.compared_methods import LABELLED, METHODS, ON_REQUEST
from jaxssl.studies.grid import KNN, LINEAR, Results
from jaxssl.studies.study import Findings, Setting, Table, Verdict, read_claims, select_methods
from jaxssl.studies.verdicts import judge, judge_all, spread

BATCHES = {"tiny": (16, 64, 256), "small": (16, 64, 256), "paper": (64, 128, 256, 512)}
FLAGS = ("methods", "batch_sizes", "equal_steps", "finished", "earlier")
CLAIMS = read_claims("batch_size")
# Each claim says that the first method is more accurate than the second at every batch size.
PAIRS = {
    "auc_cl_above_simclr": ("auc_cl", "simclr", KNN),
    "auc_cl_above_tuned": ("auc_cl", "simclr_tuned", KNN),
    "auc_cl_above_dcl": ("auc_cl", "dcl", LINEAR),
    "auc_cl_above_sogclr": ("auc_cl", "sogclr", LINEAR),
    "decl_above_simclr": ("decl", "simclr", KNN),
    "decl_above_tuned": ("decl", "simclr_tuned", KNN),
}
# Each claim says that the first method's accuracy depends less on the batch size than the second's.
CHANGES = {
    "auc_cl_stable": ("auc_cl", "simclr", KNN),
    "auc_cl_stable_moco": ("auc_cl", "moco_v3", LINEAR),
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
    """Train every method at every batch size and judge the claims."""
    default = [name for name in METHODS if name not in (*LABELLED, *ON_REQUEST)]
    methods = select_methods(setting.methods, default, (*ON_REQUEST, *LABELLED))
    cells = grid.batch_size_cells(setting, BATCHES)
    results = grid.run_grid(setting, grid.cross({name: METHODS[name] for name in methods}, cells))
    sizes = tuple(cells)
    return grid.grid_findings(
        results,
        (methods, sizes, "batch size"),
        [KNN, LINEAR],
        _verdicts(results, methods, sizes),
        PUBLISHED,
        baseline=(methods[0], sizes[0]),
        log="x",
    )


def _verdicts(results: Results, methods: Sequence[str], sizes: Sequence[int]) -> dict[str, Verdict]:
    verdicts = {}
    for key, (above, below, metric) in PAIRS.items():
        if {above, below} <= set(methods):
            pairs = grid.pair_values(results, above, below, sizes, metric, "B={}")
            if pairs:
                verdicts[key] = judge_all(CLAIMS[key], pairs, top=100.0)
    for key, (steady, changing, metric) in CHANGES.items():
        if {steady, changing} <= set(methods) and len(sizes) > 1:
            by_seed = {arm: _change(results, arm, sizes, metric) for arm in (changing, steady)}
            seeds = sorted(by_seed[changing].keys() & by_seed[steady].keys())
            if not seeds:
                continue
            changes = {arm: [values[seed] for seed in seeds] for arm, values in by_seed.items()}
            text = ", ".join(f"{arm} changes by {spread(c)}" for arm, c in changes.items())
            verdicts[key] = judge(CLAIMS[key], *changes.values()).after(text)
    return verdicts


def _change(results: Results, arm: str, sizes: Sequence[int], metric: str) -> dict[int, float]:
    """Return the largest minus the smallest accuracy over the batch sizes, for each seed.

    Seeds without a finished run at every batch size are left out.
    """
    by_seed: dict[int, list[float]] = {}
    for size in sizes:
        for run in results[arm, size]:
            by_seed.setdefault(run.seed, []).append(run.metrics[metric])
    return {s: float(np.ptp(each)) for s, each in by_seed.items() if len(each) == len(sizes)}
