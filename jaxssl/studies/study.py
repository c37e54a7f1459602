"""A study: a claim of a paper, measured. What a study is told and what it finds.

A study is a file of `jaxssl/studies/`. It has ``CLAIMS``, what it tests by a short name, and
``run(setting) -> Findings``; and ``FLAGS``, which of "methods", "batch_sizes", "equal_steps" and
"workdir" it has a use for. ``PAPER``, where a study has it, names the paper whose settings the
scale "paper" takes.
`jaxssl study` finds it by its file name.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import inf, isfinite, nan, sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import matplotlib
from matplotlib.figure import Figure
from scipy import stats

from jaxssl.errors import UserError, suggest
from jaxssl.report.images import DASHES, MARKERS, STYLE

LEVEL = 0.95  # of all intervals


class Setting(NamedTuple):
    """How large a study is.

    Attributes:
        scale: the name of a file of `configs/studies/`, which every run differs from.
        config: that file.
        dataset: `data.name` of all runs.
        seeds: how many; they are 0, 1, ...
        out: folder of the runs and of what the study writes.
        overrides: of all runs, (dotted key, text), from the command line.
        methods: some of `jaxssl.studies.grid.METHODS`; () is the study's own choice.
        batch_sizes: likewise.
        workdir: of a run that a study is to look at; None takes one of its own.
        equal_steps: all batch sizes take the steps of the scale's own, not its epochs.
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
    equal_steps: bool = False


class Claim(NamedTuple):
    """What a paper says, and where.

    Attributes:
        text: what is tested, in our words. A threshold of ours is called ours.
        source: the paper and the place, "DeCL, Table 1"; "ours, no paper" if no paper says it.
        quote: the paper's own words; "" if there is a figure alone.
        published: the paper's figures, in words.
        difference: the difference that the paper states, in the unit of our figure; of several
            the smallest. None if it states none.
    """

    text: str
    source: str
    quote: str = ""
    published: str = ""
    difference: float | None = None


class Verdict(NamedTuple):
    """What was measured of a claim, in words, and whether the claim holds; None: cannot be told."""

    measured: str
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
        verdicts: by the names of ``CLAIMS``; those that were not measured are left out.
        data: all numbers, for the JSON document.
        where: on what data, with how many seeds and epochs, in words.
    """

    tables: Sequence[Table]
    pictures: Sequence[Picture]
    verdicts: Mapping[str, Verdict]
    data: Mapping[str, Any]
    where: str


def scale_value(setting: Setting, values: Mapping[str, Any]) -> Any:
    """What a study takes at this scale; one of your own has the papers' values."""
    return values.get(setting.scale, values["paper"])


def scale_config(folder: Path, scale: str, paper: str = "") -> Path:
    """The config of a scale: that of the paper, such as paper_tcl.py, if it has one of its own."""
    own = folder / f"{scale}_{paper}.py"
    return own if own.exists() else folder / f"{scale}.py"


