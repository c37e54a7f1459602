"""TCL's k1: accuracy with labels against the pull on positives."""

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
from jaxssl.study import Claim, Findings, Setting, Table, Verdict, all_of, finite, larger, mean

PEAK = (1000.0, 5000.0)  # within 1000 to 10000
K1 = (1.0, 100.0, 1000.0, 5000.0, 50000.0)
CLAIMS = {
    "peak": Claim(
        "Accuracy rises with k1 to a peak between 1000 and 10000, then falls (linear)",
        "TCL, Fig. 5.6",
    ),
    "above_sup_con": Claim("k1 = 5000 is above SupCon (linear)", "TCL, Fig. 5.6"),
}
PUBLISHED = Table(
    "Published: CIFAR-100, ResNet-50 (TCL, Section 5.4 and Table 5.1; Fig. 5.6 has no numbers)",
    ("", "SupCon", "k1 = 4000", "k1 = 50000"),
    (("top-1", "79.1", "79.8", "71.8"),),
)


def run(setting: Setting) -> Findings:
    """Train with each k1, and SupCon."""
    cells = {("tcl", k1): {**METHODS["tcl_labels"], "loss.k1": k1} for k1 in K1}
    cells["sup_con", 0.0] = METHODS["sup_con"]
    found = run_grid(setting, cells)
    base = baselines(found["sup_con", 0.0][0])
    linear = {k1: values(found["tcl", k1], LINEAR) for k1 in K1}
    best = max(K1, key=lambda k1: finite([mean(linear[k1]), -1.0])[0])
    ends = {f"over k1 = {end:g}": larger(linear[best], linear[end]) for end in (K1[0], K1[-1])}
    peak = all_of(ends)
    rises = None if peak.holds is None else best in PEAK and peak.holds
    verdicts = {
        "peak": Verdict(f"best k1 = {best:g}, {peak.figure}", rises),
        "above_sup_con": larger(linear[5000.0], values(found["sup_con", 0.0], LINEAR)),
    }
    tables = [
        accuracy_table(found, ("sup_con", "tcl"), (0.0, *K1), "k1", metric, base)
        for metric in (LINEAR, KNN)
    ]
    picture = accuracy_picture(found, ("tcl",), K1, "k1", LINEAR, base, log="x")
    data = {"results": numbers(found), "baselines": base}
    return Findings([*tables, PUBLISHED], [picture], verdicts, data, where(found))
