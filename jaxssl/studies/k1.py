"""TCL's k1: accuracy with labels against the pull on positives."""

from statistics import fmean

from jaxssl.grid import (
    KNN,
    LINEAR,
    METHODS,
    accuracy_picture,
    accuracy_table,
    baselines,
    numbers,
    run_grid,
    values,
    where,
)
from jaxssl.study import Claim, Findings, Setting, Verdict, larger

K1 = (1.0, 100.0, 1000.0, 5000.0, 50000.0)
CLAIMS = {
    "peak": Claim(
        "Accuracy rises with k1 to a peak between 1000 and 10000, then falls (linear)",
        "TCL, Fig. 5.6",
    ),
    "above_sup_con": Claim("The best k1 is above SupCon (linear)", "TCL, Fig. 5.6"),
}


def run(setting: Setting) -> Findings:
    """Train with each k1, and SupCon."""
    cells = {("tcl", k1): {**METHODS["tcl_labels"], "loss.k1": k1} for k1 in K1}
    cells["sup_con", 0.0] = METHODS["sup_con"]
    found = run_grid(setting, cells)
    base = baselines(setting, found["sup_con", 0.0][0])
    mean = {k1: fmean(values(found["tcl", k1], LINEAR)) for k1 in K1}
    best = max(K1, key=mean.get)
    peak = larger(values(found["tcl", best], LINEAR), values(found["tcl", K1[-1]], LINEAR))
    above = larger(values(found["tcl", best], LINEAR), values(found["sup_con", 0.0], LINEAR))
    verdicts = {
        "peak": Verdict(
            f"best k1 = {best:g}, over k1 = {K1[-1]:g}: {peak.figure}",
            1000 <= best <= 10000 and peak.holds,
        ),
        "above_sup_con": Verdict(f"k1 = {best:g}: {above.figure}", above.holds),
    }
    tables = [
        accuracy_table(found, ("sup_con", "tcl"), (0.0, *K1), "k1", metric, base)
        for metric in (LINEAR, KNN)
    ]
    picture = accuracy_picture(found, ("tcl",), K1, "k1", LINEAR, base, log="x")
    return Findings(
        tables, [picture], verdicts, {"results": numbers(found), "baselines": base}, where(found)
    )
