"""AUC-CL's alpha: the margin term that keeps the encoder from collapsing.

At alpha = 0 constant embeddings are a minimum, with b = 1. The recommended loss otherwise. b has to
get there first, which takes thousands of steps: give it more --config.epochs.
"""

from jaxssl import collapse
from jaxssl.grid import KNN, METHODS, baselines, findings_of, run_grid, values
from jaxssl.study import Claim, Findings, Setting, Table, Verdict, finite, mean, spread

ALPHAS = (0.0, 0.1, 0.5, 0.7, 1.0)
NAME = "auc_cl"
NOMINAL = 2.0  # points; the paper's columns differ by up to 1.9 at epoch 100, 0.6 at 250
CLAIMS = {
    "collapse": Claim("alpha = 0 collapses to one point", "AUC-CL, Table 11"),
    "robust": Claim(
        "All other alphas reach nearly the same accuracy (k-NN within 2 points)",
        "AUC-CL, Table 11",
    ),
}
PUBLISHED = Table(
    "Published: CIFAR-10, k-NN (k=200), batch 128 (AUC-CL Table 11)",
    ("epoch", *(f"alpha {alpha:g}" for alpha in ALPHAS)),
    (
        ("50", "25.1", "77.7", "78.3", "77.6", "76.8"),
        ("100", "10.0", "82.9", "83.4", "82.4", "81.5"),
        ("150", "10.00", "85.18", "85.70", "84.76", "84.41"),
        ("200", "10.00", "86.80", "86.61", "85.89", "85.98"),
        ("250", "10.0", "87.40", "87.64", "87.21", "87.06"),
    ),
)


def run(setting: Setting) -> Findings:
    """Train with every alpha."""
    cells = {(NAME, alpha): {**METHODS[NAME], "loss.alpha": alpha} for alpha in ALPHAS}
    found = run_grid(setting, cells)
    base = baselines(found[NAME, 0.5][0])
    last = {a: [run.history[-1] for run in found[NAME, a]] for a in ALPHAS}
    std = {a: [row["feature_std"] for row in last[a]] for a in ALPHAS}
    b = [row["b"] for row in last[0.0]]
    means = {alpha: mean(values(found[NAME, alpha], KNN)) for alpha in ALPHAS[1:]}
    between = max(means.values()) - min(means.values())
    verdicts = {
        "collapse": Verdict(
            f"embeddings' std × √d {spread(std[0.0], 3)} at alpha 0, {spread(std[0.5], 3)} at 0.5; "
            f"k-NN {spread(values(found[NAME, 0.0], KNN))}, after {last[0.0][0]['step']} steps, "
            f"where b, which would be 1, is {spread(b)}",
            bool(finite(std[0.0])) and max(finite(std[0.0])) < collapse.COLLAPSED_STD,
        ),
        "robust": Verdict(f"{between:.2f} points between them", between <= NOMINAL),
    }
    spreads = Table(
        "Spread of the embeddings at the end",
        ("", *(f"alpha {alpha:g}" for alpha in ALPHAS)),
        [("std × √d", *(spread(std[alpha], 3) for alpha in ALPHAS))],
        f"1 is spread evenly; below {collapse.COLLAPSED_STD:g} counts as collapsed.",
    )
    axis = (NAME,), ALPHAS, "alpha"
    tables = spreads, PUBLISHED
    return findings_of(found, axis, [KNN], verdicts, *tables, base=base, feature_std=std)
