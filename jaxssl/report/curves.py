"""The section of training curves."""

from matplotlib.figure import Figure

from jaxssl.report import page
from jaxssl.report.drawing import figure_image
from jaxssl.report.workdir import is_finite, series

CURVES = {  # label of the vertical axis: (keys of metrics.jsonl, how to read it)
    "loss": ("loss", "What training minimises: it should fall, then level off."),
    "k-NN top-1, %": ("knn_top1", "Accuracy of neighbours' votes in training: higher is better."),
    "mean cosine": (
        "positive_similarity negative_similarity",
        "Views of one image (solid) should stay well above different images (dashed).",
    ),
    "feature std × √d": ("feature_std", "1 is spread evenly; near 0 all embeddings are equal."),
    "effective rank": ("effective_rank", "Directions in use: a fall towards 1 is a collapse."),
    "alignment": ("alignment", "Squared distance of two views of an image: lower is closer."),
    "uniformity": ("uniformity", "Lower is more evenly spread; 0 is a collapse to one point."),
    "learning rate": ("learning_rate", "The optimiser's rate: bends elsewhere may start here."),
}
LINES = (("#0b5394", "-"), ("#b45309", "--"))


def section(metrics: list[dict]) -> str:
    """A figure for each measure of `CURVES` that was recorded."""
    found = [_curve(axis, keys.split(), how, metrics) for axis, (keys, how) in CURVES.items()]
    if not any(found):
        return page.section("Training", "<p>No training curve was recorded.</p>")
    return page.section("Training", f'<div class="curves">\n{"".join(found)}</div>')


def _curve(axis: str, keys: list[str], caption: str, metrics: list[dict]) -> str:
    """A figure, or "" if no key was recorded; values that are not finite are gaps."""
    found = {key.replace("_", " "): series(metrics, key) for key in keys}
    found = {name: (x, y) for name, (x, y) in found.items() if x}
    if not found:
        return ""
    figure = Figure(figsize=(4, 2.7), layout="constrained")
    axes = figure.add_subplot(xlabel="step", ylabel=axis)
    for (name, (x, y)), (colour, dashes) in zip(found.items(), LINES, strict=False):
        axes.plot(x, y, dashes, color=colour, marker="." if len(x) <= 30 else None, label=name)
        gaps = sum(not is_finite(value) for value in y)
        caption += f" {gaps} of {len(y)} values are not finite and left blank." if gaps else ""
    if len(keys) > 1:
        axes.legend(frameon=False)
    ends = "; ".join(f"{name} from {y[0]:.4g} to {y[-1]:.4g}" for name, (_, y) in found.items())
    return page.figure(figure_image(figure, f"curve of {axis} by step: {ends}"), caption)
