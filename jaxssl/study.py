"""A study: a claim of a paper, measured. What a study is told and what it finds.

A study is a file of `jaxssl/studies/`. It has ``CLAIMS``, what it tests by a short name, and
``run(setting) -> Findings``; `python -m jaxssl.studies` finds it by its file name.
"""

from collections.abc import Mapping, Sequence
from math import isfinite, sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from jaxssl.errors import UserError, nearest

MARKERS = "osD^vPX*<>hd"
DASHES = ("-", "--", "-.", ":")
STYLE = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "legend.frameon": False,
}


class Setting(NamedTuple):
    """How large a study is.

    Attributes:
        scale: the name of a file of `configs/studies/`, which every run differs from.
        config: that file.
        dataset: `data.name` of all runs.
        seeds: how many; they are 0, 1, ...
        out: folder of the runs and of what the study writes.
        overrides: of all runs, (dotted key, text), from the command line.
        methods: some of `jaxssl.grid.METHODS`; () is the study's own choice.
        batch_sizes: likewise.
        workdir: of a run that a study is to look at; None takes one of its own.
    """

    scale: str
    config: Path
    dataset: str
    seeds: int
    out: Path
    overrides: tuple[tuple[str, str], ...] = ()
    methods: tuple[str, ...] = ()
    batch_sizes: tuple[int, ...] = ()
    workdir: Path | None = None


class Claim(NamedTuple):
    """What a paper says, and where."""

    text: str
    source: str


class Verdict(NamedTuple):
    """What was measured of a claim, in words, and whether the claim holds."""

    figure: str
    holds: bool


class Table(NamedTuple):
    """A table of texts; the first cell of a row is its heading."""

    title: str
    heading: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


class Picture(NamedTuple):
    """A figure, its file name without ending, its text for those who do not see it, a caption."""

    name: str
    figure: Figure
    alt: str
    caption: str


class Findings(NamedTuple):
    """What a study found.

    Attributes:
        tables: in the order of the page.
        pictures: likewise.
        verdicts: by the names of ``CLAIMS``; those that this setting cannot tell are left out.
        data: all numbers, for the JSON document.
        where: on what data, with how many seeds and epochs, in words.
    """

    tables: Sequence[Table]
    pictures: Sequence[Picture]
    verdicts: Mapping[str, Verdict]
    data: Mapping[str, Any]
    where: str


def choose(asked: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """The methods that were asked for, or all that a study knows.

    Raises:
        UserError: on others.
    """
    for name in asked:
        if name not in known:
            raise UserError(f"--methods: {name!r} is none of this study{nearest(name, known)}")
    return tuple(asked or known)


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Mean ± standard deviation; of a single value no deviation, of none a dash."""
    values = [value for value in values if isfinite(value)]
    if not values:
        return "–"
    text = f"{fmean(values):.{digits}f}"
    return text + (f" ± {stdev(values):.{digits}f}" if len(values) > 1 else "")


def difference(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """Mean of the differences, value by value, and its standard error (0 of a single one)."""
    found = [a - b for a, b in zip(ours, theirs, strict=True)]
    error = stdev(found) / sqrt(len(found)) if len(found) > 1 else 0.0
    return fmean(found), error


def larger(ours: Sequence[float], theirs: Sequence[float], least: float = 0.0) -> Verdict:
    """Whether ``ours`` exceeds ``theirs``, seed by seed, by more than ``least``.

    It does if the mean difference is more than two standard errors above ``least``.
    """
    mean, error = difference(ours, theirs)
    words = f"{mean:+.2f} ± {error:.2f}" if len(ours) > 1 else f"{mean:+.2f}"
    return Verdict(words, mean - least > 2 * error)


def all_of(parts: Mapping[str, Verdict]) -> Verdict:
    """The verdict of a claim made of parts, which holds if all of them do."""
    figure = "; ".join(f"{name}: {part.figure}" for name, part in parts.items())
    return Verdict(figure, all(part.holds for part in parts.values()))


def curves(
    series: Mapping[str, tuple[Sequence[float], Sequence[Sequence[float]]]],
    xlabel: str,
    ylabel: str,
    *,
    log: str = "",
    levels: Mapping[str, float] | None = None,
) -> Figure:
    """Lines with deviations as bars; told apart by marker and dash, not by colour alone.

    Args:
        series: by name, x and for each x the values of the seeds.
        xlabel: of the axis.
        ylabel: likewise.
        log: "x", "y" or "xy": logarithmic axes.
        levels: horizontal lines by name, such as an untrained network's figure.
    """
    figure = Figure(figsize=(7.2, 4.4), layout="constrained")
    axes = figure.add_subplot(xlabel=xlabel, ylabel=ylabel)
    for i, (name, (x, seeds)) in enumerate(series.items()):
        mean = [fmean(values) for values in seeds]
        bars = [stdev(values) if len(values) > 1 else 0.0 for values in seeds]
        style = {"marker": MARKERS[i % len(MARKERS)], "linestyle": DASHES[i % len(DASHES)]}
        axes.errorbar(x, mean, bars, **style, capsize=3, markersize=5, label=name)
    for name, level in (levels or {}).items():
        axes.axhline(level, color="#666666", linestyle=(0, (1, 3)), linewidth=1)
        axes.annotate(name, (1, level), xycoords=("axes fraction", "data"), ha="right", va="bottom")
    if "x" in log:
        axes.set_xscale("log", base=2)
        ticks = sorted({value for x, _ in series.values() for value in x})
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
    if "y" in log:
        axes.set_yscale("log")
    figure.legend(loc="outside right upper", fontsize="small")
    return figure
