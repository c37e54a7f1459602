"""Hyper-parameters as functions of the step, written as data in a config.

temperature = 0.5                                                        a constant
gamma = dict(schedule="steps", values={"0": 0.02, "75": 0.2}, unit="epochs")
temperature = dict(schedule="linear", start=0.04, end=0.07, until=30, unit="epochs")
momentum = dict(schedule="cosine", start=0.99, end=1.0)
weight_decay = dict(schedule="cosine", start=0.04, end=0.4)
weight = dict(schedule="cosine", start=0.2, end=0.0, warmup=10, unit="epochs")
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import optax
from jax import Array
from jax import numpy as jnp
from jax.typing import ArrayLike

from jaxssl.training.config.values import LARGEST, fits, is_schedule

Schedule = Callable[[ArrayLike], Array]
OPTIONAL = {"until", "warmup", "warmup_from"}  # keys that a schedule may lack
KEYS = {  # of each schedule, besides "schedule" and "unit"
    "steps": {"values"},
    "linear": {"start", "end"} | OPTIONAL,
    "cosine": {"start", "end"} | OPTIONAL,
}
DECAYS = ("constant", "cosine", "linear", "step")


def from_spec(spec: object, *, steps_per_epoch: int, total_steps: int) -> Any:
    """Return the schedule that a mapping of the config describes. Other values stay unchanged.

    Args:
        spec: a plain value, or a mapping whose "schedule" is one of

            * "steps": piecewise constant. "values" maps times to the value from that time on. The
              first time is 0.
            * "linear" or "cosine": from "start" to "end", which is reached at the time "until"
              (default: the end of the run). An optional linear "warmup" of that length leads from
              "warmup_from" (default 0) to "start", and the way to "end" begins after it.

            "unit" of all times is "steps" (default) or "epochs".
        steps_per_epoch: converts epochs to steps.
        total_steps: the length of the run.

    Returns:
        A function of the step, counted from 0, that returns a float32 scalar. If `spec` is not a
        schedule, `spec` itself.

    Raises:
        ValueError: on an unknown schedule, unit or key, a value that is not a number, times that do
            not begin at 0, or an end within the warm-up, or at 2^31 steps or later.
    """
    if not is_schedule(spec):
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
        raise ValueError(f"schedule {name!r} lacks the key {min(missing)!r}")
    scale = steps_per_epoch if unit == "epochs" else 1
    if name == "steps":
        return _float32(_piecewise_constant(_values(spec["values"], scale)))

    numbers = {key: _number(key, spec[key]) for key in KEYS[name] & set(spec)}
    until = round(numbers["until"] * scale) if "until" in numbers else total_steps
    warmup = round(numbers.get("warmup", 0) * scale)
    if not 0 <= warmup < until:
        raise ValueError(
            f"schedule {name!r} needs 0 <= warmup < until, got {warmup} and {until} steps"
        )
    if until >= LARGEST:
        raise ValueError(f"until of schedule {name!r} must be < {LARGEST} steps, got {until}")
    start = numbers["start"]
    decay = _decay(name, start, numbers["end"], until - warmup)
    return _float32(_warm_up(decay, numbers.get("warmup_from", 0.0), start, warmup))


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
    r"""Return a learning-rate schedule: linear warm-up to the peak, then a decay.

    .. math::
        \text{warm-up: } \eta_t = \eta (a + (1 - a) t / w), \quad t < w \\
        \text{cosine: } \eta_t = \eta (e + (1 - e) (1 + \cos(\pi (t - w) / (T - w))) / 2) \\
        \text{linear: } \eta_t = \eta (1 - (1 - e) (t - w) / (T - w)) \\
        \text{step: } \eta_t = \eta \gamma^{|\{m : m \le t\}|}

    Args:
        name: the decay: "constant", "cosine", "linear" or "step".
        peak: \eta, the learning rate after the warm-up, > 0.
        warmup_steps: w, >= 0.
        total_steps: T, > warmup_steps, where the decay ends. The learning rate stays constant
            afterwards.
        end_factor: e of cosine and linear. The last learning rate is ``peak * end_factor``.
        warmup_start: a. The first learning rate of the warm-up is ``peak * warmup_start``. MMCL's
            code counts the steps of its warm-up from 1, which equals 1 / (warmup_steps + 1) here.
        milestones: the steps m of "step", increasing and after the warm-up. No other decay
            takes them.
        gamma: the factor of "step".

    Returns:
        A function of the step, counted from 0, that returns a float32 scalar.

    Raises:
        ValueError: on an unknown name, a warm-up that is not shorter than the run, or milestones
            that are missing, do not increase, are within the warm-up, or are of another decay.

    References:
        Loshchilov and Hutter, SGDR, 2017, eq. 5. Goyal et al., Accurate, Large Minibatch SGD, 2017.
    """
    if name not in DECAYS:
        raise ValueError(f"schedule.name must be one of {sorted(DECAYS)}, got {name!r}")
    if warmup_steps >= total_steps:
        raise ValueError(
            f"the warm-up of {warmup_steps} steps must be shorter than the run of {total_steps}; "
            "lower schedule.warmup_epochs or train longer"
        )
    if name == "step":
        times = [warmup_steps, *milestones]
        if not milestones or times != sorted(set(times)):
            raise ValueError(
                f"milestones must increase and be after the warm-up of {warmup_steps} steps, "
                f"got {list(milestones)}"
            )
        after = [0, *(m - warmup_steps for m in milestones)]
        decay = _piecewise_constant({t: peak * gamma**i for i, t in enumerate(after)})
    elif milestones:
        raise ValueError(f"only the schedule 'step' has milestones, got {name!r} with milestones")
    else:
        end = peak if name == "constant" else peak * end_factor
        decay = _decay(name, peak, end, total_steps - warmup_steps)
    return _float32(_warm_up(decay, peak * warmup_start, peak, warmup_steps))


def _number(key: str, value: object) -> float:
    """Return the value of a schedule's key, or raise ValueError if it is not a finite number."""
    if not fits(value, float):
        raise ValueError(f"{key!r} of a schedule must be a finite int or float, got {value!r}")
    return float(value)  # pyright: ignore[reportArgumentType]


