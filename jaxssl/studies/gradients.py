"""TCL's gradients from positives and negatives over training, for k1 and k2.

The mean over positives of |P - X - Y| / tau and over negatives of P / tau, averaged over the batch,
see `jaxssl.losses.tcl_gradients`. SupCon is TCL with k1 = 0 and k2 = 1.
"""

from math import isfinite

from jaxssl.studies import tcl_comparison
from jaxssl.studies.grid import LINEAR, METHODS, WORDS, run_grid, values, where
from jaxssl.studies.study import (
    Claim,
    Findings,
    Picture,
    Setting,
    Table,
    Verdict,
    curves,
    interval,
    judge,
    judge_all,
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
PAPER = tcl_comparison.PAPER
TENTH = 0.1  # of SupCon's gradient: what is left of a gap that has vanished
CLAIMS = {
    "k1_raises_positive": Claim(
        "The gradient from positives grows with k1 and is above SupCon's",
        "TCL, Fig. 5.5",
        "As evident from Fig. 5.5, increasing the value of k1 increases the magnitude of gradient "
        "response from positives.",
        "The figure has no numbers.",
    ),
    "k1_lowers_negative": Claim(
        "k1 = 50000 lowers the gradient from negatives below SupCon's",
        "TCL, Fig. 5.7",
        "TCL loss’s gradient lags behind SupCon loss’s gradient by some margin for k1 = 50000 and "
        "k2 = 1.",
        "The figure has no numbers.",
    ),
    "k2_restores_negative": Claim(
        "k2 = 3.25 closes that gap to within a tenth (ours) of SupCon's gradient",
        "TCL, Fig. 5.8",
        "the gap between gradient (from negatives) curves of TCL loss and SupCon loss vanishes.",
        "The figure has no numbers.",
    ),
    "k2_restores_accuracy": Claim(
        "At k1 = 50000, k2 = 3.25 is above k2 = 1 (linear)",
        "TCL, Section 5.4.2",
        "We also observe that the top-1 accuracy increases back to 76.2%, the best possible "
        "accuracy that we got for TCL loss in this setting.",
        "CIFAR-100, ResNet-50: 76.2 against 71.8.",
        4.4,
    ),
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
    accuracies = {name: values(found[name], LINEAR) for name in ARMS}
    heading = ("", *(f"from {words}" for words in KEYS.values()))
    tables = [
        Table("Mean gradient over training", heading, rows),
        Table("At the end", heading, last),
        Table(WORDS[LINEAR], ("", "top-1"), [(n, spread(v)) for n, v in accuracies.items()]),
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
    return Findings(tables, pictures, _verdicts(means, accuracies), {"means": means}, where(found))


def _verdicts(means: dict, accuracies: dict[str, list[float]]) -> dict[str, Verdict]:
    pos, neg = means["positive_gradient"], means["negative_gradient"]
    base, middle, large, mended = ARMS
    rises = {
        f"{below} to {above}": (pos[above], pos[below])
        for below, above in ((base, middle), (middle, large))
    }
    lower = judge(CLAIMS["k1_lowers_negative"], neg[base], neg[large], digits=4)
    return {
        "k1_raises_positive": judge_all(CLAIMS["k1_raises_positive"], rises, digits=3),
        "k1_lowers_negative": lower,
        "k2_restores_negative": _closed(neg[base], neg[mended], lower),
        "k2_restores_accuracy": judge(
            CLAIMS["k2_restores_accuracy"], accuracies[mended], accuracies[large], top=100.0
        ),
    }


def _closed(base: list[float], mended: list[float], gap: Verdict) -> Verdict:
    """Whether the gradients are within a tenth of SupCon's, if there is a gap to close."""
    found = [m / b - 1 for m, b in zip(mended, base, strict=True) if isfinite(m) and isfinite(b)]
    if len(found) < 2:
        return Verdict("one pair" if found else "not finite", None)
    low, high = interval(found)
    words = f"{100 * mean(found):+.1f} % [{100 * low:+.1f}, {100 * high:+.1f}] of SupCon's"
    if not gap.holds:
        return Verdict(f"{words}; at k2 = 1 there is no gap to close", None)
    within = True if -TENTH <= low <= high <= TENTH else None
    return Verdict(words, False if low > TENTH or high < -TENTH else within)


def _curve(outcomes: list, key: str) -> tuple[list[float], list[list[float]]]:
    lines = [[row for row in outcome.history if key in row] for outcome in outcomes]
    every = max(1, len(lines[0]) // 20)
    length = min(map(len, lines))
    epochs = [lines[0][i]["epoch"] for i in range(0, length, every)]
    return epochs, [[line[i][key] for line in lines] for i in range(0, length, every)]
