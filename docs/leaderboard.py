"""Write docs/leaderboard.md, and the picture and the table of README.md, from study documents.

python docs/leaderboard.py
"""

import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from statistics import mean, median, stdev
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import spearmanr, t, ttest_rel

from jaxssl.report.markdown import markdown_table
from jaxssl.studies.verdicts import are_equal

DOCS = Path(__file__).parent
FIVE = "medium/five_batch_sizes"  # is in the picture too
FASHION = "small/batch_size-fashion_mnist"
STEPS = "small/batch_size-equal_steps"
# Documents of the study batch_size, by title. The first one is in README.md.
DOCUMENTS = {
    "All of CIFAR-10": "medium/batch_size",
    "All of CIFAR-10, five batch sizes": FIVE,
    "A fifth of CIFAR-10": "small/batch_size-simclr-simclr_tuned-auc_cl-decl",
    "A fifth of CIFAR-10, equal steps": STEPS,
    "A fifth of Fashion-MNIST": FASHION,
    "Handwritten digits": "tiny/batch_size",
    "Handwritten digits, equal steps": "tiny/batch_size-equal_steps",
}
METRICS = {"knn_top1": "k-NN", "linear_top1": "Linear probe"}
NAMES = {
    "auc_cl": "AUC-CL",
    "auc_cl_sum": "AUC-CL, eq. 8",
    "decl": "DeCL",
    "decl_tuned": "DeCL, tuned",
    "mmcl": "MMCL, PGD",
    "mmcl_inv": "MMCL, closed form",
    "tcl": "TCL",
    "tcl_tuned": "TCL, tuned",
    "simclr_tuned": "SimCLR, temperature 0.05",
    "simclr_t01": "SimCLR, temperature 0.1",
    "simclr": "SimCLR, temperature 0.5",
    "dcl": "DCL",
    "sogclr": "SogCLR",
    "moco_v3": "MoCo-v3",
    "xbm": "SimCLR, XBM",
    "nnclr": "NNCLR",
    "byol": "BYOL",
    "byol_tuned": "BYOL, tuned",
    "simsiam": "SimSiam",
    "barlow_twins": "Barlow Twins",
    "barlow_twins_tuned": "Barlow Twins, tuned",
    "vicreg": "VICReg",
    "vicreg_tuned": "VICReg, tuned",
    "lejepa": "LeJEPA",
    "dino": "DINO",
}
# Colour (of Okabe and Ito) and line of the methods in the picture. Kindred ones share a colour.
STYLES = {
    "auc_cl": ("#d55e00", "-"),
    "auc_cl_sum": ("#d55e00", "--"),
    "decl": ("#009e73", "--"),
    "decl_tuned": ("#009e73", "-"),
    "mmcl": ("#cc79a7", "--"),
    "mmcl_inv": ("#cc79a7", "-"),
    "tcl": ("#e69f00", "--"),
    "tcl_tuned": ("#e69f00", "-"),
    "simclr_tuned": ("#0072b2", "-"),
    "simclr_t01": ("#0072b2", ":"),
    "simclr": ("#0072b2", "--"),
    "dcl": ("#56b4e9", "-"),
    "sogclr": ("#56b4e9", "--"),
    "moco_v3": ("#808080", "-"),
}
PICTURE = """
![k-NN accuracy by batch size, of the methods with every run](leaderboard-light.svg)
"""
FROM_SIMCLR = """\
TCL has three views. Differences from SimCLR at a temperature of 0.5 with the same seeds, in points:

"""
FIVE_NOTE = """
Some losses at two more batch sizes. They are compared with others above.
"""
FASHION_NOTE = """
Constants are those of CIFAR-10. The linear accuracies are close to that of raw pixels.
"""
STEPS_NOTE = """
Every run has as many steps as 20 epochs at batch 64. A run at 16 therefore sees a quarter of the
images, and one at 256 four times as many.
"""
# By document: a note, and the batch sizes at which a table shows the differences from SimCLR.
NOTES = {
    FIVE: (FIVE_NOTE, (32, 128)),
    STEPS: (STEPS_NOTE, (16, 64, 256)),
    FASHION: (FASHION_NOTE, (16, 64, 256)),
}
TABLE = re.compile(r"(<!-- docs/leaderboard.py.*?-->\n).*?(<!-- end -->)", re.DOTALL)
LEVEL = 0.05
INTRODUCTION = """\
# Leaderboard

This page compares the accuracy of methods by batch size, to help to choose a loss. All methods of a
table share data, network, optimiser, augmentation and epochs. The constants of AUC-CL and of the
losses called "tuned" or "temperature 0.05" were chosen on held-out training images. The other
constants are the papers'. Where a paper states none, they are those of codes for CIFAR (the
temperature of DeCL, TCL and MoCo-v3) or ours (DeCL's alternation and averaging, `a` of eq. 8). The
predictors of BYOL and NNCLR have 512 hidden units instead of 4096, and NNCLR has 16 384 keys
instead of 98 304, because network and data are small. On a fifth of the images, validation prefers
other constants for SimCLR, DeCL, TCL, XBM, MoCo-v3, NNCLR and the losses without negatives, by more
than a point in the sum of both accuracies. On all images, the tuned constants raise DeCL's k-NN
accuracy by 2.4 points at batch 16 and by 1.5 at 64 and 256. They change TCL's at 16 by
{tcl[tcl_tuned][16]}, at 64 by {tcl[tcl_tuned][64]}, and at 256 by {tcl[tcl_tuned][256]}
([measurements](measurements.md#constants-chosen-on-validation-images)).

Numbers are percent on test images, mean ± standard deviation over the seeds, measured until the
first of December 2026 on two shared CPU cores. The document of the runs names their commits. All
but those of Fashion-MNIST and of equal steps used an earlier random crop, which cut boxes at the
border of the image. With the current crop, the accuracy of SimCLR at 0.5 and batch 64 on all of
CIFAR-10 changes by -0.4 [-1.1, 0.4] points of k-NN and -0.3 [-1.5, 0.9] of the linear probe (3
seeds, which are in no document). Each section has its command, and this one writes the page:

    python docs/leaderboard.py    # from the JSON documents in docs/studies

**Bold** marks a method that is significantly better than every other tested one of its column by
paired t-tests over seeds with Holm's correction (5 %). Most columns have none, because three seeds
detect only large differences. The list below a table names the methods that are not significantly
below the highest mean by an analysis of variance of methods and seeds, with t-tests and Holm's
correction. It pools the spread of all methods, which gives it more power, and assumes that the
spread is equal. Methods without all seeds are in neither test.

## What to use when

**Start with DCL** at a temperature of 0.1. It costs the same as SimCLR. On all of CIFAR-10 it is
above SimCLR at the usual temperature of 0.5 by {simclr[dcl][16]} points of k-NN at batch 16,
{five[dcl][32]} at 32, {simclr[dcl][64]} at 64, {five[dcl][128]} at 128 and {simclr[dcl][256]} at
256. Only TCL, which trains on three views, has means above it by more than 0.3. Most of the gain
comes from the low temperature: SimCLR at 0.1 is above SimCLR at 0.5 by {simclr[simclr_t01][16]} at
16, {simclr[simclr_t01][64]} at 64 and {simclr[simclr_t01][256]} at 256, and differs from DCL by
{dcl[simclr_t01][16]}, {dcl[simclr_t01][64]} and {dcl[simclr_t01][256]}. Averaged over the three
sizes, DCL is above it by 0.6 [0.2, 0.9], and by 0.9 [0.0, 1.8] of the linear probe. The mean of
this lead falls as the batch grows, but three seeds do not show that the lead does: at 16 it exceeds
that at 256 by 1.0 [-1.2, 3.2].

- **SogCLR** cannot be told from DCL, and keeps one number for each training example.
- **TCL** with three views differs from DCL by {dcl[tcl][16]} at 16, {dcl[tcl][64]} at 64 and
  {dcl[tcl][256]} at 256. Its epochs cost 1.5 times as much, and part of its lead may come from the
  third view. These intervals are of two methods alone. The tests of the list below the table, which
  pool the noise of all methods, put DCL below TCL at 16 too. On a tenth of the images, after 10
  epochs at a temperature of 0.2, TCL differs from SimCLR with equally many views by
  -0.1 [-2.1, 1.8] (two) and -0.7 [-2.0, 0.7] (three), and by 0.3 [-0.5, 1.2] and 1.2 [0.3, 2.1] of
  the linear probe. The third view gives SimCLR 1.4 [0.8, 2.1] and 0.6 [-0.5, 1.6]
  ([document](studies/small/views.json)).
- **SimCLR at a temperature of 0.05** cannot be told from DCL by k-NN at 64 and 256. At 16 it
  differs by {dcl[simclr_tuned][16]}.
- **AUC-CL** is above SimCLR at 0.5 at every batch size, by both probes, and differs from DCL by
  {dcl[auc_cl][16]} at 16, {dcl[auc_cl][64]} at 64 and {dcl[auc_cl][256]} at 256. It needs no matrix
  of all pairs, which matters for very large batches. Its three constants, in place of a
  temperature, were chosen on validation images. The sum of eq. 8 as printed, in place of the
  recommended preset, cannot be told from it at 16, and loses accuracy as the batch grows. At 256 it
  has the lowest mean of all losses: use the preset.
- **DeCL** and **MMCL** by the closed form, with their papers' constants, cannot be told from
  SimCLR at 0.5. With tuned constants (temperature 0.2, weight 1, mean), DeCL is above it by k-NN at
  every batch size, and cannot be told from AUC-CL.
- **MMCL** by projected gradient differs from SimCLR at 0.5 by {simclr[mmcl][64]} at 64, and by
  {simclr[mmcl][16]} at 16 with one seed. A step costs 1.4 times as much, and 3.7 times at 256.
- **MoCo-v3** cannot be told from SimCLR at 0.5.
- **BYOL, Barlow Twins, VICReg, LeJEPA** and **NNCLR** with their papers' constants have one run at
  each batch size. All are below SimCLR at 0.5 with the same seed. With constants chosen on
  validation images, the differences from SimCLR at 0.5 at batch 64 are
  {simclr[barlow_twins_tuned][64]} (Barlow Twins), {simclr[vicreg_tuned][64]} (VICReg)
  and {simclr[byol_tuned][64]} (BYOL). From DCL, tuned Barlow Twins differs by
  {dcl[barlow_twins_tuned][64]} and tuned VICReg by {dcl[vicreg_tuned][64]}. At 16, the
  differences from SimCLR are {simclr[barlow_twins_tuned][16]} (Barlow Twins, one seed),
  {simclr[vicreg_tuned][16]} (VICReg) and {simclr[byol_tuned][16]} (BYOL), and at 256, with one
  seed, {simclr[barlow_twins_tuned][256]} (Barlow Twins), {simclr[vicreg_tuned][256]} (VICReg) and
  {simclr[byol_tuned][256]} (BYOL). So far
  losses without negatives show no advantage at these batch sizes.
- **XBM**, 4096 past embeddings as negatives of SimCLR, fails in small batches, with one seed: at
  16, where they are of 128 steps, the network collapses, and at 64, of 32 steps, it hardly
  surpasses an untrained one. It moves away from its past embeddings
  ([why, and with fewer](measurements.md#constants-chosen-on-validation-images)). At 256, of 8
  steps, it differs from SimCLR by {simclr[xbm][256]}.

These differences are in points of k-NN at equal epochs, with the 95 % interval of each single
comparison ([all differences](#differences-on-all-of-cifar-10)). Networks are small and runs short,
and longer training may change the order. Methods may also differ in what they gain by another
schedule of the learning rate: on validation images, in ten epochs without a warm-up and cosine,
AUC-CL gains 2.2 points, SimCLR at 0.05 gains 1.2, and AUC-CL stays below it by 1.0
([measurements](measurements.md#constants-chosen-on-validation-images)).

On a fifth of the images, by k-NN, AUC-CL cannot be told from SimCLR at 0.05 at 16 and 64, and at
256 SimCLR at 0.05 is above AUC-CL and DeCL. TCL has the highest mean of seven methods at 64
([measurements](measurements.md#on-a-fifth-of-cifar-10)). On a fifth of Fashion-MNIST, with the
same constants, DCL, TCL, AUC-CL and the tuned DeCL are above SimCLR at 0.5 by 0.9 to 1.4 points of
k-NN at 16, where DCL and AUC-CL have the highest means. SogCLR, at +0.6 [-0.1, 1.4], cannot be told
from it. At equal steps on a fifth of CIFAR-10, accuracy rises with the batch, because a run at a
larger one sees more images. By k-NN, TCL is above SimCLR at 0.5 there by 2.1 to 4.2 points at each
of the three sizes, AUC-CL is at 64 and 256, and DCL at 64. Digits decide little, because their
probes are near the ceiling.

"""

