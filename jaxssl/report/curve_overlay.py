"""The section of several runs' curves, one above the other."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from jaxssl.report import page
from jaxssl.report.drawing import figure_image
from jaxssl.report.plots import DASHES, MARKERS
from jaxssl.report.runs import Group
from jaxssl.report.workdir import is_finite, series

# Okabe and Ito's colours, which the colour-blind tell apart; markers and dashes tell more.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#000000", "#cc79a7", "#e69f00", "#56b4e9")
MARKED = 10  # points of a curve that bear a marker
NARROW = 16  # letters of names that stand side by side in a legend
OF_KNN = ("name", "path", "classes", "train_split", "bank_split", "test_split")

# label of the vertical axis: (key of metrics.jsonl, how to read it)
CURVES = {
    "online k-NN top-1, %": ("knn_top1", "Accuracy of neighbours' votes: higher is better."),
    "feature std × √d": ("feature_std", "1 is spread evenly; near 0 all embeddings are equal."),
    "effective rank": (
        "effective_rank",
        "Directions in use, at most as many as a batch has views or an embedding has dimensions: "
        "a fall towards 1 is a collapse.",
    ),
    "cosine of two views": ("positive_similarity", "Mean over views of one image."),
    "cosine of two images": ("negative_similarity", "Mean over views of different images."),
    "alignment": ("alignment", "Squared distance of two views of an image: lower is closer."),
    "uniformity": ("uniformity", "Lower is more evenly spread; 0 is a collapse to one point."),
}


def section(groups: Sequence[Group]) -> str:
    """A figure for each measure of `CURVES` that a run has recorded by epoch."""
    note = """<p>A line is a run; runs that differ in the seed alone share colour, marker and
dashes. The loss is left out: its values mean something else for every method. All measures but k-NN
are of the embeddings of a training batch.</p>"""
    found = [_curve(axis, key, how, groups) for axis, (key, how) in CURVES.items()]
    if not any(found):
        return page.section("Training", "<p>No training curve was recorded by epoch.</p>")
    return page.section("Training", f'{note}<div class="curves">\n{"".join(found)}</div>')


def _curve(axis: str, key: str, caption: str, groups: Sequence[Group]) -> str:
    columns = 1 if any(len(group.short) > NARROW for group in groups) else 2
    figure = Figure(figsize=(4, 2.7 + 0.2 * -(-len(groups) // columns)), layout="constrained")
    axes = figure.add_subplot(xlabel="epoch", ylabel=axis)
    said, without = [], []
    for i, group in enumerate(groups):
        style = {
            "color": COLOURS[i % len(COLOURS)],
            "marker": MARKERS[i % len(MARKERS)],
            "linestyle": DASHES[i % len(DASHES)],
            "markersize": 4,
        }
        label: str | None = group.short
        for run in group.runs:
            x, y = series(run.metrics, key, by="epoch")
            if not any(map(is_finite, y)):
                without.append(run.name)
                continue
            axes.plot(x, y, **style, markevery=max(1, len(x) // MARKED), label=label)
            label = None  # one entry of the legend for all seeds
            said.append(f"{run.name} from {y[0]:.4g} to {y[-1]:.4g}")
    if not said:
        return ""
    figure.legend(loc="outside lower center", ncols=columns, frameon=False, fontsize="small")
    if key == "knn_top1":
        caption += _knn_differs(groups)
    caption += f" Not recorded: {', '.join(without)}." if without else ""
    return page.figure(
        figure_image(figure, f"curves of {axis} by epoch: {'; '.join(said)}"), caption
    )


def _knn_differs(groups: Sequence[Group]) -> str:
    """A warning where the online figures are not of the same images or votes."""
    configs = [group.runs[0].config for group in groups]
    differ = [
        name
        for name, group, key in (
            ("eval.knn", "eval", "knn"),
            *((f"data.{key}", "data", key) for key in OF_KNN),
        )
        if len({str(config.get(group, {}).get(key)) for config in configs}) > 1
    ]
    if not differ:
        return ""
    return f" Heights cannot be compared where these differ: {', '.join(differ)}."
