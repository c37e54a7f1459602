"""Schedules at the steps that matter, as plain functions and under jit."""

import math

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from jaxssl.schedules import from_spec, learning_rate

RUN = {"steps_per_epoch": 10, "total_steps": 200}
STEPS = {"schedule": "steps", "values": {"0": 0.02, "7.5": 0.2, "12": 0.1}}
COSINE = {"schedule": "cosine", "start": 0.99, "end": 1.0}
LINEAR = {"schedule": "linear", "start": 4.0, "end": 1.0}

AT = [
    (STEPS, {0: 0.02, 7: 0.02, 8: 0.2, 11: 0.2, 12: 0.1, 10**6: 0.1}),
    ({**STEPS, "unit": "epochs"}, {0: 0.02, 74: 0.02, 75: 0.2, 119: 0.2, 120: 0.1, 200: 0.1}),
    ({**STEPS, "values": {12: 0.1, 0: 0.02}}, {0: 0.02, 11: 0.02, 12: 0.1}),
    ({"schedule": "steps", "values": {0: 3}}, {0: 3, 50: 3}),
    (LINEAR, {0: 4, 50: 3.25, 100: 2.5, 200: 1, 300: 1}),
    ({**LINEAR, "until": 30}, {0: 4, 10: 3, 30: 1, 200: 1}),
    ({**LINEAR, "until": 3, "unit": "epochs"}, {0: 4, 10: 3, 30: 1, 200: 1}),
    (COSINE, {0: 0.99, 50: 0.99 + 0.01 * (1 - math.sqrt(0.5)) / 2, 100: 0.995, 200: 1, 201: 1}),
    ({**COSINE, "until": 40}, {0: 0.99, 20: 0.995, 40: 1, 200: 1}),
    ({**COSINE, "until": 4, "unit": "epochs"}, {0: 0.99, 20: 0.995, 40: 1, 200: 1}),
]


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize(("spec", "expected"), AT)
def test_a_schedule_has_the_values_its_spec_says(spec, expected, jit):
    schedule = from_spec(spec, **RUN)
    at = jax.jit(schedule) if jit else schedule
    for step, value in expected.items():
        found = at(jnp.int32(step)) if jit else at(step)
        assert jnp.asarray(found).dtype == jnp.float32
        np.testing.assert_allclose(found, value, rtol=1e-6, err_msg=f"step {step}")


@pytest.mark.parametrize("spec", [STEPS, LINEAR, COSINE])
def test_a_schedule_is_compiled_once_for_all_steps(spec):
    schedule, traces = from_spec(spec, **RUN), []

    @jax.jit
    def at(step):
        traces.append(step)
        return schedule(step)

    assert len({float(at(jnp.int32(step))) for step in (0, 10, 100)}) == 3
    assert len(traces) == 1


@pytest.mark.parametrize("spec", [0.5, 3, "cosine", None, {"a": 1}, (1, 2)])
def test_what_is_no_schedule_stays_what_it_is(spec):
    assert from_spec(spec, **RUN) is spec


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            {"schedule": "cosin", "start": 0, "end": 1},
            r"one of \['cosine', .*'steps'\], got 'cosin'",
        ),
        ({**COSINE, "unit": "hours"}, "unit must be .* got 'hours'"),
        ({**COSINE, "form": 0.5}, "'cosine' has no key 'form', it has .*'end', 'start', 'until'"),
        ({**STEPS, "until": 5}, r"'steps' has no key 'until', it has \['values'\]"),
        ({"schedule": "cosine", "end": 1.0}, "'cosine' needs 'start'"),
        ({**COSINE, "until": 0}, "must end after a step or more, got until=0"),
        ({"schedule": "steps"}, "'steps' needs 'values'"),
        ({"schedule": "steps", "values": {5: 1.0}}, r"must begin at 0, got \[5.0\]"),
        ({"schedule": "steps", "values": {}}, "must begin at 0"),
    ],
)
def test_a_wrong_spec_is_answered_with_what_is_valid(spec, message):
    with pytest.raises(ValueError, match=message):
        from_spec(spec, **RUN)


def cosine_rate(step, peak, warmup, total, end):
    """SGDR's half period after a linear ramp, in float64."""
    if step < warmup:
        return peak * step / warmup
    done = min((step - warmup) / (total - warmup), 1)
    return peak * (end + (1 - end) * (1 + math.cos(math.pi * done)) / 2)


def linear_rate(step, peak, warmup, total, end):
    if step < warmup:
        return peak * step / warmup
    return peak * (1 - (1 - end) * min((step - warmup) / (total - warmup), 1))


def constant_rate(step, peak, warmup, total, end):
    return peak * min(step / warmup, 1) if warmup else peak


RATES = {"cosine": cosine_rate, "linear": linear_rate, "constant": constant_rate}


@pytest.mark.parametrize("end_factor", [0.0, 0.1])
@pytest.mark.parametrize("warmup_steps", [0, 5])
@pytest.mark.parametrize("name", RATES)
def test_the_learning_rate_warms_up_to_its_peak_and_decays_to_its_end(
    name, warmup_steps, end_factor
):
    rate = learning_rate(
        name, 0.8, warmup_steps=warmup_steps, total_steps=45, end_factor=end_factor
    )
    steps = np.arange(50)
    found = jax.jit(jax.vmap(rate))(jnp.asarray(steps, jnp.int32))
    expected = [RATES[name](step, 0.8, warmup_steps, 45, end_factor) for step in steps.tolist()]
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(rate(17), expected[17], rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "warmup_steps", "message"),
    [
        ("cosine", 45, "takes 45 steps, the whole run has 45"),
        ("linear", 50, "takes 50 steps, the whole run has 45"),
        ("cosin", 5, r"one of \['constant', 'cosine', 'linear'\], got 'cosin'"),
    ],
)
def test_a_learning_rate_that_cannot_be_is_refused(name, warmup_steps, message):
    with pytest.raises(ValueError, match=message):
        learning_rate(name, 0.8, warmup_steps=warmup_steps, total_steps=45)
