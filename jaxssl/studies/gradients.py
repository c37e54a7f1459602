"""TCL's gradients from positives and negatives during training, for k1 and k2.

The gradients are the mean over positives of |P - X - Y| / tau and the mean over negatives of
P / tau, averaged over the batch (see `jaxssl.losses.tcl_gradients`). SupCon is TCL with k1 = 0 and
k2 = 1.
"""

from statistics import fmean

from jaxssl.studies import grid
from jaxssl.studies.compared_methods import METHODS
from jaxssl.studies.plots import plot_lines
from jaxssl.studies.run_results import metric_curve
from jaxssl.studies.study import Findings, Picture, Setting, Table, Verdict, read_claims
from jaxssl.studies.verdicts import finite, judge, judge_all, spread, within

# k1 and k2 by the name of an arm, as in Figures 5.5, 5.7 and 5.8 of the thesis.
ARMS = {
    "SupCon": (0.0, 1.0),
    "k1=5000": (5000.0, 1.0),
    "k1=50000": (50000.0, 1.0),
    "k1=50000, k2=3.25": (50000.0, 3.25),
}
# Sources of gradients by key of metrics.jsonl.
SOURCES = {"positive_gradient": "positives", "negative_gradient": "negatives"}
Gradients = dict[str, dict[str, list[float]]]  # of each seed, by key and arm
PAPER = "tcl"
CLOSED_PERCENT = 10.0  # of SupCon's gradient within which a gap counts as closed
CLAIMS = read_claims("gradients")


def run(setting: Setting) -> Findings:
    """Train with labels and record the gradients from positives and negatives."""
    cells = {
        name: {**METHODS["tcl_labels"], "loss.k1": k1, "loss.k2": k2, "loss.gradients": True}
        for name, (k1, k2) in ARMS.items()
    }
    results = grid.run_grid(setting, cells)
    means: Gradients = {key: {} for key in SOURCES}  # over the training
    ends: Gradients = {key: {} for key in SOURCES}  # at the end of training
    pictures = []
    for key, source in SOURCES.items():
        curves = {name: metric_curve(runs, key, points=20) for name, runs in results.items()}
        for name, (_, values) in curves.items():
            # NaN after the end of a run that diverged leaves it out of the means.
            means[key][name] = [fmean(of_seed) for of_seed in zip(*values, strict=True)]
            ends[key][name] = metric_curve(results[name], key)[1][-1]
        title = f"mean gradient from {source}"
        alt = f"{title} over training for {', '.join(ARMS)}; see the tables"
        caption = "Bars are one standard deviation over seeds."
        pictures.append(Picture(key, plot_lines(curves, "epoch", title), alt, caption))
    accuracies = {name: grid.seed_values(results[name], grid.LINEAR) for name in ARMS}
    rows = [(name, spread(values)) for name, values in accuracies.items()]
    tables = [
        _table("Mean gradient over training", means),
        _table("Gradient at the end of training", ends),
        Table(grid.METRIC_NAMES[grid.LINEAR], ("", "top-1"), rows),
    ]
    verdicts = _verdicts(means, accuracies)
    return Findings(tables, pictures, verdicts, {"means": means}, grid.describe_runs(results))


def _table(title: str, gradients: Gradients) -> Table:
    """Build a table with a row for each arm, and a column for each source of gradients."""
    rows = [(name, *(spread(gradients[key][name], 4) for key in SOURCES)) for name in ARMS]
    return Table(title, ("", *(f"from {source}" for source in SOURCES.values())), rows)


def _verdicts(means: Gradients, accuracies: dict[str, list[float]]) -> dict[str, Verdict]:
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
        "k2_raises_positive": judge(
            CLAIMS["k2_raises_positive"], pos[large_k2], pos[large], digits=3
        ),
        "k2_restores_negative": _judge_closed(neg[sup_con], neg[large_k2], lower),
        "k2_restores_accuracy": judge(
            CLAIMS["k2_restores_accuracy"], accuracies[large_k2], accuracies[large], top=100.0
        ),
    }


def _judge_closed(sup_con: list[float], restored: list[float], gap: Verdict) -> Verdict:
    """Judge whether TCL's gradients are within 10 % of SupCon's, if a gap was found."""
    changes = [100 * (r / s - 1) for r, s in zip(restored, sup_con, strict=True)]
    verdict = within(changes, CLOSED_PERCENT, digits=1)
    if len(finite(changes)) < 2:
        return verdict
    text = f"{verdict.measured} % of SupCon's"
    if not gap.holds:
        return Verdict(f"{text}; at k2 = 1 no gap to close is shown", None)
    return verdict._replace(measured=text)