def select_methods(
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
            raise UserError(f"--methods: {name!r} is none of this study{suggest(name, known)}")
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


def interval(values: Sequence[float], level: float = LEVEL) -> tuple[float, float]:
    """Student's t interval of the mean of at least two values."""
    middle, error = fmean(values), stdev(values) / sqrt(len(values))
    half = float(stats.t.ppf((1 + level) / 2, len(values) - 1)) * error
    return middle - half, middle + half


def decide(low: float, high: float, difference: float | None = None) -> bool | None:
    """Whether a difference is above zero, by its interval.

    Args:
        low: lower end of the interval.
        high: upper end.
        difference: the paper's, > 0.

    Returns:
        True if the interval lies above zero. False if it lies below zero, or contains zero and
        excludes the paper's difference. None if it contains both, or zero and there is no other.
    """
    if low > 0 or high < 0:
        return low > 0
    return False if difference is not None and high < difference else None


def judge(
    claim: Claim,
    ours: Sequence[float | None],
    theirs: Sequence[float | None],
    *,
    top: float | None = None,
    level: float = LEVEL,
    digits: int = 2,
) -> Verdict:
    """The verdict of a claim that ``ours`` are above ``theirs``, which are paired by seed.

    Args:
        claim: with the paper's difference, if it states one.
        ours: a figure for each seed; pairs that are not finite are left out.
        theirs: likewise, of the same seeds.
        top: the highest value there can be, such as 100 %. A probe is at its ceiling if the
            paper's difference does not fit between ``theirs`` and the top, and decides nothing.
        level: of the interval.
        digits: of the figure.

    Returns:
        What `decide` says of the t interval of the mean difference; None with a single pair.
    """
    pairs = [pair for pair in zip(ours, theirs, strict=True) if len(finite(pair)) == 2]
    if not pairs:
        return Verdict("not finite", None)
    found = [a - b for a, b in pairs]
    lost = len(ours) - len(pairs)
    words = f"({lost} of {len(ours)} pairs not finite) " if lost else ""
    words += f"{fmean(found):+.{digits}f}"
    if len(found) == 1:
        return Verdict(f"{words} (one pair)", None)
    low, high = interval(found, level)
    words += f" [{low:+.{digits}f}, {high:+.{digits}f}]"
    room = inf if top is None else top - fmean(b for _, b in pairs)
    if claim.difference is not None and room < claim.difference:
        return Verdict(f"{words}, the probe is at its ceiling: {room:.{digits}f} are left", None)
    return Verdict(words, decide(low, high, claim.difference))


Compared = Mapping[str, tuple[Sequence[float], Sequence[float]]]  # (ours, theirs) by name


def judge_all(claim: Claim, pairs: Compared, **options: Any) -> Verdict:
    """The verdict of a claim about every one of ``pairs``, with Bonferroni's correction.

    The intervals hold together at `LEVEL`; the claim holds if each of them lies above zero.
    """
    level = bonferroni_level(len(pairs))
    parts = {name: judge(claim, *both, level=level, **options) for name, both in pairs.items()}
    return combine_verdicts(parts)


def similar(pairs: Compared, most: float) -> Verdict:
    """The verdict of a claim that all of ``pairs`` differ by at most ``most``; as `judge_all`."""
    parts = {}
    for name, both in pairs.items():
        found = finite(a - b for a, b in zip(*both, strict=True))
        if len(found) < 2:
            parts[name] = Verdict("one pair" if found else "not finite", None)
            continue
        low, high = interval(found, bonferroni_level(len(pairs)))
        within = True if -most <= low <= high <= most else None
        beyond = low > most or high < -most
        words = f"{fmean(found):+.2f} [{low:+.2f}, {high:+.2f}]"
        parts[name] = Verdict(words, False if beyond else within)
    return combine_verdicts(parts)


class Summary(NamedTuple):
    """Mean and standard deviation over some runs."""

    mean: float
    deviation: float
    runs: int


def judge_summaries(claim: Claim, ours: Summary, theirs: Summary) -> Verdict:
    """The verdict of a claim that ``ours`` are above ``theirs``, unpaired: by Welch's interval."""
    both = ours, theirs
    squares = [each.deviation**2 / each.runs for each in both]
    freedom = sum(squares) ** 2 / sum(
        square**2 / (each.runs - 1) for square, each in zip(squares, both, strict=True)
    )
    half = float(stats.t.ppf((1 + LEVEL) / 2, freedom)) * sqrt(sum(squares))
    gap = ours.mean - theirs.mean
    low, high = gap - half, gap + half
    words = " against ".join(f"{x.mean:.2f} ± {x.deviation:.2f} ({x.runs} seeds)" for x in both)
    figure = f"{words}: {gap:+.2f} [{low:+.2f}, {high:+.2f}]"
    return Verdict(figure, decide(low, high, claim.difference))


def bonferroni_level(number: int) -> float:
    """The level at which so many intervals hold together at `LEVEL`: Bonferroni's."""
    return 1 - (1 - LEVEL) / max(number, 1)


def combine_verdicts(parts: Mapping[str, Verdict]) -> Verdict:
    """The verdict of a claim made of parts, which holds if all of them do."""
    figure = "; ".join(f"{name}: {part.measured}" for name, part in parts.items())
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
