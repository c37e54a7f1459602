"""Training curves of one run by step, or of several runs by epoch."""

import textwrap
import tomllib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from jaxssl.report.images import DASHES, ENDS, MARKERS, Image, embed_png, figure_png, legend_label
from jaxssl.report.runs import Group
from jaxssl.report.workdir import flatten, is_finite, metric_series
from jaxssl.training.output.metrics_writer import Row


class Curve(NamedTuple):
    """A figure of training curves, an entry of `templates/curves.toml`.

    Attributes:
        label: of the vertical axis.
        key: of metrics.jsonl.
        caption: how to read the figure.
        other_key: of metrics.jsonl, for a second line, or "".
    """

    label: str
    key: str
    caption: str
    other_key: str = ""


_FILE = Path(__file__).with_name("templates") / "curves.toml"
_CURVES = tomllib.loads(_FILE.read_text(encoding="utf-8"))
RUN_CURVES = [Curve(**curve) for curve in _CURVES["run"]]
_OF_RUN = {curve["key"]: curve for curve in _CURVES["run"]}
COMPARISON_CURVES = [
    Curve(**{**_OF_RUN.get(curve["key"], {}), **curve}) for curve in _CURVES["comparison"]
]
RUN_LINES = (("#0b5394", "-"), ("#b45309", "--"))
# This is the palette of Okabe and Ito, which is safe for colour-blind readers.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#000000", "#cc79a7", "#e69f00", "#56b4e9")
MAX_MARKERS = 10  # maximum number of markers on a curve
NARROW = 16  # legend names up to this many characters fit side by side
# These settings of config.data decide which examples of files and of Python data are tested.
FILE_SETTINGS = ("path", "classes", "labels", "test_fraction", "split_seed")
# Settings that the online k-NN accuracy depends on.
SPLITS = ("train_split", "bank_split", "test_split")
KNN_SETTINGS = ["eval.knn", *(f"data.{key}" for key in ("name", *SPLITS, *FILE_SETTINGS))]


def run_curves(metrics: Sequence[Row]) -> list[Image]:
    """Draw the training curves of one run by step, one figure for each recorded metric."""
    return [image for curve in RUN_CURVES if (image := _run_curve(curve, metrics))]


def comparison_curves(groups: Sequence[Group]) -> list[Image]:
    """Draw the training curves of several runs by epoch, one figure for each recorded metric."""
    return [image for curve in COMPARISON_CURVES if (image := _comparison_curve(curve, groups))]


def _run_curve(curve: Curve, metrics: Sequence[Row]) -> Image | None:
    """Draw one figure of a run's training curves, or None if the metric was not recorded.

    Values that are not finite are gaps.
    """
    figure = Figure(figsize=(4, 2.7), layout="constrained")
    axes = figure.add_subplot(xlabel="step", ylabel=curve.label)
    caption, ends = curve.caption, []
    for key, (colour, dashes) in zip((curve.key, curve.other_key), RUN_LINES, strict=True):
        x, y = metric_series(metrics, key)
        if not x:
            continue
        name = key.replace("_", " ")
        gaps = _gaps(y)
        # Between gaps, a value without a marker would be invisible.
        marker = "." if len(x) <= 30 or gaps else None
        axes.plot(x, y, dashes, color=colour, marker=marker, label=name)
        ends.append(f"{name} {_ends(y)}")
        if gaps:
            caption += f" {gaps} of {len(y)} values of {name} are not finite and left blank."
    if not ends:
        return None
    axes.set_xlim(left=0)
    if curve.other_key:
        axes.legend(frameon=False)
    alt = f"curve of {curve.label} by step: {'; '.join(ends)}"
    return embed_png(figure_png(figure), alt, "plot", caption)


def _comparison_curve(curve: Curve, groups: Sequence[Group]) -> Image | None:
    """Draw one figure with a line for each run, or None if no run has recorded the metric."""
    labels = _legend_labels(groups)
    columns = 1 if max(map(len, labels)) > NARROW else 2
    lines = sum(label.count("\n") + 1 for label in labels)
    figure = Figure(figsize=(4, 2.7 + 0.2 * -(-lines // columns)), layout="constrained")
    axes = figure.add_subplot(xlabel="epoch", ylabel=curve.label)
    ends, missing = [], []
    for i, group in enumerate(groups):
        colour, marker = COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]
        dashes = DASHES[i % len(DASHES)]
        plot = partial(axes.plot, color=colour, marker=marker, linestyle=dashes, markersize=4)
        label: str | None = labels[i]
        for run in group.runs:
            x, y = metric_series(run.metrics, curve.key, by="epoch")
            if not any(map(is_finite, y)):
                missing.append(run.name)
                continue
            # Between gaps, a value without a marker would be invisible.
            every = 1 if _gaps(y) else -(-len(x) // MAX_MARKERS)
            plot(x, y, markevery=every, label=label)
            label = None  # The seeds of a config share one legend entry.
            ends.append(f"{run.name} {_ends(y)}")
    if not ends:
        return None
    axes.set_xlim(left=0)
    figure.legend(loc="outside lower center", ncols=columns, frameon=False, fontsize="small")
    caption = curve.caption
    if curve.key == "knn_top1":
        configs = [dict(flatten(group.runs[0].config)) for group in groups]
        for config in configs:
            if config.get("data.bank_split"):  # k-NN does not read the training split then.
                config["data.train_split"] = ""
        different = [k for k in KNN_SETTINGS if len({str(c.get(k, "")) for c in configs}) > 1]
        if different:
            names = ", ".join(different)
            caption += f" Runs cannot be compared where these settings differ: {names}."
    if missing:
        caption += f" Not recorded: {', '.join(missing)}."
    alt = f"curves of {curve.label} by epoch: {'; '.join(ends)}"
    return embed_png(figure_png(figure), alt, "plot", caption)


def _legend_labels(groups: Sequence[Group]) -> list[str]:
    """Return the names of the groups, shortened if they still differ then, and else in lines."""
    short = [legend_label(group.name) for group in groups]
    return [
        "\n".join(textwrap.wrap(group.name, 2 * ENDS)) if short.count(label) > 1 else label
        for group, label in zip(groups, short, strict=True)
    ]


def _gaps(values: Sequence[float]) -> int:
    """Return the number of values that are not finite."""
    return sum(not is_finite(value) for value in values)


def _ends(values: Sequence[float]) -> str:
    finite = [value for value in values if is_finite(value)] or values
    return f"from {finite[0]:.4g} to {finite[-1]:.4g}"
