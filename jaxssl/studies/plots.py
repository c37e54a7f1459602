"""Line plots and axes in the style of the studies."""

from collections.abc import Mapping, Sequence
from statistics import stdev

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxssl.report.images import DASHES, MARKERS, figure_style
from jaxssl.studies.verdicts import finite, mean


def make_axes(**settings: object) -> tuple[Figure, Axes]:
    """Return a matplotlib figure, with one Axes object in it, in the style of the studies."""
    with figure_style():
        figure = Figure(figsize=(7.2, 4.4), layout="constrained")
        return figure, figure.add_subplot(**settings)


def plot_lines(
    series: Mapping[str, tuple[Sequence[float | str], Sequence[Sequence[float]]]],
    xlabel: str,
    ylabel: str,
    *,
    log: str = "",
    levels: Mapping[str, float] | None = None,
) -> Figure:
    """Plot lines with the standard deviation over seeds as bars.

    Args:
        series: by name, the values of x (may be text) and for each x the values of the seeds.
        xlabel: label of the axis.
        ylabel: label of the axis.
        log: logarithmic axes: "x", "y" or "xy".
        levels: horizontal lines by name, such as the accuracy of an untrained network.
    """
    figure, axes = make_axes(xlabel=xlabel, ylabel=ylabel)
    for i, (name, (x, seeds)) in enumerate(series.items()):
        numbers = [finite(values) for values in seeds]
        bars = [stdev(values) if len(values) > 1 else 0.0 for values in numbers]
        axes.errorbar(
            x,
            [mean(n) for n in numbers],
            bars,
            marker=MARKERS[i % len(MARKERS)],
            linestyle=DASHES[i % len(DASHES)],
            capsize=3,
            label=name,
        )
    for name, level in (levels or {}).items():
        axes.axhline(level, color="#666666", linestyle=(0, (1, 3)), linewidth=1)
        axes.annotate(name, (1, level), xycoords=("axes fraction", "data"), ha="right", va="bottom")
    if "x" in log:
        axes.set_xscale("log", base=2)
        ticks = sorted({float(value) for x, _ in series.values() for value in x})
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
    if "y" in log:
        axes.set_yscale("log")
    figure.legend(loc="outside right upper", fontsize="small", frameon=False)
    return figure
