"""TCL's gradients from positives and negatives over training, for k1 and k2.

The mean over positives of |P - X - Y| / tau and over negatives of P / tau, averaged over the batch,
see `jaxssl.losses.tcl_gradients`. SupCon is TCL with k1 = 0 and k2 = 1.
"""

from jaxssl.grid import LINEAR, METHODS, WORDS, run_grid, values, where
from jaxssl.study import (
    Claim,
    Findings,
    Picture,
    Setting,
    Table,
    Verdict,
    all_of,
    curves,
    larger,
    mean,
    spread,
)

# As in Figures 5.5, 5.7 and 5.8.
ARMS = {
    "SupCon": (0.0, 1.0),
    "k1=5000": (5000.0, 1.0),
    "k1=50000": (50000.0, 1.0),
    "k1=50000, k2=3.25": (50000.0, 3.25),
}
PUBLISHED = Table(
    "Published: CIFAR-100, ResNet-50, linear (TCL, Section 5.4; the figures have no numbers)",
    ("", "top-1"),
    (("k1=50000", "71.8"), ("k1=50000, k2=3.25", "76.2")),
)
KEYS = {"positive_gradient": "positives", "negative_gradient": "negatives"}
CLAIMS = {
    "k1_raises_positive": Claim(
        "The gradient from positives grows with k1 and is above SupCon's", "TCL, Fig. 5.5"
    ),
    "k1_lowers_negative": Claim(
        "A large k1 lowers the gradient from negatives below SupCon's", "TCL, Fig. 5.7"
    ),
    "k2_restores_negative": Claim("k2 = 3.25 closes that gap to within a tenth", "TCL, Fig. 5.8"),
}


def run(setting: Setting) -> Findings:
    """Train with labels, with the gradients in the metrics."""
    cells = {
        name: {**METHODS["tcl_labels"], "loss.k1": k1, "loss.k2": k2, "loss.gradients": True}
        for name, (k1, k2) in ARMS.items()
    }
    found = run_grid(setting, cells)
    series = {
        key: {name: _curve(outcomes, key) for name, outcomes in found.items()} for key in KEYS
    }
    # Over training, for each seed.
    means = {
        key: {name: [mean(seed) for seed in zip(*ys, strict=True)] for name, (_, ys) in of.items()}
        for key, of in series.items()
    }
    rows = [(name, *(spread(means[key][name], 4) for key in KEYS)) for name in ARMS]
    last = [(name, *(spread(series[key][name][1][-1], 4) for key in KEYS)) for name in ARMS]
    accuracies = [(name, spread(values(found[name], LINEAR))) for name in ARMS]
    heading = ("", *(f"from {words}" for words in KEYS.values()))
    tables = [
        Table("Mean gradient over training", heading, rows),
        Table("At the end", heading, last),
        Table(WORDS[LINEAR], ("", "top-1"), accuracies),
        PUBLISHED,
    ]
    pictures = [
        Picture(
            key,
            curves(of, "epoch", f"mean gradient from {KEYS[key]}"),
            f"mean gradient from {KEYS[key]} over training for {', '.join(ARMS)}; see the tables",
            "Bars are one standard deviation over seeds.",
        )
        for key, of in series.items()
    ]
    return Findings(tables, pictures, _verdicts(means), {"means": means}, where(found))


def _verdicts(means: dict) -> dict[str, Verdict]:
    pos, neg = means["positive_gradient"], means["negative_gradient"]
    base, middle, large, mended = ARMS
    rises = {
        f"{below} to {above}": larger(pos[above], pos[below], 3)
        for below, above in ((base, middle), (middle, large))
    }
    gap = {name: mean(neg[name]) / mean(neg[base]) - 1 for name in (large, mended)}
    words = f"{100 * gap[large]:+.1f} % at k2 = 1, {100 * gap[mended]:+.1f} % at k2 = 3.25"
    return {
        "k1_raises_positive": all_of(rises),
        "k1_lowers_negative": larger(neg[base], neg[large], 4),
        "k2_restores_negative": Verdict(words, abs(gap[mended]) < 0.1),
    }


def _curve(outcomes: list, key: str) -> tuple[list[float], list[list[float]]]:
    lines = [[row for row in outcome.history if key in row] for outcome in outcomes]
    every = max(1, len(lines[0]) // 20)
    length = min(map(len, lines))
    epochs = [lines[0][i]["epoch"] for i in range(0, length, every)]
    return epochs, [[line[i][key] for line in lines] for i in range(0, length, every)]
