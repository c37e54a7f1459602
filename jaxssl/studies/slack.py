"""MMCL's slack penalty C: small values bind, those above 20 never do.

With beta = 0.1 no dual variable of the rbf kernel exceeds about 20, so that C = 100 is no limit.
"""

from jaxssl.grid import KNN, METHODS, baselines, findings_of, run_grid, values
from jaxssl.study import Claim, Findings, Setting, Table, Verdict, larger, mean, spread

NOTHING = 0.5  # points
PENALTIES = (0.01, 0.1, 1.0, 10.0, 100.0)
CLAIMS = {
    "small_c_is_poor": Claim("C = 0.01 is below the paper's C = 100 (k-NN)", "MMCL, Fig. 3a"),
    "large_c_no_help": Claim(
        "A large C gains less than half a point over a moderate one (k-NN, C = 100 against 10)",
        "MMCL, Fig. 3a",
    ),
}


def run(setting: Setting) -> Findings:
    """Train with each C."""
    cells = {("mmcl", c): {**METHODS["mmcl"], "loss.C": c} for c in PENALTIES}
    found = run_grid(setting, cells)
    base = baselines(found["mmcl", 100.0][0])
    knn = {c: values(found["mmcl", c], KNN) for c in PENALTIES}
    gain = mean(knn[100.0]) - mean(knn[10.0])
    verdicts = {
        "small_c_is_poor": larger(knn[100.0], knn[0.01]),
        "large_c_no_help": Verdict(f"{gain:+.2f} points", gain < NOTHING),
    }
    rows = [
        (name, *(_last(found["mmcl", c], key) for c in PENALTIES))
        for name, key in (("support vectors", "support"), ("at C", "at_bound"))
    ]
    shares = Table(
        "Share of the negatives at the end of training, %",
        ("", *(f"C {c:g}" for c in PENALTIES)),
        rows,
    )
    axis = ("mmcl",), PENALTIES, "C"
    return findings_of(found, axis, [KNN], verdicts, shares, base=base, log="x")


def _last(outcomes: list, key: str) -> str:
    return spread([100 * outcome.history[-1][key] for outcome in outcomes])
