"""TCL without labels against SimCLR, separating its third view from its loss.

Both losses have the temperature 0.2, which solo-learn uses for SimCLR. The thesis states none.
"""

from jaxssl.studies import grid
from jaxssl.studies.compared_methods import METHODS
from jaxssl.studies.grid import KNN, LINEAR
from jaxssl.studies.study import Findings, Setting, Table, read_claims
from jaxssl.studies.verdicts import judge, judge_all

PAPER = "tcl_views"
VIEWS = (2, 3)
ARMS = {
    "simclr": {**METHODS["simclr"], "loss.temperature": 0.2},
    "tcl": {**METHODS["tcl"], "loss.temperature": 0.2},
}
CLAIMS = read_claims("views")
PUBLISHED = Table(
    "Published: CIFAR-10, ResNet-18, 1000 epochs, linear (TCL Table 5.2)",
    ("", "two views", "three views"),
    (("SimCLR", "90.7", "–"), ("TCL", "–", "91.8")),
)


def run(setting: Setting) -> Findings:
    """Train TCL and SimCLR with each number of views."""
    results = grid.run_grid(setting, grid.cross(ARMS, {n: {"views": n} for n in VIEWS}))
    linear = {cell: grid.seed_values(runs, LINEAR) for cell, runs in results.items()}
    equal = grid.pair_values(results, "tcl", "simclr", VIEWS, LINEAR, "{} views")
    verdicts = {
        "tcl_above_simclr": judge(
            CLAIMS["tcl_above_simclr"], linear["tcl", 3], linear["simclr", 2], top=100.0
        ),
        "equal_views": judge_all(CLAIMS["equal_views"], equal),
    }
    axis = tuple(ARMS), VIEWS, "views"
    return grid.grid_findings(
        results, axis, [LINEAR, KNN], verdicts, PUBLISHED, baseline=("simclr", 2)
    )