BIAS = """\
## Gradient bias and accuracy

The relative bias of the minibatch gradient ([gradient bias](studies.md#gradient-bias), measured
with fixed embeddings) against the k-NN accuracy above, for the losses and batch sizes that both
have. SogCLR and DeCL are measured after their moving averages have settled. If the bias determined
accuracy, accuracy would fall to the right.

![k-NN accuracy against the bias of the gradient, at batch 16 and 64, for three data
sets](bias_accuracy.png)

Rank correlation of bias and accuracy (Spearman), where four losses or more are measured. If
the bias determined accuracy, values would be near -1. With five or six losses they are
inconclusive:

"""

LEAD = """\
## AUC-CL's lead by number of images and epochs

Accuracy of AUC-CL minus that of SimCLR at temperature 0.05, in points, paired by seed, with
95 % intervals of Student's t, for training sets of a tenth, a fifth, a half and all of CIFAR-10's
images. The first two are tested on a fifth of the test images, the others on all. By k-NN, AUC-CL
is behind at batch 64 with 5 000 and 25 000 images, and at 256 with 10 000 and 50 000. It is ahead
at 16 with 50 000 images, and by the linear probe with 10 000 in 10 epochs, with 25 000, and with
50 000 with an interval that begins at zero. No other lead can be told from zero. The intervals are
not corrected for their number.

At batch 16, the mean of the k-NN lead is below zero on few images in few epochs, and above zero
with more of either. At 64 it is below zero in all settings but that of all images, also after 60
epochs. So the deficit at 16 may be one of small sets and short runs, but more epochs have not
removed it at 64.

![k-NN accuracy of AUC-CL and SimCLR at temperature 0.05 against the images seen in training, at
batch 16 and 64](images_seen.png)

"""
# Documents with both methods, by the numbers of training images and of epochs.
LEADS = {
    (5000, 20): "small/batch_size-tenth",
    (10000, 10): "small/batch_size-10_epochs",
    (10000, 20): DOCUMENTS["A fifth of CIFAR-10"],
    (10000, 60): "small/batch_size-60_epochs",
    (25000, 20): "small/batch_size-half",
    (50000, 20): DOCUMENTS["All of CIFAR-10"],
}

