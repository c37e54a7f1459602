"""All methods at one batch size, and SimCLR and AUC-CL at four: the figures of docs/results.md."""

from collections.abc import Sequence
from typing import Any

from jaxssl.grid import (
    KNN,
    LINEAR,
    METHODS,
    WORDS,
    Grid,
    accuracy_picture,
    accuracy_table,
    baselines,
    numbers,
    run_grid,
    settings_of,
    values,
    where,
)
from jaxssl.study import (
    Claim,
    Findings,
    Setting,
    Table,
    Verdict,
    choose,
    larger,
    mean,
    of_scale,
    spread,
)

ARMS: dict[str, dict[str, Any]] = {
    "simclr": METHODS["simclr"],
    "auc_cl": METHODS["auc_cl"],
    "auc_cl_released": {"loss.name": "auc_cl", "loss.preset": "released_cifar"},
    "mmcl_inv": {**METHODS["mmcl"], "loss.solver": "inv"},
    "decl": METHODS["decl"],
    "tcl": METHODS["tcl"],
    "moco_v3": METHODS["moco_v3"],
}
SWEPT = ("simclr", "auc_cl")  # at all batch sizes
BATCHES = {"tiny": (16, 64), "small": (32, 64, 128), "paper": (64, 128, 256, 512)}
FLAGS = ("methods", "batch_sizes")
CLAIMS = {
    "simclr_large": Claim(
        "SimCLR at batch 512 reaches 84.0 % (CIFAR-10, ResNet-18, 200 epochs, k-NN)",
        "DeCL, Table 1 (ResNet-50: 84.9)",
    ),
    "auc_cl_linear": Claim(
        "AUC-CL at batch 128 reaches 87.4 % (CIFAR-10, ResNet-18, 200 epochs, linear)",
        "AUC-CL, Table 10 (88.4)",
    ),
    "auc_cl_gain": Claim(
        "AUC-CL is 3 points or more above SimCLR at the smallest batch (k-NN)",
        "AUC-CL, Table 9 (5.8)",
    ),
}


def run(setting: Setting) -> Findings:
    """Train the arms at the scale's batch size, and two of them at the others."""
    arms = choose(setting.methods, tuple(ARMS))
    middle = settings_of(setting, {}).batch_size
    sizes = sorted({middle, *(setting.batch_sizes or of_scale(setting, BATCHES))})
    swept = [arm for arm in arms if arm in SWEPT]
    cells = {(arm, middle): {**ARMS[arm], "batch_size": middle} for arm in arms}
    for size in sizes:
        cells |= {(arm, size): {**ARMS[arm], "batch_size": size} for arm in swept}
    found = run_grid(setting, cells)
    base = baselines(found[arms[0], middle][0])
    tables = [accuracy_table(found, arms, [middle], "batch size", m, base) for m in (KNN, LINEAR)]
    pictures = []
    if swept and len(sizes) > 1:
        axis = swept, sizes, "batch size"
        tables += [_titled(accuracy_table(found, *axis, m, base), swept) for m in (KNN, LINEAR)]
        pictures = [accuracy_picture(found, *axis, m, base, log="x") for m in (KNN, LINEAR)]
    data = {"results": numbers(found), "baselines": base, "logs": _logs(found)}
    verdicts = _verdicts(setting, found, sizes)
    return Findings([*tables, _runs(found)], pictures, verdicts, data, where(found))


def _titled(table: Table, arms: Sequence[str]) -> Table:
    return table._replace(title=f"{table.title}, {' and '.join(arms)} by batch size")


def _runs(found: Grid) -> Table:
    """A row for each run, with what tells it from its neighbours."""
    rows = [
        (
            f"{arm}, batch {size}, seed {run.seed}",
            *(spread([run.figures[metric]]) for metric in (KNN, LINEAR)),
            f"{run.seconds / 60:.1f}",
            run.commit or "–",
            run.workdir.name,
        )
        for (arm, size), outcomes in found.items()
        for run in outcomes
    ]
    heading = ("run", WORDS[KNN], WORDS[LINEAR], "minutes", "commit", "folder")
    return Table("Runs", heading, rows, "Minutes are training and evaluation together.")


def _logs(found: Grid) -> dict[str, list[list[float]]]:
    """Epoch, loss and online k-NN of each run at each of its evaluations."""
    return {
        f"{arm}, batch {size}, seed {run.seed}": [
            [line.get(key) for key in ("epoch", "loss", KNN)] for line in run.history if KNN in line
        ]
        for (arm, size), outcomes in found.items()
        for run in outcomes
    }


def _verdicts(setting: Setting, found: Grid, sizes: Sequence[int]) -> dict[str, Verdict]:
    config = settings_of(setting, {})
    # Their network, epochs and images; figures of others do not decide the claim.
    of_papers = setting.scale == "paper" and config.epochs == 200
    of_papers = of_papers and config.data.train_split == "train"
    verdicts = {}
    for claim, arm, size, metric, least in (
        ("simclr_large", ("simclr", max(sizes)), 512, KNN, 84.0),
        ("auc_cl_linear", ("auc_cl", config.batch_size), 128, LINEAR, 87.4),
    ):
        if arm in found:
            reached = values(found[arm], metric)
            holds = mean(reached) >= least if of_papers and arm[1] == size else None
            verdicts[claim] = Verdict(f"{spread(reached)} at B={arm[1]}", holds)
    if all((arm, min(sizes)) in found for arm in SWEPT):
        ours, theirs = (values(found[arm, min(sizes)], KNN) for arm in ("auc_cl", "simclr"))
        beyond = larger([value - 3 for value in ours], theirs)
        figure = f"B={min(sizes)}: {larger(ours, theirs).figure}"
        verdicts["auc_cl_gain"] = Verdict(figure, beyond.holds)
    return verdicts