def _values(values: object, scale: int) -> dict[float, float]:
    """Return {step: value} of a schedule. Times may be strings, as in JSON.

    Args:
        values: {time: value} in the unit of the schedule.
        scale: number of steps in the unit.

    Raises:
        ValueError: unless the times are different numbers from 0 on, and the values are numbers.
    """
    if not isinstance(values, Mapping):
        raise ValueError(
            "values of a steps schedule must be a dict {time: value}, with times in the unit of "
            f"the schedule (steps or epochs), got {values!r}"
        )
    steps = {}
    for when, value in values.items():
        try:
            time = float(when) * scale
        except (TypeError, ValueError):
            raise ValueError(f"times of a steps schedule must be numbers, got {when!r}") from None
        steps[_number("time", time)] = _number("values", value)
    if len(steps) < len(values):
        raise ValueError(f"times of a steps schedule must differ, got {list(values)}")
    if not steps or min(steps) != 0:
        raise ValueError(f"values of a steps schedule must begin at 0, got {sorted(steps)}")
    return steps


def _piecewise_constant(values: Mapping[float, float]) -> optax.Schedule:
    """Return the step function with ``values`` by the step at which each value begins."""
    times = sorted(values)
    constants = [optax.constant_schedule(values[time]) for time in times]
    return optax.join_schedules(constants, times[1:])  # pyright: ignore[reportArgumentType]


def _decay(name: str, start: float, end: float, steps: int) -> optax.Schedule:
    """Decay from ``start`` to ``end`` in ``steps`` steps, along a half cosine or a line."""
    if name != "cosine":
        return optax.linear_schedule(start, end, steps)
    # optax's cosine would divide by its initial value, and `start` may be 0.
    share = optax.cosine_decay_schedule(1.0, steps)
    return lambda step: end + (start - end) * share(step)


def _warm_up(decay: optax.Schedule, low: float, high: float, steps: int) -> optax.Schedule:
    """Prepend a linear warm-up from ``low`` to ``high`` to a schedule."""
    if steps == 0:
        return decay
    return optax.join_schedules([optax.linear_schedule(low, high, steps), decay], [steps])


def _float32(schedule: optax.Schedule) -> Schedule:
    """Compute a schedule in float32, also if the step is an integer."""
    return lambda step: jnp.asarray(schedule(jnp.asarray(step, jnp.float32)), jnp.float32)
