"""MMCL against SimCLR at several batch sizes."""

from jaxssl.studies.batch_size import BATCHES
from jaxssl.studies.grid import (
    KNN,
    LINEAR,
    METHODS,
    baselines,
    batch_size_values,
    grid_findings,
    run_grid,
    values,
)
from jaxssl.studies.kernels import mmcl
from jaxssl.studies.study import Claim, Findings, Setting, Table, judge_all, scale_value

PAPER = "mmcl"
FLAGS = ("batch_sizes", "equal_steps")
CLAIMS = {
    "mmcl_above_simclr": Claim(
        "MMCL is above SimCLR at every batch size (linear)",
        "MMCL, Table 7",
        "From Table 7, we see that our model consistently outperforms the SimCLR baseline, while "
        "performing much better than other approaches.",
        "STL-10, 400 epochs, batch 64 / 128 / 256: 80.11 / 86.8 / 88.3, SimCLR 74.21 / 77.18 / "
        "80.15.",
        5.9,
    ),
}
PUBLISHED = Table(
    "Published: STL-10, 400 epochs, linear (MMCL Table 7)",
    ("", "batch 64", "128", "256"),
    (("SimCLR", "74.21", "77.18", "80.15"), ("MMCL", "80.11", "86.8", "88.3")),
)


def run(setting: Setting) -> Findings:
    """Train both losses at each batch size."""
    sizes = {**BATCHES, "paper": (64, 128, 256)}
    sizes = setting.batch_sizes or scale_value(setting, sizes)
    arms = {"simclr": METHODS["simclr"], "mmcl": mmcl(setting)}
    cells = {
        (arm, b): {**cell, **batch_size_values(setting, b)}
        for arm, cell in arms.items()
        for b in sizes
    }
    found = run_grid(setting, cells)
    base = baselines(found["simclr", sizes[0]][0])
    pairs = {
        f"B={b}": tuple(values(found[arm, b], LINEAR) for arm in ("mmcl", "simclr")) for b in sizes
    }
    claim = "mmcl_above_simclr"
    verdicts = {claim: judge_all(CLAIMS[claim], pairs, top=100.0)}
    axis = tuple(arms), sizes, "batch size"
    return grid_findings(found, axis, [LINEAR, KNN], verdicts, PUBLISHED, base=base, log="x")