COST = """\
## What a step costs

Time of a whole training step, augmentation included, relative to SimCLR's in the same round (median
[range] of five rounds), and memory of the compiled step, its arguments included. Network and size
of images are those of the tables of CIFAR-10. Most of the time is the network's, and AUC-CL, DeCL,
DCL and SogCLR cost what SimCLR costs. What stands out are the second encoder or the third view of
MoCo-v3, BYOL, DINO and TCL, the memories of NNCLR and XBM at batch 16, and MMCL's iterative solver
and LeJEPA at batch 256.
[measurements](measurements.md#what-a-step-costs) has the steps of the demo's smaller network, where
the loss is a larger part.

    {command}

{where}.

"""

DIFFERENCES = """\
## Differences on all of CIFAR-10

Accuracy minus that of SimCLR or DCL, in points, paired by seed, with the 95 % interval of Student's
t over three seeds. A number without an interval is of one seed, or of two whose differences are
equal. Unlike the tests above, intervals are of single comparisons, and not corrected for their
number.

"""

EPOCHS = """\
## Last and best epoch

The tables have the accuracy after the last epoch. With a cosine schedule the last epoch is nearly
the best one, except with XBM at 16, where the network collapses: k-NN accuracy on the test images
in the best of the evaluated epochs (every fourth) minus that in the last, in points (the largest of
so many seeds), for runs on all of CIFAR-10 whose evaluations are in the document.

"""

