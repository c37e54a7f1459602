"""Schedules at the steps that matter, as plain functions and under jit."""

import math
from pathlib import Path

import jax
import numpy as np
import pytest
from file_cases import refused
from jax import numpy as jnp
from tiny import DIGITS

from jaxssl.training import config
from jaxssl.training.config.schedules import from_spec, learning_rate

pytestmark = pytest.mark.fast

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "schedules.npz")
RUN = {"steps_per_epoch": 10, "total_steps": 200}
STEPS = {"schedule": "steps", "values": {"0": 0.02, "7.5": 0.2, "12": 0.1}}
COSINE = {"schedule": "cosine", "start": 0.99, "end": 1.0}
LINEAR = {"schedule": "linear", "start": 4.0, "end": 1.0}
WARMUP = {"warmup": 5, "warmup_from": 2}

AT = [
    (STEPS, {0: 0.02, 7: 0.02, 8: 0.2, 11: 0.2, 12: 0.1, 10**6: 0.1}),
    ({**STEPS, "unit": "epochs"}, {0: 0.02, 74: 0.02, 75: 0.2, 119: 0.2, 120: 0.1, 200: 0.1}),
    ({**STEPS, "values": {12: 0.1, 0: 0.02}}, {0: 0.02, 11: 0.02, 12: 0.1}),
    ({"schedule": "steps", "values": {0: 3}}, {0: 3, 50: 3}),
    (LINEAR, {0: 4, 50: 3.25, 100: 2.5, 200: 1, 300: 1}),
    ({**LINEAR, "until": 2.96, "unit": "epochs"}, {0: 4, 10: 3, 30: 1, 200: 1}),
    ({**LINEAR, "until": 30}, {0: 4, 10: 3, 30: 1, 200: 1}),
    ({**LINEAR, "until": 3, "unit": "epochs"}, {0: 4, 10: 3, 30: 1, 200: 1}),
    (COSINE, {0: 0.99, 50: 0.99 + 0.01 * (1 - math.sqrt(0.5)) / 2, 100: 0.995, 200: 1, 201: 1}),
    ({**COSINE, "until": 40}, {0: 0.99, 20: 0.995, 40: 1, 200: 1}),
    ({**COSINE, "until": 4, "unit": "epochs"}, {0: 0.99, 20: 0.995, 40: 1, 200: 1}),
    ({**COSINE, "warmup": 20, "until": 60}, {0: 0, 10: 0.495, 20: 0.99, 40: 0.995, 60: 1, 99: 1}),
    ({**LINEAR, "unit": "epochs", **WARMUP}, {0: 2, 25: 3, 50: 4, 100: 3, 200: 1, 300: 1}),
]


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize(("spec", "expected"), AT)
def test_schedule_has_the_values_that_its_spec_defines(spec, expected, jit):
    schedule = from_spec(spec, **RUN)
    at = jax.jit(schedule) if jit else schedule
    for step, value in expected.items():
        rates = at(jnp.int32(step)) if jit else at(step)
        assert jnp.asarray(rates).dtype == jnp.float32
        np.testing.assert_allclose(rates, value, rtol=1e-6, err_msg=f"step {step}")


@pytest.mark.parametrize("spec", [STEPS, LINEAR, COSINE])
def test_schedule_is_compiled_once_for_all_steps(spec):
    schedule, traces = from_spec(spec, **RUN), []

    @jax.jit
    def at(step):
        traces.append(step)
        return schedule(step)

    assert len({float(at(jnp.int32(step))) for step in (0, 10, 100)}) == 3
    assert len(traces) == 1


