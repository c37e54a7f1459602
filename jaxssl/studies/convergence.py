"""K-NN accuracy by epoch, to find the method that learns soonest.

The default methods are named in the paper's text, or in LightlyAI's benchmark, from which the paper
took its figure. --methods takes others.
"""

from math import nan

from jaxssl.studies import grid, study
from jaxssl.studies.compared_methods import LABELLED, METHODS
from jaxssl.studies.grid import KNN
from jaxssl.studies.plots import plot_lines
from jaxssl.studies.run_results import metric_curve
from jaxssl.studies.verdicts import judge_all, spread

# With the presets, the momentum network changes too slowly for a run of some hundred steps.
FASTER = {"method.momentum": {"schedule": "cosine", "start": 0.95, "end": 1.0}}
ALL = {name: settings for name, settings in METHODS.items() if name not in LABELLED}
FIGURE_METHODS = ("simclr", "byol", "simsiam", "barlow_twins", "dino")
DEFAULT = ("auc_cl", "simclr_tuned", *FIGURE_METHODS)
# Methods that learn later than AUC-CL, by claim.
SLOWER = {"auc_cl_soonest": FIGURE_METHODS, "auc_cl_before_tuned": ("simclr_tuned",)}
FLAGS = ("methods",)
PAPER = "convergence"
CLAIMS = study.read_claims("convergence")
# Epochs [n] and k-NN accuracies [n, seeds] by method.
Series = dict[str, tuple[list[float], list[list[float]]]]


def run(setting: study.Setting) -> study.Findings:
    """Read the online k-NN accuracy of every method's runs and judge the claims."""
    others = [name for name in ALL if name not in DEFAULT]
    methods = study.select_methods(setting.methods, DEFAULT, others)
    faster = {} if setting.scale == "paper" else {"byol": FASTER, "dino": FASTER}
    cells = {name: {**ALL[name], **faster.get(name, {})} for name in methods}
    results = grid.run_grid(setting, cells)
    series = read_series(results)
    early = early_index(series)
    verdicts = {}
    for key, names in SLOWER.items():
        if {"auc_cl", *names} <= set(methods):
            epochs, values = series["auc_cl"]
            pairs = {f"over {name}": (values[early], series[name][1][early]) for name in names}
            verdict = judge_all(CLAIMS[key], pairs, top=100.0)
            verdicts[key] = verdict.after(f"epoch {epochs[early]:g}")
    return curve_findings(series, verdicts, grid.describe_runs(results))


def read_series(results: grid.Results) -> Series:
    """Return the online k-NN curve of every method at the same epochs.

    Args:
        results: by method. A diverged run has NaN after its last evaluation.
    """
    curves = {name: metric_curve(runs, KNN) for name, runs in results.items()}
    epochs = max((x for x, _ in curves.values()), key=len)
    series: Series = {}
    for name, (own, values) in curves.items():
        at, missing = dict(zip(own, values, strict=True)), [nan] * len(results[name])
        series[name] = epochs, [at.get(epoch, missing) for epoch in epochs]
    return series


def early_index(series: Series) -> int:
    """Return the index of the evaluation nearest to 20 % of the epochs."""
    epochs = next(iter(series.values()))[0]
    return min(range(len(epochs)), key=lambda i: abs(epochs[i] - epochs[-1] / 5))


def curve_findings(
    series: Series, verdicts: dict[str, study.Verdict], where: str
) -> study.Findings:
    """Return the findings: a plot of the curves, a table of three epochs and the verdicts.

    Args:
        series: curves at the same epochs, as `read_series` returns them.
        verdicts: by claim.
        where: data set, number of seeds and epochs, in words.
    """
    epochs = next(iter(series.values()))[0]
    chosen = sorted({early_index(series), len(epochs) // 2, len(epochs) - 1})
    rows = [(name, *(spread(values[i]) for i in chosen)) for name, (_, values) in series.items()]
    table = study.Table("Online k-NN", ("", *(f"epoch {epochs[i]:g}" for i in chosen)), rows)
    figure = plot_lines(series, "epoch", "online k-NN top-1, %")
    alt = f"online k-NN of {', '.join(series)} against the epoch; the table has three epochs"
    picture = study.Picture(KNN, figure, alt, "Bars are one standard deviation over seeds.")
    data = {name: {"epochs": x, KNN: y} for name, (x, y) in series.items()}
    return study.Findings([table], [picture], verdicts, data, where)