Accuracies = dict[str, dict[int, dict[int, float]]]  # by loss, batch size and seed


class Board(NamedTuple):
    """The results of a document.

    Attributes:
        where: data, epochs and seeds.
        command: the command that measured them.
        accuracies: by metric.
        baselines: accuracy of raw pixels and of the untrained network, by metric.
    """

    where: str
    command: str
    accuracies: dict[str, Accuracies]
    baselines: dict[str, dict[str, float]]

    def seeds(self, metric: str) -> dict[int, set[int]]:
        """Return the seeds that any loss has, by batch size."""
        seeds: dict[int, set[int]] = {}
        for cells in self.accuracies[metric].values():
            for size, values in cells.items():
                seeds.setdefault(size, set()).update(values)
        return seeds


def document_of(name: str) -> dict:
    """Read a document of docs/studies."""
    return json.loads((DOCS / "studies" / f"{name}.json").read_text(encoding="utf-8"))


def read(name: str) -> Board:
    """Read a document of the study `batch_size`."""
    document = document_of(name)
    data = document["data"]
    # Documents without a list of runs have accuracies by cell, in the order of the seeds.
    runs = data.get("runs") or [
        {
            "cell": cell.split(),
            "seed": seed,
            "metrics": {metric: values[seed] for metric, values in metrics.items()},
        }
        for cell, metrics in data["results"].items()
        for seed in range(len(next(iter(metrics.values()))))
    ]
    accuracies: dict[str, Accuracies] = {metric: {} for metric in METRICS}
    for run in sorted(runs, key=lambda run: list(NAMES).index(run["cell"][0])):
        loss, size = run["cell"]
        for metric, sizes in accuracies.items():
            cell = sizes.setdefault(loss, {}).setdefault(int(size), {})
            if (value := run["metrics"][metric]) is not None:  # The run has not diverged.
                cell[run["seed"]] = value
    return Board(document["where"], document["command"], accuracies, data["baselines"])


