"""Accuracy against batch size: which losses keep their accuracy in small batches.

Every method is trained at every batch size with all other settings equal. All runs have the same
number of epochs, as in the papers: a smaller batch takes more steps, which alone may raise its
accuracy. With --equal_steps all runs have the same number of steps. MMCL, losses with labels, and
TCL without labels have their own studies: batch_size_mmcl, batch_size_tcl and views.
"""

from collections.abc import Sequence

import numpy as np

from jaxssl.studies import grid
from jaxssl.studies.grid import KNN, LABELLED, LINEAR, METHODS, ON_REQUEST, Results
from jaxssl.studies.study import Claim, Findings, Setting, Table, Verdict, select_methods
from jaxssl.studies.verdicts import judge, judge_all, spread

BATCHES = {"tiny": (16, 64, 256), "small": (16, 64, 256), "paper": (64, 128, 256, 512)}
FLAGS = ("methods", "batch_sizes", "equal_steps")
STABLE = "Our method retains stability in performance with varying batch sizes with relatively "
CLAIMS = {
    "auc_cl_above_simclr": Claim(
        "AUC-CL is above SimCLR at every batch size (k-NN)",
        "AUC-CL, Table 9",
        "We notice that our method significantly outperforms SimCLR for smaller batch sizes by "
        "margins of +7% for both datasets, and retains a consistent performance across the batch "
        "sizes.",
        "CIFAR-10, ResNet-50, 200 epochs, batch 64 / 128 / 256: 85.4 / 86.1 / 85.7, SimCLR 79.6 / "
        "82.8 / 83.8.",
        1.9,
    ),
    "auc_cl_above_tuned": Claim(
        "AUC-CL is above SimCLR with a tuned temperature at every batch size (k-NN)",
        "ours, no paper",
    ),
    "auc_cl_stable": Claim(
        "AUC-CL's accuracy changes less over the batch sizes than SimCLR's (k-NN, largest less "
        "smallest)",
        "AUC-CL, Section 4 and Table 9",
        "Moreover, we witness a greater robustness to batch size wherein the performance shifts "
        "are negligible with varying batch sizes.",
        "CIFAR-10, 200 epochs, batch 64 to 256: 0.7 points, SimCLR 4.2.",
        3.5,
    ),
    "auc_cl_stable_moco": Claim(
        "AUC-CL's accuracy changes less over the batch sizes than MoCo-v3's (linear, largest less "
        "smallest)",
        "AUC-CL, Fig. 2",
        f"{STABLE}smaller variance.",
        "The figure has no numbers.",
    ),
    "auc_cl_above_dcl": Claim(
        "AUC-CL is above DCL at every batch size (linear)",
        "AUC-CL, Table 10",
        "We again witness a substantial margin of improvement over DCL across the comparisons.",
        "CIFAR-10, ResNet-18, 200 epochs, batch 128 / 256 / 512: 88.4 / 87.9 / 88.3, DCL 85.7 / "
        "85.3 / 84.7.",
        2.6,
    ),
    "auc_cl_above_sogclr": Claim(
        "AUC-CL is above SogCLR at every batch size (linear)",
        "AUC-CL, Table 5",
        "We again notice a significant margin of improvement over the listed methods and across "
        "the batch sizes and epochs.",
        "ImageNet, ResNet-50, 100 epochs, batch 128 / 256 / 512: 66.1 / 66.2 / 66.2, SogCLR 64.9 "
        "/ 65.2 / 65.0.",
        1.0,
    ),
    "decl_above_simclr": Claim(
        "DeCL is above SimCLR at every batch size (k-NN)",
        "DeCL, Table 1",
        "It is observed that our method significantly improves over SimCLR in all cases.",
        "CIFAR-10, ResNet-50, 200 epochs, batch 64 / 128 / 256 / 512: 83.8 / 85.7 / 86.4 / 86.4, "
        "SimCLR 79.6 / 81.8 / 83.8 / 84.9.",
        1.5,
    ),
    "decl_above_tuned": Claim(
        "DeCL is above SimCLR with a tuned temperature at every batch size (k-NN)",
        "ours, no paper",
    ),
}
# Claims that the first arm is above the second at every batch size.
PAIRS = {
    "auc_cl_above_simclr": ("auc_cl", "simclr", KNN),
    "auc_cl_above_tuned": ("auc_cl", "simclr_tuned", KNN),
    "auc_cl_above_dcl": ("auc_cl", "dcl", LINEAR),
    "auc_cl_above_sogclr": ("auc_cl", "sogclr", LINEAR),
    "decl_above_simclr": ("decl", "simclr", KNN),
    "decl_above_tuned": ("decl", "simclr_tuned", KNN),
}
# Claims that the accuracy of the first arm changes less than that of the second.
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
    """Train the grid and compare."""
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
            verdicts[key] = judge_all(CLAIMS[key], pairs, top=100.0)
    for key, (steady, changing, metric) in CHANGES.items():
        if {steady, changing} <= set(methods) and len(sizes) > 1:
            changes = {arm: _change(results, arm, sizes, metric) for arm in (changing, steady)}
            text = ", ".join(f"{arm} changes by {spread(c)}" for arm, c in changes.items())
            verdicts[key] = judge(CLAIMS[key], *changes.values()).after(text)
    return verdicts


def _change(results: Results, arm: str, sizes: Sequence[int], metric: str) -> list[float]:
    """Return the largest minus the smallest accuracy over the batch sizes, for each seed."""
    seeds = np.array([grid.seed_values(results[arm, size], metric) for size in sizes])
    return np.ptp(seeds, axis=0).tolist()
