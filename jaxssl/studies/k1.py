"""TCL's k1, accuracy with labels by the strength of attraction to positives."""

from jaxssl.studies import grid
from jaxssl.studies.compared_methods import METHODS
from jaxssl.studies.grid import KNN, LINEAR, Comparison
from jaxssl.studies.study import Findings, Setting, Verdict, read_claims
from jaxssl.studies.verdicts import judge_similar

PAPER = "tcl"
K1 = (1.0, 100.0, 1000.0, 5000.0, 50000.0)
PEAK = 5000.0  # best value of k1 in the thesis
CLOSE = 1.0  # accuracy difference in percentage points that counts as close
SUP_CON, BEST = ("sup_con", 0.0), ("tcl", PEAK)
CLAIMS = read_claims("k1")


def run(setting: Setting) -> Findings:
    """Train TCL with each value of its constant k1, and SupCon for comparison."""
    tcl = grid.cross({"tcl": METHODS["tcl_labels"]}, {k1: {"loss.k1": k1} for k1 in K1})
    results = grid.run_grid(setting, {SUP_CON: METHODS["sup_con"], **tcl})
    below = {f"k1 = {k1:g}": (("tcl", k1), SUP_CON) for k1 in K1 if k1 < PEAK}
    claims: dict[str, Verdict | Comparison] = {
        "rises": Comparison(LINEAR, {"": (BEST, ("tcl", K1[0]))}),
        "drops": Comparison(LINEAR, {"": (BEST, ("tcl", K1[-1]))}),
        "above_sup_con": Comparison(LINEAR, {"": (BEST, SUP_CON)}),
        "any_below_5000": Comparison(LINEAR, below),
    }
    like = [grid.seed_values(results[cell], LINEAR) for cell in (("tcl", K1[0]), SUP_CON)]
    claims["small_like_sup_con"] = judge_similar({"": (like[0], like[1])}, CLOSE)
    findings = grid.grid_findings(results, "k1", [LINEAR, KNN], CLAIMS, claims, pictured=())
    of_tcl = {cell: runs for cell, runs in results.items() if cell != SUP_CON}
    base = findings.data.get("baselines", {})
    picture = grid.accuracy_picture(of_tcl, "k1", LINEAR, base, log="x")
    return findings._replace(pictures=[picture])
