"""Verdicts: intervals of differences, corrections for many comparisons, missing values."""

import math
from typing import Any

import pytest
from study_cases import claim

from jaxssl.studies import verdicts
from jaxssl.studies.study import Claim, Findings, Verdict, at_one_size

pytestmark = pytest.mark.fast

# Five pairs whose differences have mean 2 and standard deviation sqrt(2.5). Student's t is 2.776,
# half of the interval 1.963.
THEIRS = [60.0, 61.0, 59.0, 60.5, 62.0]
OURS = [b + d for b, d in zip(THEIRS, [0.0, 1.0, 2.0, 3.0, 4.0], strict=True)]


@pytest.mark.parametrize(
    ("shift", "difference", "word"),
    [
        (0.0, None, "holds"),  # the confidence interval is [0.04, 3.96]
        (0.0, 5.0, "holds"),  # below the paper's difference, but above zero
        (-0.1, 3.0, "cannot be told"),  # [-0.06, 3.86] contains 0 and 3
        (-0.1, None, "cannot be told"),  # the paper reports no difference
        (-0.1, 4.0, "smaller than claimed"),  # the interval contains 0, but not 4
        (-4.1, 3.0, "opposite"),  # [-4.06, -0.14] is below zero
        (-4.1, None, "opposite"),
    ],
)
def test_claim_is_judged_by_the_confidence_interval_of_the_difference(shift, difference, word):
    ours = [value + shift for value in OURS]
    verdict = verdicts.judge(claim(difference), ours, THEIRS)
    assert verdict.word == word
    low, high = verdicts.interval([a - b for a, b in zip(ours, THEIRS, strict=True)])
    assert (high - low) / 2 == pytest.approx(2.776 * math.sqrt(2.5 / 5), abs=1e-3)
    assert verdict.measured == f"{2 + shift:+.2f} [{low:+.2f}, {high:+.2f}]"
    assert (verdicts.judge(claim(difference), THEIRS, ours).holds is True) == (shift < -2)


def test_claim_is_undecided_if_accuracies_are_too_close_to_100():
    ours, theirs = [99.8, 99.9, 99.7], [98.9, 99.0, 98.9]
    assert verdicts.judge(claim(2.0), ours, theirs).holds is True
    at_top = verdicts.judge(claim(2.0), ours, theirs, top=100.0)
    assert at_top.holds is None and "the probe is at its ceiling: 1.07 are left" in at_top.measured
    assert verdicts.judge(claim(2.0), theirs, ours, top=100.0).holds is None
    # A claim of 0.6 points needs 1.2 points up to 100 %, but only 1.07 are left.
    assert verdicts.judge(claim(0.6), ours, theirs, top=100.0).holds is None
    assert verdicts.judge(claim(0.5), ours, theirs, top=100.0).holds is True


def test_claim_is_undecided_with_one_pair_and_ignores_non_finite_pairs():
    assert verdicts.judge(claim(1.0), [70.0], [60.0]) == Verdict("+10.00 (one pair)", None)
    assert verdicts.judge(claim(1.0), [math.nan, 70.0], [60.0, math.nan]).holds is None
    equal = verdicts.judge(claim(0.5), [70.3, 71.4], [69.2, 70.3])  # but for rounding
    assert equal == Verdict("+1.10 (in each of 2 pairs, so no interval)", None)
    similar = verdicts.judge_similar({"": ([70.3, 71.4], [69.2, 70.3])}, 2.0)
    assert similar == equal
    one_of_two = verdicts.judge(claim(1.0), [math.nan, 70.0], [60.0, 60.0])
    assert one_of_two.measured.endswith("+10.00 (one pair)")
    assert verdicts.judge(claim(1.0), [None], [60.0]) == Verdict("not finite", None)


