"""Training curves of one run by step, or of several runs by epoch."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from matplotlib.figure import Figure

from jaxssl.report.images import DASHES, MARKERS, Image, embed_png, figure_png
from jaxssl.report.runs import Group
from jaxssl.report.workdir import flatten, is_finite, metric_series
from jaxssl.training.output.metrics_writer import Row


class Curve(NamedTuple):
    """Title, axes and metrics of a figure of training curves.

    Attributes:
        label: of the vertical axis.
        keys: of metrics.jsonl, one for each line, separated by spaces.
        caption: how to read the figure.
    """

    label: str
    keys: str
    caption: str


SPREAD = Curve(
    "feature std × √d", "feature_std", "1: spread evenly; near 0: all embeddings are equal."
)
RANK = Curve(
    "effective rank",
    "effective_rank",
    "Number of dimensions in use, at most the embedding size and the number of views in a batch. "
    "A fall towards 1 is a collapse.",
)
ALIGNMENT = Curve(
    "alignment", "alignment", "Squared distance between two views of an image: lower is closer."
)
UNIFORMITY = Curve(
    "uniformity", "uniformity", "Lower is more evenly spread; 0 is a collapse to one point."
)
RUN_CURVES = (
    Curve("loss", "loss", "The training loss should fall, then level off."),
    Curve(
        "held-out loss",
        "held_out_loss",
        "The training loss on the test split. It rises while the training loss falls if the "
        "network fits the training examples only.",
    ),
    Curve("k-NN top-1, %", "knn_top1", "Measured during training: higher is better."),
    Curve(
        "online linear top-1, %",
        "online_linear_top1",
        "Accuracy of a linear classifier that is trained during pretraining: higher is better.",
    ),
    Curve(
        "mean cosine",
        "positive_similarity negative_similarity",
        "Views of one image (solid) should stay well above views of different images (dashed).",
    ),
    *(SPREAD, RANK, ALIGNMENT, UNIFORMITY),
    Curve("learning rate", "learning_rate", "Bends in the other curves may start here."),
)
# The loss has no curve here, because its values are not comparable between methods.
COMPARISON_CURVES = (
    Curve("online k-NN top-1, %", "knn_top1", "Measured during training: higher is better."),
    *(SPREAD, RANK),
    Curve("cosine of two views", "positive_similarity", "Mean over views of one image."),
    Curve("cosine of two images", "negative_similarity", "Mean over views of different images."),
    *(ALIGNMENT, UNIFORMITY),
)
RUN_LINES = (("#0b5394", "-"), ("#b45309", "--"))
# This is the palette of Okabe and Ito, which is safe for colour-blind readers.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#000000", "#cc79a7", "#e69f00", "#56b4e9")
MAX_MARKERS = 10  # maximum number of markers on a curve
NARROW = 16  # legend names up to this many characters fit side by side
# Settings that the online k-NN accuracy depends on.
KNN_SETTINGS = (
    "eval.knn",
    *(f"data.{key}" for key in ("name", "path", "classes")),
    *(f"data.{key}_split" for key in ("train", "bank", "test")),
)


def run_curves(metrics: Sequence[Row]) -> list[Image]:
    """Draw the training curves of one run by step, one figure for each recorded metric."""
    return [image for curve in RUN_CURVES if (image := _run_curve(curve, metrics))]


def comparison_curves(groups: Sequence[Group]) -> list[Image]:
    """Draw the training curves of several runs by epoch, one figure for each recorded metric."""
    return [image for curve in COMPARISON_CURVES if (image := _comparison_curve(curve, groups))]


def _run_curve(curve: Curve, metrics: Sequence[Row]) -> Image | None:
    """Draw one figure of a run's training curves. Values that are not finite are gaps."""
    series = {key.replace("_", " "): metric_series(metrics, key) for key in curve.keys.split()}
    series = {name: (x, y) for name, (x, y) in series.items() if x}
    if not series:
        return None
    figure = Figure(figsize=(4, 2.7), layout="constrained")
    axes = figure.add_subplot(xlabel="step", ylabel=curve.label)
    caption = curve.caption
    for (name, (x, y)), (colour, dashes) in zip(series.items(), RUN_LINES, strict=False):
        axes.plot(x, y, dashes, color=colour, marker="." if len(x) <= 30 else None, label=name)
        gaps = sum(not is_finite(value) for value in y)
        caption += f" {gaps} of {len(y)} values are not finite and left blank." if gaps else ""
    if " " in curve.keys:
        axes.legend(frameon=False)
    ends = "; ".join(f"{name} {_ends(y)}" for name, (_, y) in series.items())
    alt = f"curve of {curve.label} by step: {ends}"
    return embed_png(figure_png(figure), alt, "plot", caption)


def _comparison_curve(curve: Curve, groups: Sequence[Group]) -> Image | None:
    columns = 1 if any(len(group.short_name) > NARROW for group in groups) else 2
    figure = Figure(figsize=(4, 2.7 + 0.2 * -(-len(groups) // columns)), layout="constrained")
    axes = figure.add_subplot(xlabel="epoch", ylabel=curve.label)
    ends, missing = [], []
    for i, group in enumerate(groups):
        colour, marker = COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]
        dashes = DASHES[i % len(DASHES)]
        plot = partial(axes.plot, color=colour, marker=marker, linestyle=dashes, markersize=4)
        label: str | None = group.short_name
        for run in group.runs:
            x, y = metric_series(run.metrics, curve.keys, by="epoch")
            if not any(map(is_finite, y)):
                missing.append(run.name)
                continue
            plot(x, y, markevery=max(1, len(x) // MAX_MARKERS), label=label)
            label = None  # The seeds of a config share one legend entry.
            ends.append(f"{run.name} {_ends(y)}")
    if not ends:
        return None
    figure.legend(loc="outside lower center", ncols=columns, frameon=False, fontsize="small")
    caption = curve.caption
    if curve.keys == "knn_top1":
        configs = [dict(flatten(group.runs[0].config)) for group in groups]
        different = [k for k in KNN_SETTINGS if len({str(config.get(k)) for config in configs}) > 1]
        if different:
            names = ", ".join(different)
            caption += f" Runs cannot be compared where these settings differ: {names}."
    caption += f" Not recorded: {', '.join(missing)}." if missing else ""
    alt = f"curves of {curve.label} by epoch: {'; '.join(ends)}"
    return embed_png(figure_png(figure), alt, "plot", caption)


def _ends(values: Sequence[float]) -> str:
    return f"from {values[0]:.4g} to {values[-1]:.4g}"
