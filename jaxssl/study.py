"""A study: a claim of a paper, measured. What a study is told and what it finds.

A study is a file of `jaxssl/studies/`. It has ``CLAIMS``, what it tests by a short name, and
``run(setting) -> Findings``; and ``FLAGS``, which of "methods", "batch_sizes" and "workdir" it has
a use for. `python -m jaxssl.studies` finds it by its file name.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite, nan, sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import matplotlib
from matplotlib.figure import Figure
from scipy import stats

from jaxssl.errors import UserError, nearest
from jaxssl.plots import DASHES, MARKERS, STYLE


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
    """What was measured of a claim, in words, and whether the claim holds; None: cannot be told."""

    figure: str
    holds: bool | None


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


def of_scale(setting: Setting, values: Mapping[str, Any]) -> Any:
    """What a study takes at this scale; one of your own has the papers' values."""
    return values.get(setting.scale, values["paper"])


def choose(
    asked: Sequence[str], usual: Sequence[str], on_request: Sequence[str] = ()
) -> tuple[str, ...]:
    """The methods that were asked for, or the usual ones.

    Args:
        asked: the value of --methods.
        usual: the methods that a study compares if none are asked for.
        on_request: further methods that it knows.

    Raises:
        UserError: on others.
    """
    known = (*usual, *on_request)
    for name in asked:
        if name not in known:
            raise UserError(f"--methods: {name!r} is none of this study{nearest(name, known)}")
    return tuple(asked or usual)


def finite(values: Iterable[float | None]) -> list[float]:
    """Those that are; runs that were not finite have none."""
    return [value for value in values if value is not None and isfinite(value)]


def mean(values: Iterable[float | None]) -> float:
    """Of those that are finite; NaN if none is."""
    known = finite(values)
    return fmean(known) if known else nan


def spread(values: Sequence[float | None], digits: int = 2) -> str:
    """Mean ± standard deviation; of a single value no deviation, of none a dash."""
    known = finite(values)
    if not known:
        return "–"
    text = f"{fmean(known):.{digits}f}"
    text += f" ± {stdev(known):.{digits}f}" if len(known) > 1 else ""
    lost = len(values) - len(known)
    return text + (f" ({lost} of {len(values)} not finite)" if lost else "")


def larger(ours: Sequence[float], theirs: Sequence[float], digits: int = 2) -> Verdict:
    """Whether ``ours`` are larger than ``theirs``: a paired, one-sided t-test at 5 %.

    A single pair, or none that is finite, tells nothing.
    """
    both = zip(ours, theirs, strict=True)
    found = finite(a - b for a, b in both if a is not None and b is not None)
    if not found:
        return Verdict("not finite", None)
    middle = fmean(found)
    if len(found) == 1:
        return Verdict(f"{middle:+.{digits}f} (one pair)", None)
    error = stdev(found) / sqrt(len(found))
    words = f"{middle:+.{digits}f} ± {error:.{digits}f}"
    return Verdict(words, bool(middle > stats.t.ppf(0.95, len(found) - 1) * error))


def all_of(parts: Mapping[str, Verdict]) -> Verdict:
    """The verdict of a claim made of parts, which holds if all of them do."""
    figure = "; ".join(f"{name}: {part.figure}" for name, part in parts.items())
    told = [part.holds for part in parts.values()]
    return Verdict(figure, False if False in told else None if None in told else True)


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
        series: by name, x and for each x the values of the seeds; x may be words.
        xlabel: of the axis.
        ylabel: likewise.
        log: "x", "y" or "xy": logarithmic axes.
        levels: horizontal lines by name, such as an untrained network's figure.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 4.4), layout="constrained")
        axes = figure.add_subplot(xlabel=xlabel, ylabel=ylabel)
    for i, (name, (x, seeds)) in enumerate(series.items()):
        known = [finite(values) for values in seeds]
        bars = [stdev(values) if len(values) > 1 else 0.0 for values in known]
        style = {"marker": MARKERS[i % len(MARKERS)], "linestyle": DASHES[i % len(DASHES)]}
        axes.errorbar(x, [mean(k) for k in known], bars, **style, capsize=3, label=name)
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
    figure.legend(loc="outside right upper", fontsize="small", frameon=False)
    return figure
