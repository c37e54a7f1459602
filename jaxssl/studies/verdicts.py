"""Decide whether a claim holds, by confidence intervals of differences between runs."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from math import inf, isfinite, nan, sqrt
from statistics import fmean, stdev

from scipy import stats

from jaxssl.studies.study import OPPOSITE, REFUTED, SMALLER, Claim, Verdict

LEVEL = 0.95  # confidence level of all intervals
# A probe nearer to its highest value than this many times the paper's difference decides nothing.
CEILING = 2

# Values that a claim compares, paired by seed, by the name of the comparison. The claim says that
# the first values are above the second.
Pairs = Mapping[str, tuple[Sequence[float], Sequence[float]]]


def finite(values: Iterable[float | None]) -> list[float]:
    """Return the finite values of a list. Diverged runs have NaN or None."""
    return [value for value in values if value is not None and isfinite(value)]


def mean(values: Iterable[float | None]) -> float:
    """Return the mean of the finite values, or NaN without any."""
    numbers = finite(values)
    return fmean(numbers) if numbers else nan


def spread(values: Sequence[float | None], digits: int = 2) -> str:
    """Format mean ± standard deviation of the finite values, or a dash without any."""
    numbers = finite(values)
    if not numbers:
        return "–"
    text = f"{fmean(numbers):.{digits}f}"
    text += f" ± {stdev(numbers):.{digits}f}" if len(numbers) > 1 else ""
    lost = len(values) - len(numbers)
    return text + (f" ({lost} of {len(values)} not finite)" if lost else "")


def interval(values: Sequence[float], level: float = LEVEL) -> tuple[float, float]:
    """Return Student's t interval of the mean of at least two values."""
    middle, error = fmean(values), stdev(values) / sqrt(len(values))
    half = float(stats.t.ppf((1 + level) / 2, len(values) - 1)) * error
    return middle - half, middle + half


def decide(low: float, high: float, difference: float | None = None) -> bool | None:
    """Decide from a difference's interval whether the difference is above zero.

    Args:
        low: lower end of the interval.
        high: upper end of the interval.
        difference: the paper's difference, > 0, if it reports one.

    Returns:
        True if the interval lies above zero. False if it lies below zero, or contains zero and
        excludes the paper's difference. None otherwise.
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
    """Judge a claim that the values ``ours`` are above ``theirs``, paired by seed.

    Args:
        claim: with the paper's difference, if it reports one.
        ours: a value for each seed. Pairs that are not finite are left out.
        theirs: likewise, of the same seeds.
        top: the highest possible value, such as 100 %. If twice the paper's difference does not
            fit between ``theirs`` and the top, the probe is at its ceiling and decides nothing.
        level: of the interval.
        digits: of the printed numbers.

    Returns:
        The decision by the t interval of the mean difference. It is None with fewer than two pairs.
    """
    pairs = [pair for pair in map(finite, zip(ours, theirs, strict=True)) if len(pair) == 2]
    if not pairs:
        return Verdict("not finite", None)
    text, bounds = _measure([a - b for a, b in pairs], len(ours), level, digits)
    if bounds is None:
        return Verdict(text, None)
    low, high = bounds
    room = inf if top is None else top - fmean(b for _, b in pairs)
    if claim.difference is not None and room < CEILING * claim.difference:
        return Verdict(f"{text}, the probe is at its ceiling: {room:.{digits}f} are left", None)
    holds = decide(low, high, claim.difference)
    if holds is not False:
        return Verdict(text, holds)
    return Verdict(text, holds, OPPOSITE if high < 0 else SMALLER)


def judge_all(
    claim: Claim,
    pairs: Pairs,
    *,
    number: int | None = None,
    top: float | None = None,
    digits: int = 2,
) -> Verdict:
    """Judge a claim about every pair, with Bonferroni's correction.

    The intervals hold together at `LEVEL`. The claim holds if all of them lie above zero.

    Args:
        claim: with the paper's difference, if it reports one.
        pairs: values by name, as `judge` takes them.
        number: of the pairs that the claim is about, if some of them are not measured yet.
        top: the highest possible value, as for `judge`.
        digits: of the printed numbers.
    """
    level = bonferroni_level(number or len(pairs))
    one = partial(judge, claim, top=top, level=level, digits=digits)
    return combine_verdicts({name: one(*pair) for name, pair in pairs.items()})


def judge_similar(pairs: Pairs, margin: float) -> Verdict:
    """Judge a claim that the two cells of all pairs differ by at most ``margin`` (Bonferroni)."""
    level = bonferroni_level(len(pairs))
    by_name = {
        name: [a - b if len(finite((a, b))) == 2 else nan for a, b in zip(*pair, strict=True)]
        for name, pair in pairs.items()
    }
    return combine_verdicts({name: within(d, margin, level) for name, d in by_name.items()})


def within(
    differences: Sequence[float], margin: float, level: float = LEVEL, digits: int = 2
) -> Verdict:
    """Judge whether the mean of the finite differences is at most ``margin`` in size."""
    number = len(differences)
    differences = finite(differences)
    if len(differences) < 2:
        return Verdict("one pair" if differences else "not finite", None)
    text, bounds = _measure(differences, number, level, digits)
    if bounds is None:
        return Verdict(text, None)
    low, high = bounds
    if low > margin or high < -margin:
        return Verdict(text, False)
    return Verdict(text, True if -margin <= low <= high <= margin else None)


def _measure(
    differences: Sequence[float], number: int, level: float, digits: int
) -> tuple[str, tuple[float, float] | None]:
    """Return the mean of finite differences as text, and its interval, None if it has none.

    Args:
        differences: of the finite pairs, at least one.
        number: of all pairs.
        level: of the interval.
        digits: of the printed numbers.
    """
    lost = number - len(differences)
    text = f"({lost} of {number} pairs not finite) " if lost else ""
    text += f"{fmean(differences):+.{digits}f}"
    if len(differences) == 1:
        return f"{text} (one pair)", None
    if are_equal(differences):
        return f"{text} (in each of {len(differences)} pairs, so no interval)", None
    low, high = interval(differences, level)
    return f"{text} [{low:+.{digits}f}, {high:+.{digits}f}]", (low, high)


def are_equal(differences: Sequence[float]) -> bool:
    """Return True for differences that are equal up to rounding, which do not tell their spread."""
    return max(differences) - min(differences) < 1e-9


def bonferroni_level(number: int) -> float:
    """Return the confidence level at which ``number`` intervals hold together at `LEVEL`."""
    return 1 - (1 - LEVEL) / max(number, 1)


def combine_verdicts(parts: Mapping[str, Verdict]) -> Verdict:
    """Combine verdicts on the parts of a claim into one: the claim holds if all parts hold.

    A part that is smaller than the paper's difference counts less than one that is opposite. The
    name of a part is left out of the measurement if it is "".
    """
    texts = (f"{name}: {part.measured}" if name else part.measured for name, part in parts.items())
    measured = "; ".join(texts)
    failures = {part.failure for part in parts.values() if part.holds is False}
    for failure in (OPPOSITE, REFUTED, SMALLER):
        if failure in failures:
            return Verdict(measured, False, failure)
    return Verdict(measured, True if parts and all(x.holds for x in parts.values()) else None)