def tested_losses(cells: dict[str, dict[int, float]]) -> tuple[list[int], list[str]]:
    """Return the seeds, and the losses that have all of them, the highest mean first.

    Nothing can be tested with fewer than two seeds or losses. Both lists are then empty.
    """
    seeds = sorted({seed for values in cells.values() for seed in values})
    losses = [loss for loss, values in cells.items() if len(values) == len(seeds)]
    losses.sort(key=lambda loss: mean(cells[loss].values()), reverse=True)
    return (seeds, losses) if min(len(seeds), len(losses)) > 1 else ([], [])


def winner(cells: dict[str, dict[int, float]]) -> str | None:
    """Return the loss that is significantly better than every other one, None without one.

    Paired t-tests over seeds are corrected by Holm. Losses without all seeds are not tested.

    Args:
        cells: accuracy by loss and seed.
    """
    seeds, losses = tested_losses(cells)
    if not losses:
        return None
    best, p_values = losses[0], {}
    for loss in losses[1:]:
        pair = [[cells[name][seed] for seed in seeds] for name in (best, loss)]
        # Equal differences of all seeds decide nothing: their test would give p = 0.
        undecided = are_equal([a - b for a, b in zip(*pair, strict=True)])
        p_values[loss] = 1.0 if undecided else float(ttest_rel(*pair).pvalue)
    return best if holm(p_values) == p_values.keys() else None


def holm(p_values: dict[str, float]) -> set[str]:
    """Return the keys whose hypotheses Holm's correction rejects at `LEVEL`."""
    rejected = set()
    for rank, key in enumerate(sorted(p_values, key=lambda key: p_values[key])):
        if not p_values[key] < LEVEL / (len(p_values) - rank):
            break
        rejected.add(key)
    return rejected


def not_below(cells: dict[str, dict[int, float]]) -> tuple[list[str], list[str]]:
    """Return the tested losses, and those not significantly below the best, highest mean first.

    In an analysis of variance, an accuracy is the mean of its loss, plus an effect of its seed,
    plus noise of the same spread for all losses. The t-tests against the best loss are corrected by
    Holm. Losses without all seeds are not tested.

    Args:
        cells: accuracy by loss and seed.
    """
    seeds, losses = tested_losses(cells)
    if not losses:
        return [], []
    values = np.array([[cells[loss][seed] for seed in seeds] for loss in losses])
    means = values.mean(1)
    noise = values - means[:, None] - values.mean(0) + values.mean()
    freedom = (len(losses) - 1) * (len(seeds) - 1)
    error = np.sqrt(2 * (noise**2).sum() / freedom / len(seeds))
    chances = 2 * t.sf((means[0] - means[1:]) / error, freedom)
    below = holm(dict(zip(losses[1:], chances.tolist(), strict=True)))
    return losses, [loss for loss in losses if loss not in below]


def table(board: Board, metric: str, shown: Collection[str], note: bool = False) -> str:
    """Return a table of losses by batch size, with a row of those not below the best.

    Args:
        board: the results. All its losses take part in the tests.
        metric: the accuracy to show.
        shown: the losses that have a row.
        note: whether to list the losses that are not below the best, by batch size.
    """
    accuracies = board.accuracies[metric]
    sizes = sorted({size for cells in accuracies.values() for size in cells})
    # Runs that diverged have no accuracy.
    columns = {
        size: {loss: cells[size] for loss, cells in accuracies.items() if cells.get(size)}
        for size in sizes
    }
    winners = {size: winner(cells) for size, cells in columns.items()}
    rows = []
    for loss in shown:
        texts = []
        for size, cells in columns.items():
            values = list(cells.get(loss, {}).values())
            without = "diverged" if size in accuracies[loss] else "not run"
            text = f"{mean(values):.1f}" if values else without
            text += f" ± {stdev(values):.1f}" if len(values) > 1 else ""
            texts.append(f"**{text}**" if loss == winners[size] else text)
        rows.append([NAMES[loss], *texts])
    for key, name in (("raw", "raw pixels"), ("untrained", "untrained network")):
        value = f"{board.baselines[key][metric]:.1f}"
        rows.append([name, *[value] * len(sizes)])
    lines = markdown_table(["loss", *(f"B = {size}" for size in sizes)], rows)
    for size, cells in columns.items() if note else ():
        tested, level = not_below(cells)
        names = "; ".join(NAMES[loss] for loss in level) or "not tested"
        lines += f"\n- B = {size}, not significantly below the best: {names}."
        rest = "; ".join(NAMES[loss] for loss in cells if loss not in tested)
        if tested and rest:
            lines += f" Not tested, without all seeds: {rest}."
    return lines + "\n" if note else lines