def test_confidence_interval_widens_with_the_number_of_comparisons():
    pair = OURS, THEIRS
    assert verdicts.judge_all(claim(), {"B=16": pair}).holds is True
    # Three intervals have confidence 1 - 0.05 / 3: t is 3.961, and [-0.80, 4.80] contains zero.
    three = verdicts.judge_all(claim(), dict.fromkeys(("16", "64", "256"), pair))
    assert three.holds is None and "16: +2.00 [-0.80, +4.80]" in three.measured
    one_of_three = verdicts.judge_all(claim(), {"16": pair}, number=3)
    assert one_of_three.measured == "16: +2.00 [-0.80, +4.80]"
    clear: Any = [b + 10 + i / 10 for i, b in enumerate(THEIRS)], THEIRS
    assert verdicts.judge_all(claim(), {"16": clear, "64": clear}).holds is True
    opposite = verdicts.judge_all(claim(), {"16": clear, "64": clear[::-1]})
    assert (opposite.holds, opposite.word) == (False, "opposite")
    small = [b + i / 10 for i, b in zip((-2, 2, 0, 1, -1), THEIRS, strict=True)], THEIRS
    smaller = verdicts.judge_all(claim(1.0), {"16": clear, "64": small, "256": clear})
    assert (smaller.holds, smaller.word) == (False, "smaller than claimed")
    both = verdicts.judge_all(claim(1.0), {"16": small, "64": clear[::-1]})
    assert both.word == "opposite"
    assert verdicts.judge_all(claim(), {"16": clear, "64": pair}).holds is None


def test_claim_of_similarity_holds_if_the_interval_lies_within_the_margin():
    assert verdicts.judge_similar({"x": (OURS, THEIRS)}, 4.0).holds is True
    assert verdicts.judge_similar({"x": (OURS, THEIRS)}, 3.0).holds is None
    assert verdicts.judge_similar({"x": (THEIRS, OURS)}, 3.0).holds is None
    # Three intervals together are [-0.80, 4.80].
    three = dict.fromkeys("xyz", (OURS, THEIRS))
    assert verdicts.judge_similar(three, 4.0).holds is None
    far = [b + 9 + i / 9 for i, b in enumerate(THEIRS)]
    assert verdicts.judge_similar({"x": (far, THEIRS)}, 3.0).holds is False
    assert verdicts.judge_similar({"x": (THEIRS, far)}, 3.0).holds is False
    wide = [1.0, 9.0, 5.0], [5.0, 5.0, 5.0]  # the mean difference is 0
    assert verdicts.judge_similar({"x": wide}, 1.0).holds is None
    assert verdicts.judge_similar({"x": ([1.0], [1.0])}, 3.0) == Verdict("x: one pair", None)
    for diverged in (math.nan, None):
        lost = [*OURS, diverged], [*THEIRS, 1.0]
        measured = verdicts.judge_similar({"x": lost}, 4.0).measured
        assert measured.startswith(f"x: (1 of {len(OURS) + 1} pairs not finite) ")


def test_single_batch_size_confirms_no_claim_about_every_batch_size():
    claims = {"all": Claim("a is above b at every batch size", "x"), "one": Claim("a is b", "x")}
    for holds, of_all in ((True, None), (False, False), (None, None)):
        findings = Findings([], [], dict.fromkeys(claims, Verdict("1", holds)), {}, "")
        judged = at_one_size(findings, claims).verdicts
        assert (judged["all"].holds, judged["one"].holds) == (of_all, holds)


def test_printed_mean_and_std_ignore_values_that_are_not_finite():
    assert verdicts.spread([1.0, math.nan, 2.0, 6.0]) == "3.00 ± 2.65 (1 of 4 not finite)"
    assert verdicts.spread([1.25, None], 1) == "1.2 (1 of 2 not finite)"
    assert verdicts.spread([math.nan]) == "–" and math.isnan(verdicts.mean([None]))


def test_seed_pair_with_a_nonfinite_value_is_left_out_of_the_comparison():
    holes = [*OURS, math.nan, 99.0], [*THEIRS, 1.0, None]
    verdict = verdicts.judge(claim(), *holes)
    finite = verdicts.judge(claim(), OURS, THEIRS)
    assert verdict == finite._replace(measured=f"(2 of 7 pairs not finite) {finite.measured}")


@pytest.mark.parametrize(
    ("parts", "holds"),
    [((True, True), True), ((True, None), None), ((None, False), False), ((True, False), False)],
)
def test_claim_of_several_parts_holds_if_all_parts_hold(parts, holds):
    combined = verdicts.combine_verdicts({str(i): Verdict("x", p) for i, p in enumerate(parts)})
    assert combined == Verdict("0: x; 1: x", holds)


def test_claim_without_any_part_is_undecided():
    assert verdicts.judge_all(claim(), {}) == Verdict("", None)
