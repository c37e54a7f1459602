"""Line plots and axes in the style of the studies."""

from collections.abc import Mapping, Sequence
from math import nan
from statistics import stdev

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxssl.report.images import DASHES, MARKERS, figure_style
from jaxssl.studies.verdicts import finite, mean

# Values of x, which may be text, and for each x the values of the seeds.
Line = tuple[Sequence[float | str], Sequence[Sequence[float]]]


def make_axes(**settings: object) -> tuple[Figure, Axes]:
    """Return a matplotlib figure in the style of the studies, and the figure's only axes.

    Args:
        **settings: arguments of `matplotlib.figure.Figure.add_subplot`, such as ``xlabel``.
    """
    with figure_style():
        figure = Figure(figsize=(7.2, 4.4), layout="constrained")
        return figure, figure.add_subplot(**settings)


def plot_lines(
    series: Mapping[str, Line],
    xlabel: str,
    ylabel: str,
    *,
    log: str = "",
    levels: Mapping[str, float] | None = None,
) -> Figure:
    """Plot the means over seeds as lines, with error bars of one standard deviation.

    Values that are not finite are left out. A single value has no bar. The lines differ in colour,
    marker and dashes.

    Args:
        series: lines by the names in the legend.
        xlabel: label of the x axis.
        ylabel: label of the y axis.
        log: logarithmic axes: "x" (base 2, with ticks at the values of x), "y", "xy" or "".
        levels: y of horizontal lines by name, such as the accuracy of an untrained network.
    """
    figure, axes = make_axes(xlabel=xlabel, ylabel=ylabel)
    for i, (name, (x, seeds)) in enumerate(series.items()):
        means = [mean(values) for values in seeds]
        bars = [stdev(values) if len(values) > 1 else nan for values in map(finite, seeds)]
        marker, dashes = MARKERS[i % len(MARKERS)], DASHES[i % len(DASHES)]
        axes.errorbar(x, means, bars, marker=marker, linestyle=dashes, capsize=3, label=name)
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
