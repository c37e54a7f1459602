"""TCL's k1, accuracy with labels by the strength of attraction to positives."""

from jaxssl.studies import grid
from jaxssl.studies.compared_methods import METHODS
from jaxssl.studies.grid import KNN, LINEAR, accuracy_picture
from jaxssl.studies.study import Findings, Setting, Table, read_claims
from jaxssl.studies.verdicts import judge, judge_all

PAPER = "tcl"
K1 = (1.0, 100.0, 1000.0, 5000.0, 50000.0)
PEAK = 5000.0  # best value of k1 in the thesis
CLAIMS = read_claims("k1")
PUBLISHED = Table(
    "Published: CIFAR-100, ResNet-50 (TCL, Section 5.4 and Table 5.1; Fig. 5.6 has no numbers)",
    ("", "SupCon", "k1 = 4000", "k1 = 50000"),
    (("top-1", "79.1", "79.8", "71.8"),),
)


def run(setting: Setting) -> Findings:
    """Train TCL with each k1, and SupCon."""
    cells = grid.cross({"tcl": METHODS["tcl_labels"]}, {k1: {"loss.k1": k1} for k1 in K1})
    cells["sup_con", 0.0] = METHODS["sup_con"]
    results = grid.run_grid(setting, cells)
    linear = {k1: grid.seed_values(results["tcl", k1], LINEAR) for k1 in K1}
    sup_con = grid.seed_values(results["sup_con", 0.0], LINEAR)
    ends = {f"over k1 = {end:g}": (linear[PEAK], linear[end]) for end in (K1[0], K1[-1])}
    below = {f"k1 = {k1:g}": (linear[k1], sup_con) for k1 in K1 if k1 < PEAK}
    verdicts = {
        "peak": judge_all(CLAIMS["peak"], ends),
        "above_sup_con": judge(CLAIMS["above_sup_con"], linear[PEAK], sup_con, top=100.0),
        "any_below_5000": judge_all(CLAIMS["any_below_5000"], below),
    }
    findings = grid.grid_findings(
        results,
        (("sup_con", "tcl"), (0.0, *K1), "k1"),
        [LINEAR, KNN],
        verdicts,
        PUBLISHED,
        baseline=("sup_con", 0.0),
        pictured=(),
    )
    base = findings.data["baselines"]
    picture = accuracy_picture(results, ("tcl",), K1, "k1", LINEAR, base, log="x")
    return findings._replace(pictures=[picture])
