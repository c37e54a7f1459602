"""k-NN accuracy against the epoch: who learns soonest.

The methods are those that the paper's text or its figure's source, LightlyAI's benchmark, name;
others may be asked for with --methods.
"""

from collections.abc import Sequence
from math import nan

from jaxssl.studies.grid import KNN, METHODS, RunResult, run_grid, where
from jaxssl.studies.study import (
    Claim,
    Findings,
    Picture,
    Setting,
    Table,
    Verdict,
    curves,
    judge_all,
    select_methods,
    spread,
)

LABELLED = ("sup_con", "tcl_labels")  # left out: they see the labels
MOMENTUM = {
    "method.name": "momentum",
    "predictor.name": "mlp",
    "predictor.pred_hidden_dim": 512,
}
NEGATIVE_FREE = {
    "byol": {**MOMENTUM, "method.preset": "byol", "loss.name": "byol"},
    "simsiam": {
        **MOMENTUM,
        "method.preset": "simsiam",
        "loss.name": "simsiam",
        "head.proj_last_norm": "bn_fixed",
    },
    "barlow_twins": {"loss.name": "barlow_twins"},
    "dino": {
        "method.name": "momentum",
        "method.preset": "dino",
        "loss.name": "dino",
        "head.name": "dino",
        "head.proj_hidden_dim": 512,
        "head.proj_output_dim": 4096,
    },
}
# Of both networks that follow: the presets' averages are too slow for a run of some hundred steps.
FASTER = {"method.momentum": {"schedule": "cosine", "start": 0.95, "end": 1.0}}
ALL = {**{k: v for k, v in METHODS.items() if k not in LABELLED}, **NEGATIVE_FREE}
OF_FIGURE = ("simclr", *NEGATIVE_FREE)
USUAL = ("auc_cl", "simclr_tuned", *OF_FIGURE)
FLAGS = ("methods",)
CLAIMS = {
    "auc_cl_soonest": Claim(
        "At a fifth of the epochs AUC-CL is above SimCLR, BYOL, SimSiam, Barlow Twins and DINO "
        "(k-NN)",
        "AUC-CL, Fig. 3 and Section 5",
        "Specifically, our method outperforms SimSiam (second best) by over 8% at the epoch 100.",
        "CIFAR-10, ResNet-18, 500 epochs; the figure has no numbers.",
        8.0,
    ),
    "auc_cl_before_tuned": Claim(
        "At a fifth of the epochs AUC-CL is above SimCLR with a tuned temperature too (k-NN)",
        "ours, no paper",
    ),
}
Series = dict[str, tuple[list[float], list[list[float]]]]


def run(setting: Setting) -> Findings:
    """Read the online k-NN of every method's run."""
    methods = select_methods(setting.methods, USUAL, [name for name in ALL if name not in USUAL])
    follow = {} if setting.scale == "paper" else {"byol": FASTER, "dino": FASTER}
    found = run_grid(setting, {name: {**ALL[name], **follow.get(name, {})} for name in methods})
    series = {name: curve(outcomes) for name, outcomes in found.items()}
    epochs = next(iter(series.values()))[0]
    early = min(range(len(epochs)), key=lambda i: abs(epochs[i] - epochs[-1] / 5))
    verdicts = {}
    for key, names in (("auc_cl_soonest", OF_FIGURE), ("auc_cl_before_tuned", ("simclr_tuned",))):
        if {"auc_cl", *names} <= set(methods):
            at = {name: series[name][1][early] for name in ("auc_cl", *names)}
            pairs = {f"over {name}": (at["auc_cl"], at[name]) for name in names}
            verdict = judge_all(CLAIMS[key], pairs, top=100.0)
            words = f"epoch {epochs[early]:g}: {verdict.measured}"
            verdicts[key] = Verdict(words, verdict.holds)
    return shown(series, early, verdicts, where(found))


def shown(series: Series, early: int, verdicts: dict[str, Verdict], words: str) -> Findings:
    """Curves, and a table of three epochs."""
    epochs = next(iter(series.values()))[0]
    some = sorted({early, len(epochs) // 2, len(epochs) - 1})
    rows = [(name, *(spread(ys[i]) for i in some)) for name, (_, ys) in series.items()]
    table = Table("Online k-NN", ("", *(f"epoch {epochs[i]:g}" for i in some)), rows)
    figure = curves(series, "epoch", "online k-NN top-1, %")
    alt = f"online k-NN of {', '.join(series)} against the epoch; the table has three epochs"
    picture = Picture(KNN, figure, alt, "Bars are one standard deviation over seeds.")
    data = {name: {"epochs": x, KNN: y} for name, (x, y) in series.items()}
    return Findings([table], [picture], verdicts, data, words)


def curve(outcomes: Sequence[RunResult]) -> tuple[list[float], list[list[float]]]:
    """Epochs, and the accuracies of the seeds at each."""
    lines = [[row for row in outcome.history if KNN in row] for outcome in outcomes]
    known = [line for line in lines if line] or [[{"epoch": 0.0, KNN: nan}]]
    length = min(map(len, known))
    epochs = [row["epoch"] for row in known[0][:length]]
    # A run that was not finite stopped before the last line.
    ys = [[line[i][KNN] if len(line) > i else nan for line in lines] for i in range(length)]
    return epochs, ys
