"""TCL without labels against SimCLR: how much its third view gives, and how much its loss.

Both losses have one temperature, 0.2, which is solo-learn's for SimCLR; the thesis states none.
"""

from jaxssl.studies.grid import KNN, LINEAR, METHODS, baselines, grid_findings, run_grid, values
from jaxssl.studies.study import Claim, Findings, Setting, Table, judge, judge_all

PAPER = "tcl_views"
VIEWS = (2, 3)
ARMS = {
    "simclr": {**METHODS["simclr"], "loss.temperature": 0.2},
    "tcl": {**METHODS["tcl"], "loss.temperature": 0.2},
}
CLAIMS = {
    "tcl_above_simclr": Claim(
        "TCL with three views is above SimCLR with two (linear)",
        "TCL, Table 5.2",
        "TCL performs consistently better than SimCLR",
        "CIFAR-10, ResNet-18, 1000 epochs: 91.8 against 90.7 (CIFAR-100: 67.2 against 65.5; "
        "ImageNet-100: 78.4 against 77.5).",
        1.1,
    ),
    "equal_views": Claim("TCL is above SimCLR with as many views (linear)", "ours, no paper"),
}
PUBLISHED = Table(
    "Published: CIFAR-10, ResNet-18, 1000 epochs, linear (TCL Table 5.2)",
    ("", "two views", "three views"),
    (("SimCLR", "90.7", "–"), ("TCL", "–", "91.8")),
)


def run(setting: Setting) -> Findings:
    """Train both losses with each number of views."""
    cells = {(arm, n): {**cell, "views": n} for arm, cell in ARMS.items() for n in VIEWS}
    found = run_grid(setting, cells)
    linear = {cell: values(outcomes, LINEAR) for cell, outcomes in found.items()}
    verdicts = {
        "tcl_above_simclr": judge(
            CLAIMS["tcl_above_simclr"], linear["tcl", 3], linear["simclr", 2], top=100.0
        ),
        "equal_views": judge_all(
            CLAIMS["equal_views"],
            {f"{n} views": (linear["tcl", n], linear["simclr", n]) for n in VIEWS},
        ),
    }
    base = baselines(found["simclr", 2][0])
    axis = tuple(ARMS), VIEWS, "views"
    return grid_findings(found, axis, [LINEAR, KNN], verdicts, PUBLISHED, base=base)