@pytest.mark.parametrize("spec", [0.5, 3, "cosine", None, {"a": 1}, (1, 2)])
def test_constants_instead_of_a_schedule_spec_are_returned_unchanged(spec):
    assert from_spec(spec, **RUN) is spec


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({**COSINE, "schedule": "cosin"}, r"one of \['cosine', .*'steps'\], got 'cosin'"),
        ({**COSINE, "unit": "hours"}, "unit must be .* got 'hours'"),
        ({**COSINE, "form": 0.5}, "'cosine' has no key 'form', it has .*'end', 'start', 'until'"),
        ({**STEPS, "until": 5}, r"'steps' has no key 'until', it has \['values'\]"),
        ({"schedule": "cosine", "end": 1.0}, "'cosine' lacks the key 'start'"),
        ({**COSINE, "until": 0}, "needs 0 <= warmup < until, got 0 and 0 steps"),
        ({"schedule": "steps"}, "'steps' lacks the key 'values'"),
        ({"schedule": "steps", "values": {5: 1.0}}, r"must begin at 0, got \[5.0\]"),
        ({"schedule": "steps", "values": {}}, "must begin at 0"),
        ({"schedule": ["cosine"]}, r"must be one of .* got \['cosine'\]"),
        ({**COSINE, 1: 2}, "'cosine' has no key 1, it has"),
        (
            {**COSINE, "start": "high"},
            "'start' of a schedule must be a finite .*, got 'high'",
        ),
        ({**COSINE, "start": np.float64(1)}, "must be a finite int or float, got np.float64"),
        ({**COSINE, "end": None}, "'end' of a schedule must be a finite .*, got None"),
        ({**COSINE, "end": True}, "'end' of a schedule must be a finite .*, got True"),
        (
            {**COSINE, "until": math.nan},
            "'until' of a schedule must be a finite .*, got nan",
        ),
        ({**COSINE, "end": 10**400}, "'end' of a schedule must be a finite .*, got 1000"),
        ({**LINEAR, "until": 1e10}, "until of schedule 'linear' must be < 2147483648 steps, got 1"),
        ({**COSINE, "until": 9, "warmup": 9}, "needs 0 <= warmup < until, got 9 and 9 steps"),
        ({**COSINE, "warmup": 200}, "warmup < until, got 200 and 200 steps"),
        ({**COSINE, "warmup": -1}, "0 <= warmup < until, got -1 and 200 steps"),
        ({**STEPS, "values": [0.1, 0.2]}, r"must be a dict {time: value}.*got \[0.1, 0.2\]"),
        ({"schedule": "steps", "values": {"soon": 1}}, "times .* must be numbers, got 'soon'"),
        (
            {"schedule": "steps", "values": {0: "low"}},
            "'values' .* a finite .*, got 'low'",
        ),
        ({"schedule": "steps", "values": {0: 1, "0": 2}}, r"must differ, got \[0, '0'\]"),
    ],
)
def test_invalid_schedule_spec_raises_an_error_with_the_valid_values(spec, message):
    with pytest.raises(ValueError, match=message) as error:
        from_spec(spec, **RUN)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "spec",
    [
        {**COSINE, "end": -0.2},
        {**LINEAR, "start": -0.2},
        {**LINEAR, "warmup": 2, "warmup_from": -0.2},
        {"schedule": "steps", "values": {"0": 0.1, "3": -0.2}},
    ],
)
def test_schedule_that_leaves_the_range_of_its_key_is_refused(spec):
    with refused("config key 'optim.weight_decay' must be >= 0, got -0.2"):
        config.load(DIGITS, [("optim.weight_decay", spec)])


# Name -> function of the share of the decay that is done, and of the end factor.
RATES = {
    "cosine": lambda done, end: end + (1 - end) * (1 + math.cos(math.pi * done)) / 2,
    "linear": lambda done, end: 1 - (1 - end) * done,
    "constant": lambda done, end: 1.0,
}


def values(schedule, num_steps):
    """Return the values at steps 0, 1, ..."""
    return np.asarray(jax.jit(jax.vmap(schedule))(jnp.arange(num_steps, dtype=jnp.int32)))