def differences(accuracies: Accuracies, reference: str) -> dict[str, dict[int, str]]:
    """Return the differences of each loss from another one, by loss and batch size.

    A difference is the mean over the seeds that both have, with its 95 % interval, which one seed
    does not give.
    """
    texts: dict[str, dict[int, str]] = {loss: {} for loss in accuracies}
    for loss, cells in accuracies.items():
        for size, ours in cells.items():
            theirs = accuracies[reference].get(size, {})
            if not (seeds := sorted(ours.keys() & theirs.keys())):
                texts[loss][size] = "not run" if ours else "diverged"
                continue
            pair = [[values[seed] for seed in seeds] for values in (ours, theirs)]
            values = [a - b for a, b in zip(*pair, strict=True)]
            text = f"{mean(values):+.1f}"
            # The interval of two equal differences would be their value alone.
            if len(seeds) > 1 and not are_equal(values):
                low, high = ttest_rel(*pair).confidence_interval()
                text += f" [{low:+.1f}, {high:+.1f}]"
            texts[loss][size] = text + (", 2 seeds" if len(seeds) == 2 else "")
    return texts


def complete(board: Board, metric: str) -> list[str]:
    """Return the losses that have every seed at every batch size."""
    return [
        loss
        for loss, cells in board.accuracies[metric].items()
        if {size: set(seeds) for size, seeds in cells.items()} == board.seeds(metric)
    ]


def page() -> str:
    """Return the text of docs/leaderboard.md."""
    knn = read(DOCUMENTS["All of CIFAR-10"]).accuracies["knn_top1"]
    by_reference = {loss: differences(knn, loss) for loss in ("simclr", "dcl", "tcl")}
    by_reference["five"] = differences(read(FIVE).accuracies["knn_top1"], "simclr")
    text = INTRODUCTION.format_map(by_reference)
    for title, name in DOCUMENTS.items():
        board = read(name)
        text += f"## {title}\n\n{board.where}.\n\n    {board.command}\n"
        if name in NOTES:
            note, sizes = NOTES[name]
            text += note + FROM_SIMCLR + differences_table(board, sizes)
        text += PICTURE if name == DOCUMENTS["All of CIFAR-10"] else ""
        for metric, label in METRICS.items():
            rows = table(board, metric, list(board.accuracies[metric]), note=name != FIVE)
            rows = rows.replace("**", "") if name == FIVE else rows  # It lacks the best losses.
            text += f"\n### {label}\n\n{rows}"
        text += "\n"
    text += differences_section() + epochs_section() + cost_section()
    text += lead_section() + bias_section()
    return text.rstrip() + "\n"


def differences_table(board: Board, sizes: Collection[int]) -> str:
    """Return a table of the differences from SimCLR, with a row for each loss and batch size."""
    by_metric = {m: differences(board.accuracies[m], "simclr") for m in METRICS}
    rows = [
        [NAMES[loss], str(size), *(by_metric[metric][loss][size] for metric in METRICS)]
        for loss in board.accuracies["knn_top1"]
        for size in sizes
        if loss != "simclr" and size in by_metric["knn_top1"][loss]
    ]
    return markdown_table(["loss", "B", *METRICS.values()], rows)


def differences_section() -> str:
    """Return tables of the differences from SimCLR and from DCL."""
    text, board = DIFFERENCES, read(DOCUMENTS["All of CIFAR-10"])
    for reference in ("simclr", "dcl"):
        for metric, label in METRICS.items():
            by_loss = differences(board.accuracies[metric], reference)
            sizes = sorted(board.seeds(metric))
            rows = [
                [NAMES[loss], *(cells.get(size, "not run") for size in sizes)]
                for loss, cells in by_loss.items()
                if loss != reference
            ]
            heads = ["loss", *(f"B = {size}" for size in sizes)]
            text += f"### {label}, differences from {NAMES[reference]}\n\n"
            text += f"{markdown_table(heads, rows)}\n"
    return text


