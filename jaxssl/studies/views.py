"""TCL without labels against SimCLR, separating its third view from its loss.

Both losses have the temperature 0.2, which solo-learn uses for SimCLR. The thesis states none.
"""

from jaxssl.studies import grid
from jaxssl.studies.compared_methods import METHODS
from jaxssl.studies.grid import KNN, LINEAR, Comparison
from jaxssl.studies.study import Findings, Setting, read_claims

PAPER = "tcl_views"
VIEWS = (2, 3)
ARMS = {
    "simclr": {**METHODS["simclr"], "loss.temperature": 0.2},
    "tcl": {**METHODS["tcl"], "loss.temperature": 0.2},
}
CLAIMS = read_claims("views")


def run(setting: Setting) -> Findings:
    """Train TCL and SimCLR with each number of views."""
    results = grid.run_grid(setting, grid.cross(ARMS, {n: {"views": n} for n in VIEWS}))
    claims = {
        "tcl_above_simclr": Comparison(LINEAR, {"": (("tcl", 3), ("simclr", 2))}),
        "equal_views": grid.above("tcl", "simclr", VIEWS, LINEAR, "{} views"),
    }
    return grid.grid_findings(results, "views", [LINEAR, KNN], CLAIMS, claims)
