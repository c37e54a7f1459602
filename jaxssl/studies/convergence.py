"""k-NN accuracy against the epoch, for all methods: who learns soonest."""

from collections.abc import Sequence
from math import nan

from jaxssl.grid import KNN, METHODS, ON_REQUEST, Outcome, run_grid, where
from jaxssl.study import (
    Claim,
    Findings,
    Picture,
    Setting,
    Table,
    Verdict,
    choose,
    curves,
    larger,
    mean,
    spread,
)

LABELLED = ("sup_con", "tcl_labels")  # left out: they see the labels
FLAGS = ("methods",)
CLAIMS = {
    "auc_cl_soonest": Claim(
        "At a fifth of the epochs AUC-CL is above every other method (k-NN)", "AUC-CL, Fig. 3"
    ),
    "mmcl_before_simclr": Claim(
        "MMCL reaches SimCLR's last accuracy at an earlier epoch than SimCLR (means, k-NN)",
        "MMCL, Fig. 3c",
    ),
}


def run(setting: Setting) -> Findings:
    """Read the online k-NN of every method's run."""
    usual = [name for name in METHODS if name not in (*LABELLED, *ON_REQUEST)]
    methods = choose(setting.methods, usual, ON_REQUEST)
    found = run_grid(setting, {name: METHODS[name] for name in methods})
    series = {name: _curve(outcomes) for name, outcomes in found.items()}
    epochs = next(iter(series.values()))[0]
    early = min(range(len(epochs)), key=lambda i: abs(epochs[i] - epochs[-1] / 5))
    shown = sorted({early, len(epochs) // 2, len(epochs) - 1})
    rows = [(name, *(spread(ys[i]) for i in shown)) for name, (_, ys) in series.items()]
    table = Table("Online k-NN", ("", *(f"epoch {epochs[i]:g}" for i in shown)), rows)
    verdicts = {}
    if "auc_cl" in methods and len(methods) > 1:
        others = [name for name in methods if name != "auc_cl"]
        second = max(others, key=lambda name: mean(series[name][1][early]))
        lead = larger(series["auc_cl"][1][early], series[second][1][early])
        figure = f"epoch {epochs[early]:g}, against {second}: {lead.figure}"
        verdicts["auc_cl_soonest"] = Verdict(figure, lead.holds)
    if {"mmcl", "simclr"} <= set(methods):
        verdicts["mmcl_before_simclr"] = _sooner(series)
    figure = curves(series, "epoch", "online k-NN top-1, %")
    alt = f"online k-NN of {', '.join(methods)} against the epoch; the table has three epochs"
    picture = Picture(KNN, figure, alt, "Bars are one standard deviation over seeds.")
    data = {name: {"epochs": x, KNN: y} for name, (x, y) in series.items()}
    return Findings([table], [picture], verdicts, data, where(found))


def _curve(outcomes: Sequence[Outcome]) -> tuple[list[float], list[list[float]]]:
    """Epochs, and the accuracies of the seeds at each."""
    lines = [[row for row in outcome.history if KNN in row] for outcome in outcomes]
    known = [line for line in lines if line] or [[{"epoch": 0.0, KNN: nan}]]
    length = min(map(len, known))
    epochs = [row["epoch"] for row in known[0][:length]]
    # A run that was not finite stopped before the last line.
    ys = [[line[i][KNN] if len(line) > i else nan for line in lines] for i in range(length)]
    return epochs, ys


def _sooner(series: dict) -> Verdict:
    """The first epochs at which the means of both reach the last mean of SimCLR."""
    goal = mean(series["simclr"][1][-1])
    first = {}
    for name in ("mmcl", "simclr"):
        reached = [x for x, y in zip(*series[name], strict=True) if mean(y) >= goal]
        first[name] = reached[0] if reached else float("inf")
    words = ", ".join(
        f"{name} {'never' if x == float('inf') else f'at epoch {x:g}'}" for name, x in first.items()
    )
    return Verdict(f"{goal:.2f} %: {words}", first["mmcl"] < first["simclr"])