def error_bars(
    axes: Axes, values: Mapping[int, list[float]] | Mapping[float, list[float]], **style: object
) -> None:
    """Plot means and standard deviations of the values by x."""
    deviations = [stdev(v) if len(v) > 1 else 0 for v in values.values()]
    axes.errorbar(list(values), [mean(v) for v in values.values()], deviations, capsize=2, **style)


def draw(board: Board, shown: Collection[str], dark: bool) -> None:
    """Plot the accuracies against the batch size, for a page in light or dark colours."""
    more = read(FIVE).accuracies["knn_top1"]
    accuracies = {
        loss: dict(sorted((cells | more.get(loss, {})).items()))
        for loss, cells in board.accuracies["knn_top1"].items()
    }
    text = "#e6e6e6" if dark else "#1b1b1b"
    style = dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), text)
    lines = {"axes.edgecolor": "#808080", "grid.color": "#80808040", "axes.grid": True}
    hidden = {"axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "jaxssl"}
    with matplotlib.rc_context({**style, **lines, **hidden}):
        figure = Figure(figsize=(7, 5.6), layout="constrained")
        axes = figure.add_subplot(xlabel="batch size", ylabel="k-NN top-1, %")
        for number, name in enumerate(shown):
            shift = 2 ** (0.02 * (number - len(shown) / 2))  # Error bars would hide each other.
            cells = {
                size * shift: list(seeds.values())
                for size, seeds in accuracies[name].items()
                if seeds
            }
            colour, line = STYLES[name]
            style = {"color": colour, "linestyle": line, "marker": "o", "markersize": 4}
            error_bars(axes, cells, **style, linewidth=1.2, label=NAMES[name])
        axes.set_xscale("log", base=2)
        sizes = sorted({size for name in shown for size in accuracies[name]})
        axes.set_xticks(sizes, map(str, sizes))
        axes.minorticks_off()
        figure.legend(loc="outside right center", frameon=False)
        path = DOCS / f"leaderboard-{'dark' if dark else 'light'}.svg"
        figure.savefig(path, transparent=dark, metadata={"Date": None})


def biases() -> dict[str, dict[int, float]]:
    """Return the relative bias of the gradient by loss and batch size, the mean over data sets."""
    data = document_of("tiny/gradient_bias")["data"]
    # The last entry of a size is that of averages which have seen the most epochs.
    return {
        loss: {
            int(size): mean(one["bias"] for one in ages[max(ages, key=int)])
            for size, ages in sizes.items()
        }
        for loss, sizes in data.items()
    }


def bias_section() -> str:
    """Plot accuracies against biases, and return the section about them."""
    by_loss = biases()
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    rows = []
    colours = ("#d55e00", "#009e73", "#cc79a7")
    titles = ("All of CIFAR-10", "A fifth of CIFAR-10", "Handwritten digits")
    for title, colour in zip(titles, colours, strict=True):
        accuracies = read(DOCUMENTS[title]).accuracies["knn_top1"]
        for size, axes in zip((16, 64), panels, strict=True):
            points = {
                loss: (bias[size], mean(accuracies[loss][size].values()))
                for loss, bias in by_loss.items()
                if accuracies.get(loss, {}).get(size)
            }
            if not points:
                continue
            x, y = zip(*points.values(), strict=True)
            axes.scatter(x, [value - max(y) for value in y], color=colour, label=title)
            for loss, (bias, accuracy) in points.items():
                name = NAMES[loss].partition(", temperature")[0]
                # Names of neighbouring points are on different sides of them.
                side = "right" if bias > 0.5 or title == titles[1] else "left"
                height = "top" if title == titles[2] or loss == "sogclr" else "bottom"
                where = {"horizontalalignment": side, "verticalalignment": height}
                axes.annotate(f" {name} ", (bias, accuracy - max(y)), fontsize=7, **where)
            axes.set_xscale("symlog", linthresh=0.01)
            axes.set(title=f"batch {size}", xlabel="bias / gradient", xlim=(0, 2))
            if len(points) > 3:
                result = spearmanr(x, y)
                figures = (f"{result.statistic:.2f}", f"{result.pvalue:.2f}")
                rows.append([title, str(size), str(len(points)), *figures])
    panels[0].set_ylabel("k-NN, points below the best")
    panels[1].legend(fontsize=7, loc="lower right")
    figure.savefig(DOCS / "bias_accuracy.png", dpi=100)
    return BIAS + markdown_table(["data", "batch size", "losses", "correlation", "p"], rows)


def lead_section() -> str:
    """Plot accuracies by images seen, and return the section about AUC-CL's lead over SimCLR."""
    accuracies = {setting: read(name).accuracies for setting, name in LEADS.items()}
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    for size, axes in zip((16, 64), figure.subplots(1, 2, sharey=True), strict=True):
        for images, marker in {5000: "v", 10000: "o", 25000: "s", 50000: "D"}.items():
            for loss in ("auc_cl", "simclr_tuned"):
                values = {
                    count * epochs: list(by_metric["knn_top1"][loss][size].values())
                    for (count, epochs), by_metric in accuracies.items()
                    if count == images
                }
                style = {"marker": marker, "markersize": 5, "color": STYLES[loss][0]}
                style["linestyle"] = "-" if len(values) > 1 else ""
                error_bars(axes, values, label=f"{NAMES[loss]}, {images} images", **style)
        axes.set(title=f"batch {size}", xlabel="images seen", xscale="log")
        axes.grid(color="#80808040")
    figure.axes[0].set_ylabel("k-NN top-1, %")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=7)
    figure.savefig(DOCS / "images_seen.png", dpi=100)
    rows, sizes = [], (16, 64, 256)
    for (images, epochs), by_metric in accuracies.items():
        for metric, label in METRICS.items():
            leads = differences(by_metric[metric], "simclr_tuned")["auc_cl"]
            cells = [leads.get(size, "not run") for size in sizes]
            rows.append([f"{images:,}".replace(",", " "), str(epochs), label, *cells])
    heads = ["images", "epochs", "probe", *(f"B = {size}" for size in sizes)]
    return f"{LEAD}{markdown_table(heads, rows)}\n"


