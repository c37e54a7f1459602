"""Hyper-parameters as functions of the step, written as data in a config.

temperature = 0.5                                                        a constant
gamma = dict(schedule="steps", values={"0": 0.02, "75": 0.2}, unit="epochs")
temperature = dict(schedule="linear", start=0.04, end=0.07, until=30, unit="epochs")
momentum = dict(schedule="cosine", start=0.99, end=1.0)
weight_decay = dict(schedule="cosine", start=0.04, end=0.4)
weight = dict(schedule="cosine", start=0.2, end=0.0, warmup=10, unit="epochs")
"""

import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

import jax
from jax import Array
from jax import numpy as jnp

Schedule = Callable[[Array], Array]
OPTIONAL = {"until", "warmup", "warmup_from"}
KEYS = {
    "steps": {"values"},
    "linear": {"start", "end"} | OPTIONAL,
    "cosine": {"start", "end"} | OPTIONAL,
}
DECAYS = ("constant", "cosine", "linear", "step")


def from_spec(spec: Any, *, steps_per_epoch: int, total_steps: int) -> Any:
    """`spec` itself if it is no schedule, else the function of the step that it describes.

    Args:
        spec: a plain value, or a mapping with "schedule": "steps" ("values": {when: value}, the
            value from that time on, the first at 0), "linear" or "cosine" (from "start" to "end" at
            "until", by default the end of the run; if there is a "warmup", a straight line from
            "warmup_from", by default 0, leads to "start" in that time, and the way to "end" begins
            there). "unit" of all times is "steps" (default) or "epochs".
        steps_per_epoch: converts epochs.
        total_steps: the length of the run.

    Raises:
        ValueError: on an unknown schedule, unit or key, on what is no number where there should be
            one, values that do not begin at 0, or an end that is not after the warm-up.
    """
    if not isinstance(spec, Mapping) or "schedule" not in spec:
        return spec
    name, unit = spec["schedule"], spec.get("unit", "steps")
    if not isinstance(name, str) or name not in KEYS:
        raise ValueError(f"schedule must be one of {sorted(KEYS)}, got {name!r}")
    if unit not in ("steps", "epochs"):
        raise ValueError(f'unit must be "steps" or "epochs", got {unit!r}')
    unknown = set(spec) - KEYS[name] - {"schedule", "unit"}
    if unknown:
        raise ValueError(
            f"schedule {name!r} has no key {min(unknown, key=str)!r}, it has {sorted(KEYS[name])}"
        )
    missing = KEYS[name] - OPTIONAL - set(spec)
    if missing:
        raise ValueError(f"schedule {name!r} needs {sorted(missing)[0]!r}")
    scale = steps_per_epoch if unit == "epochs" else 1
    if name == "steps":
        return _steps(_values(spec["values"], scale))

    numbers = {key: _number(key, spec[key]) for key in KEYS[name] & set(spec)}
    until = round(numbers["until"] * scale) if "until" in numbers else total_steps
    warmup = round(numbers.get("warmup", 0) * scale)
    if not 0 <= warmup < until:
        raise ValueError(
            f"schedule {name!r} needs 0 <= warmup < until, got {warmup} and {until} steps"
        )
    start, low = numbers["start"], numbers.get("warmup_from", 0.0)
    ramp = _ramp(name, start, numbers["end"], warmup, until)
    return _warm_up(ramp, low, start, warmup)


