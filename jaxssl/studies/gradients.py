"""TCL's gradients from positives and negatives over training, for k1 and k2.

The gradients are the mean over positives of |P - X - Y| / tau and the mean over negatives of
P / tau, averaged over the batch; see `jaxssl.losses.tcl_gradients`. SupCon is TCL with k1 = 0 and
k2 = 1.
"""

from jaxssl.studies import grid
from jaxssl.studies.grid import LINEAR, METHODS, METRIC_NAMES
from jaxssl.studies.plots import plot_lines
from jaxssl.studies.study import Claim, Findings, Picture, Setting, Table, Verdict
from jaxssl.studies.verdicts import finite, interval, judge, judge_all, mean, spread

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
PAPER = "tcl"
TENTH = 0.1  # share of SupCon's gradient within which a gap counts as closed
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
    """Train with labels and record the gradients."""
    cells = {
        name: {**METHODS["tcl_labels"], "loss.k1": k1, "loss.k2": k2, "loss.gradients": True}
        for name, (k1, k2) in ARMS.items()
    }
    results = grid.run_grid(setting, cells)
    series = {
        key: {name: grid.metric_curve(runs, key, points=20) for name, runs in results.items()}
        for key in KEYS
    }
    means = {  # over training, for each seed
        key: {
            name: [mean(seed) for seed in zip(*values, strict=True)]
            for name, (_, values) in curves.items()
        }
        for key, curves in series.items()
    }
    rows = [(name, *(spread(means[key][name], 4) for key in KEYS)) for name in ARMS]
    last = [(name, *(spread(series[key][name][1][-1], 4) for key in KEYS)) for name in ARMS]
    accuracies = {name: grid.seed_values(results[name], LINEAR) for name in ARMS}
    heading = ("", *(f"from {name}" for name in KEYS.values()))
    tables = [
        Table("Mean gradient over training", heading, rows),
        Table("Gradient at the end of training", heading, last),
        Table(METRIC_NAMES[LINEAR], ("", "top-1"), [(n, spread(v)) for n, v in accuracies.items()]),
        PUBLISHED,
    ]
    pictures = [
        Picture(
            key,
            plot_lines(curves, "epoch", f"mean gradient from {KEYS[key]}"),
            f"mean gradient from {KEYS[key]} over training for {', '.join(ARMS)}; see the tables",
            "Bars are one standard deviation over seeds.",
        )
        for key, curves in series.items()
    ]
    verdicts = _verdicts(means, accuracies)
    return Findings(tables, pictures, verdicts, {"means": means}, grid.describe_runs(results))


def _verdicts(
    means: dict[str, dict[str, list[float]]], accuracies: dict[str, list[float]]
) -> dict[str, Verdict]:
    pos, neg = means["positive_gradient"], means["negative_gradient"]
    sup_con, medium, large, large_k2 = ARMS
    rises = {
        f"{below} to {above}": (pos[above], pos[below])
        for below, above in ((sup_con, medium), (medium, large))
    }
    lower = judge(CLAIMS["k1_lowers_negative"], neg[sup_con], neg[large], digits=4)
    return {
        "k1_raises_positive": judge_all(CLAIMS["k1_raises_positive"], rises, digits=3),
        "k1_lowers_negative": lower,
        "k2_restores_negative": _judge_closed(neg[sup_con], neg[large_k2], lower),
        "k2_restores_accuracy": judge(
            CLAIMS["k2_restores_accuracy"], accuracies[large_k2], accuracies[large], top=100.0
        ),
    }


def _judge_closed(sup_con: list[float], restored: list[float], gap: Verdict) -> Verdict:
    """Judge whether the gradients are within a tenth of SupCon's, if there is a gap to close."""
    ratios = finite(r / s - 1 for r, s in zip(restored, sup_con, strict=True))
    if len(ratios) < 2:
        return Verdict("one pair" if ratios else "not finite", None)
    low, high = interval(ratios)
    text = f"{100 * mean(ratios):+.1f} % [{100 * low:+.1f}, {100 * high:+.1f}] of SupCon's"
    if not gap.holds:
        return Verdict(f"{text}; at k2 = 1 there is no gap to close", None)
    within = True if -TENTH <= low <= high <= TENTH else None
    return Verdict(text, False if low > TENTH or high < -TENTH else within)