def cost_section() -> str:
    """Return the section about the time and the memory of a step."""
    document = document_of("small/step_cost")
    sizes = document["data"]
    heads = [*(f"B = {size}" for size in sizes), f"MiB at {', '.join(sizes)}"]
    rows = []
    for loss, name in NAMES.items():
        if any(loss not in costs for costs in sizes.values()):
            continue
        texts = []
        for costs in sizes.values():
            pairs = zip(*(costs[key]["milliseconds"] for key in (loss, "simclr")), strict=True)
            ratios = [ours / theirs for ours, theirs in pairs]
            texts.append(f"{median(ratios):.2f} [{min(ratios):.2f}-{max(ratios):.2f}]")
        texts.append(", ".join(f"{costs[loss]['bytes'] / 2**20:.0f}" for costs in sizes.values()))
        rows.append([name, *texts])
    return f"{COST.format_map(document)}{markdown_table(['loss', *heads], rows)}\n"


def epochs_section() -> str:
    """Return the section about the last and the best epoch, "" if no run has its evaluations."""
    gaps: dict[str, dict[int, list[float]]] = {}
    for run in document_of(DOCUMENTS["All of CIFAR-10"])["data"]["runs"]:
        if values := [row["knn_top1"] for row in run.get("history", ())]:
            loss, size = run["cell"]
            gaps.setdefault(loss, {}).setdefault(int(size), []).append(max(values) - values[-1])
    sizes = sorted({size for cells in gaps.values() for size in cells})
    rows = []
    for loss in [loss for loss in NAMES if loss in gaps]:
        cells = [gaps[loss].get(size) for size in sizes]
        texts = [f"{max(cell):.1f} (of {len(cell)})" if cell else "" for cell in cells]
        rows.append([NAMES[loss], *texts])
    heads = ["loss", *(f"B = {size}" for size in sizes)]
    return f"{EPOCHS}{markdown_table(heads, rows)}\n" if gaps else ""


def main() -> None:
    """Write the page, both pictures, and the table of README.md."""
    (DOCS / "leaderboard.md").write_text(page(), encoding="utf-8")
    board = read(next(iter(DOCUMENTS.values())))
    shown = complete(board, "knn_top1")
    for dark in (False, True):
        draw(board, shown, dark)
    readme = DOCS.parent / "README.md"
    text = readme.read_text(encoding="utf-8")
    text = TABLE.sub(lambda match: match[1] + table(board, "knn_top1", shown) + match[2], text)
    readme.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