@pytest.mark.parametrize("end_factor", [0.0, 0.1])
@pytest.mark.parametrize(("warmup", "low"), [(0, 0.0), (5, 0.0), (5, 0.3)])
@pytest.mark.parametrize("name", RATES)
def test_learning_rate_warms_up_to_the_peak_and_decays_to_the_end(name, warmup, low, end_factor):
    options = {"warmup_steps": warmup, "warmup_start": low, "end_factor": end_factor}
    rate = learning_rate(name, 0.8, total_steps=45, **options)
    expected = [
        0.8 * (low + (1 - low) * step / warmup)
        if step < warmup
        else 0.8 * RATES[name](min((step - warmup) / (45 - warmup), 1), end_factor)
        for step in range(50)
    ]
    rates = values(rate, 50)
    assert rates.dtype == np.float32
    np.testing.assert_allclose(rates, expected, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(rate(17), expected[17], rtol=1e-5)


def test_step_decay_multiplies_by_gamma_at_milestones():
    options = {"milestones": (10, 25), "gamma": 0.2}
    rate = learning_rate("step", 0.5, warmup_steps=4, total_steps=30, **options)
    expected = [0, 0.125, 0.25, 0.375] + [0.5] * 6 + [0.1] * 15 + [0.02] * 15
    np.testing.assert_allclose(values(rate, 40), expected, rtol=1e-6)
    default = learning_rate("step", 1.0, warmup_steps=0, total_steps=300, milestones=(250, 280))
    rates = values(default, 300)[[0, 249, 250, 279, 280]]
    np.testing.assert_allclose(rates, [1, 1, 0.1, 0.1, 0.01])


def assert_follows(rates, golden, peak):
    """Assert equality to the precision that float32 has at the peak."""
    np.testing.assert_allclose(rates, golden, rtol=1e-6, atol=2e-7 * peak)


# Specs that reproduce a public schedule. A step of the golden values is a batch for DINO and MMCL,
# an epoch for TCL, half an epoch for MoCo-v3.
EQUAL = {
    "dino_cosine/wd_0p04_0p4_ep10_it7": {"schedule": "cosine", "start": 0.04, "end": 0.4},
    "dino_cosine/mom_0p996_1_ep10_it7": {"schedule": "cosine", "start": 0.996, "end": 1.0},
    "mocov3/moco_m0p99_cos": {"schedule": "cosine", "start": 0.99, "end": 1.0},
    "mocov3/lr0p6_warm4_ep20": {"schedule": "cosine", "start": 0.6, "end": 0.0, "warmup": 8},
}


@pytest.mark.parametrize("name", EQUAL)
def test_cosine_spec_matches_public_implementations(name):
    golden = GOLDEN[name]
    schedule = from_spec(EQUAL[name], steps_per_epoch=7, total_steps=len(golden))
    assert_follows(values(schedule, len(golden)), golden, golden.max())


# MMCL's warm-up of 5 steps begins at a sixth of the peak, which the sixth step reaches.
SIXTH = {"warmup_steps": 5, "warmup_start": 1 / 6}


@pytest.mark.parametrize(
    ("golden", "name", "peak", "options"),
    [
        ("mocov3/lr0p6_warm4_ep20", "cosine", 0.6, {"warmup_steps": 8}),
        ("mmcl_warmup_anneal/lr1p2_warm0p1_T50", "cosine", 1.2, SIXTH),
        ("mmcl_linear/lr1p6_T50", "linear", 1.6, {"warmup_steps": 0}),
    ],
)
def test_learning_rate_matches_public_implementations(golden, name, peak, options):
    golden = GOLDEN[golden]
    rate = learning_rate(name, peak, total_steps=len(golden), **options)
    assert_follows(values(rate, len(golden)), golden, peak)


@pytest.mark.parametrize(("name", "peak"), [("tcl_contrastive", 0.1), ("tcl_cross_entropy", 0.5)])
def test_learning_rate_delayed_by_one_epoch_equals_that_of_the_code_of_tcl(name, peak):
    # TCL sets epoch e's rate after epoch e: the first two epochs share the peak, and the schedule
    # never gets to its last value.
    golden = GOLDEN[f"{name}/lr_used_per_epoch"]
    rate = learning_rate("cosine", peak, warmup_steps=0, total_steps=len(golden), end_factor=1e-3)
    rates = values(rate, len(golden))
    assert_follows([rates[0], *rates[:-1]], golden, peak)


def test_learning_rate_matches_dino_whose_warm_up_is_a_step_shorter():
    # In 2 epochs of 7 steps, DINO's linear warm-up reaches the peak at step 13, and its cosine
    # begins with the peak again at step 14. The schedule of jaxssl has the peak at step 14 only.
    golden = GOLDEN["dino_cosine/lr_base1e-3_final1e-6_ep10_it7_warm2"]
    options = {"total_steps": 70, "end_factor": 1e-3}
    ours = values(learning_rate("cosine", 1e-3, warmup_steps=14, **options), 70)
    assert_follows(ours[14:], golden[14:], 1e-3)
    earlier = values(learning_rate("cosine", 1e-3, warmup_steps=13, **options), 14)
    assert_follows(earlier, golden[:14], 1e-3)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("cosine", {"warmup_steps": 45}, "warm-up of 45 steps must be shorter than the run of 45;"),
        ("linear", {"warmup_steps": 50}, "warm-up of 50 steps must be shorter than the run of 45;"),
        ("cosin", {}, r"one of \['constant', 'cosine', 'linear', 'step'\], got 'cosin'"),
        ("step", {}, r"must increase and be after the warm-up of 5 steps, got \[\]"),
        ("step", {"milestones": (20, 10)}, r"must increase .* got \[20, 10\]"),
        ("step", {"milestones": (5, 10)}, r"must increase .* of 5 steps, got \[5, 10\]"),
        ("cosine", {"milestones": (10, 20)}, "only the schedule 'step' has milestones, got 'cos"),
    ],
)
def test_invalid_schedule_of_the_learning_rate_raises(name, options, message):
    with pytest.raises(ValueError, match=message):
        learning_rate(name, 0.8, **{"warmup_steps": 5, "total_steps": 45, **options})
