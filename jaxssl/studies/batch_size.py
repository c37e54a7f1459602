"""Accuracy against batch size: which losses keep theirs in small batches.

Every method is trained at every batch size with nothing else changed. All have the same epochs, as
in the papers: a smaller batch takes more steps, which alone may raise its accuracy.
"""

from jaxssl.grid import (
    KNN,
    LINEAR,
    METHODS,
    ON_REQUEST,
    Grid,
    baselines,
    findings_of,
    run_grid,
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
    "auc_cl_above_tuned": ("auc_cl", "simclr_tuned", KNN),
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
    usual = [name for name in METHODS if name not in ON_REQUEST]
    methods = choose(setting.methods, usual, ON_REQUEST)
    cells = {
        (name, size): {**METHODS[name], "batch_size": size} for name in methods for size in batches
    }
    found = run_grid(setting, cells)
    base = baselines(next(iter(found.values()))[0])
    axis = methods, batches, "batch size"
    verdicts = _verdicts(found, methods, batches)
    return findings_of(found, axis, [KNN, LINEAR], verdicts, PUBLISHED, base=base, log="x")


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