def learning_rate(
    name: str,
    peak: float,
    *,
    warmup_steps: int,
    total_steps: int,
    end_factor: float = 0.0,
    warmup_start: float = 0.0,
    milestones: Sequence[int] = (),
    gamma: float = 0.1,
) -> Schedule:
    r"""Linear warm-up to ``peak``, then a decay.

    .. math::
        \text{warm-up: } \eta_t = \eta (a + (1 - a) t / w), \quad t < w \\
        \text{cosine: } \eta_t = \eta (e + (1 - e) (1 + \cos(\pi (t - w) / (T - w))) / 2) \\
        \text{linear: } \eta_t = \eta (1 - (1 - e) (t - w) / (T - w)) \\
        \text{step: } \eta_t = \eta \gamma^{|\{m : m \le t\}|}

    Args:
        name: the decay: "constant", "cosine", "linear" or "step".
        peak: \eta, the rate after warm-up, > 0.
        warmup_steps: w, >= 0.
        total_steps: T, where the decay ends, > warmup_steps; the last rate stays.
        end_factor: e of cosine and linear: the last rate is ``peak * end_factor``.
        warmup_start: a: the first rate of a warm-up is ``peak * warmup_start``. MMCL's code counts
            the steps of its warm-up from 1, which is 1 / (warmup_steps + 1).
        milestones: the steps m of "step", increasing, after the warm-up; for the others unused.
        gamma: the factor of "step".

    Returns:
        A function of the step, counted from 0; float32.

    Raises:
        ValueError: on an unknown name, a warm-up that fills the run, or milestones that are none,
            not increasing, or within the warm-up.

    References:
        Loshchilov and Hutter, SGDR, 2017, eq. 5; Goyal et al., Accurate, Large Minibatch SGD, 2017.
    """
    if name not in DECAYS:
        raise ValueError(f"schedule.name must be one of {sorted(DECAYS)}, got {name!r}")
    if warmup_steps >= total_steps:
        raise ValueError(f"warm-up takes {warmup_steps} steps, the whole run has {total_steps}")
    if name == "step":
        rate = _milestones(peak, gamma, milestones, warmup_steps)
    else:
        end = peak if name == "constant" else peak * end_factor
        rate = _ramp(name, peak, end, warmup_steps, total_steps)
    return _warm_up(rate, peak * warmup_start, peak, warmup_steps)


def _milestones(peak: float, gamma: float, milestones: Sequence[int], after: int) -> Schedule:
    """``peak``, times ``gamma`` from each milestone on."""
    times = [after, *milestones]
    if not milestones or any(b <= a for a, b in zip(times, times[1:], strict=False)):
        raise ValueError(
            f"milestones must increase and be after the warm-up of {after} steps,"
            f" got {list(milestones)}"
        )
    return _steps({0.0: peak} | {float(m): peak * gamma**i for i, m in enumerate(milestones, 1)})


def _number(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise ValueError(f"{key!r} of a schedule must be a finite number, got {value!r}")
    return float(value)


def _values(values: Any, scale: int) -> dict[float, float]:
    """Times in steps and the value from then on; times may be strings, as keys of JSON are."""
    if not isinstance(values, Mapping):
        raise ValueError(f"values of a steps schedule must be {{when: value}}, got {values!r}")
    found = {}
    for when, value in values.items():
        try:
            time = float(when) * scale
        except (TypeError, ValueError):
            raise ValueError(f"times of a steps schedule must be numbers, got {when!r}") from None
        found[_number("time", time)] = _number("values", value)
    if len(found) < len(values):
        raise ValueError(f"times of a steps schedule must differ, got {list(values)}")
    if not found or min(found) != 0:
        raise ValueError(f"values of a steps schedule must begin at 0, got {sorted(found)}")
    return found


def _steps(values: Mapping[float, float]) -> Schedule:
    """The value of the latest time; the first time is 0."""
    times = sorted(values)
    boundaries = jnp.asarray(times[1:], jnp.float32)
    levels = jnp.asarray([values[t] for t in times], jnp.float32)

    def level(step: Array) -> Array:
        passed = jnp.sum(boundaries <= jnp.asarray(step, jnp.float32), dtype=jnp.int32)
        return jax.lax.dynamic_index_in_dim(levels, passed, keepdims=False)

    return level


def _ramp(name: str, start: float, end: float, begin: int, until: int) -> Schedule:
    """From ``start`` at step ``begin`` to ``end`` at ``until``, by a half cosine or a line."""

    def ramp(step: Array) -> Array:
        done = jnp.clip((jnp.asarray(step, jnp.float32) - begin) / (until - begin), 0, 1)
        share = (1 - jnp.cos(jnp.pi * done)) / 2 if name == "cosine" else done
        return start + (end - start) * share

    return ramp


def _warm_up(schedule: Schedule, low: float, high: float, steps: int) -> Schedule:
    """A line from ``low`` to ``high`` in ``steps`` steps, then ``schedule``."""
    if steps == 0:
        return schedule

    def warm_up(step: Array) -> Array:
        at = jnp.asarray(step, jnp.float32)
        return jnp.where(at < steps, low + (high - low) * (at / steps), schedule(at))

    return warm_up
