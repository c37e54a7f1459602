"""MMCL's slack penalty C, whose small values bind while values above 20 never do.

With beta = 0.1 no dual variable of the rbf kernel exceeds about 20, so C = 100 never binds, and
stands for the hard margin, C = infinity.
"""

from jaxssl.studies import grid
from jaxssl.studies.grid import KNN, Comparison
from jaxssl.studies.kernels import mmcl
from jaxssl.studies.run_results import last_values
from jaxssl.studies.study import Findings, Setting, Table, read_claims
from jaxssl.studies.verdicts import judge, spread

PAPER = "mmcl"
MARGIN = 0.5  # a gain above this many percentage points of accuracy counts as a gain
PENALTIES = (0.01, 0.1, 1.0, 10.0, 100.0)
SHARES = {"support vectors": "support", "at C": "at_bound"}  # key in metrics.jsonl by row
CLAIMS = read_claims("slack")


def run(setting: Setting) -> Findings:
    """Train MMCL with each slack penalty C of `PENALTIES`, and judge the claims about C."""
    cells = grid.cross({"mmcl": mmcl(setting)}, {c: {"loss.C": c} for c in PENALTIES})
    results = grid.run_grid(setting, cells)
    at_10, at_100 = (grid.seed_values(results["mmcl", c], KNN) for c in (10.0, 100.0))
    no_gain = judge(CLAIMS["large_c_no_help"], [value + MARGIN for value in at_10], at_100)
    verdicts = {
        "small_c_is_poor": Comparison(KNN, {"": (("mmcl", 100.0), ("mmcl", 0.01))}),
        "large_c_no_help": no_gain.after("C = 10 plus half a point, minus C = 100"),
    }
    rows = []
    for name, key in SHARES.items():
        last = (last_values(results["mmcl", c], key) for c in PENALTIES)
        rows.append((name, *(spread([100 * share for share in shares]) for shares in last)))
    title = "Share of the negatives at the end of training, %"
    shares = Table(title, ("", *(f"C {c:g}" for c in PENALTIES)), rows)
    return grid.grid_findings(results, "C", [KNN], CLAIMS, verdicts, shares, log="x")
