"""Hyper-parameters as functions of the step, written as data in a config.

temperature = 0.5                                                        a constant
temperature = dict(schedule="steps", values={"0": 0.02, "75": 0.2}, unit="epochs")
momentum = dict(schedule="cosine", start=0.99, end=1.0)
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import optax
from jax import Array
from jax import numpy as jnp

Schedule = Callable[[Array], Array]
KEYS = {
    "steps": {"values"},
    "linear": {"start", "end", "until"},
    "cosine": {"start", "end", "until"},
}


def from_spec(spec: Any, *, steps_per_epoch: int, total_steps: int) -> Any:
    """`spec` itself if it is no schedule, else the function of the step that it describes.

    Args:
        spec: a plain value, or a mapping with "schedule": "steps" ("values": {when: value}, the
            value from that time on, the first at 0), "linear" or "cosine" (from "start" to "end" at
            "until", by default the end of the run). "unit" is "steps" (default) or "epochs".
        steps_per_epoch: converts epochs.
        total_steps: the length of the run.

    Raises:
        ValueError: on an unknown schedule, unit or key, or values that do not begin at 0.
    """
    if not isinstance(spec, Mapping) or "schedule" not in spec:
        return spec
    name, unit = spec["schedule"], spec.get("unit", "steps")
    if name not in KEYS:
        raise ValueError(f"schedule must be one of {sorted(KEYS)}, got {name!r}")
    if unit not in ("steps", "epochs"):
        raise ValueError(f'unit must be "steps" or "epochs", got {unit!r}')
    unknown = set(spec) - KEYS[name] - {"schedule", "unit"}
    if unknown:
        raise ValueError(
            f"schedule {name!r} has no key {sorted(unknown)[0]!r}, it has {sorted(KEYS[name])}"
        )
    missing = KEYS[name] - {"until"} - set(spec)
    if missing:
        raise ValueError(f"schedule {name!r} needs {sorted(missing)[0]!r}")
    scale = steps_per_epoch if unit == "epochs" else 1
    if name == "steps":
        return _steps({float(k) * scale: float(v) for k, v in dict(spec["values"]).items()})
    start, end = float(spec["start"]), float(spec["end"])
    until = round(float(spec["until"]) * scale) if "until" in spec else total_steps
    if until < 1:
        raise ValueError(
            f"schedule {name!r} must end after a step or more, got until={spec['until']}"
        )

    def ramp(step: Array) -> Array:
        done = jnp.clip(jnp.asarray(step, jnp.float32) / until, 0, 1)
        share = done if name == "linear" else (1 - jnp.cos(jnp.pi * done)) / 2
        return start + (end - start) * share

    return ramp


def learning_rate(
    name: str, peak: float, *, warmup_steps: int, total_steps: int, end_factor: float = 0.0
) -> Schedule:
    """Linear warm-up from 0 to ``peak``, then "constant", "cosine" or "linear" decay.

    Args:
        name: the decay.
        peak: the rate after warm-up, > 0.
        warmup_steps: >= 0.
        total_steps: where the decay ends, > warmup_steps.
        end_factor: the last rate is ``peak * end_factor``.

    Raises:
        ValueError: on an unknown name or a warm-up that fills the run.
    """
    if warmup_steps >= total_steps:
        raise ValueError(f"warm-up takes {warmup_steps} steps, the whole run has {total_steps}")
    decay_steps = total_steps - warmup_steps
    decays = {
        "constant": lambda: optax.constant_schedule(peak),
        "cosine": lambda: optax.cosine_decay_schedule(peak, decay_steps, end_factor),
        "linear": lambda: optax.linear_schedule(peak, peak * end_factor, decay_steps),
    }
    if name not in decays:
        raise ValueError(f"schedule.name must be one of {sorted(decays)}, got {name!r}")
    rate = decays[name]()
    if warmup_steps > 0:
        warmup = optax.linear_schedule(0.0, peak, warmup_steps)
        rate = optax.join_schedules([warmup, rate], [warmup_steps])
    return lambda step: jnp.asarray(rate(jnp.asarray(step, jnp.float32)), jnp.float32)


def _steps(values: dict[float, float]) -> Schedule:
    times = sorted(values)
    if not times or times[0] != 0:
        raise ValueError(f"values of a steps schedule must begin at 0, got {times}")
    boundaries = jnp.asarray(times[1:], jnp.float32)
    levels = jnp.asarray([values[t] for t in times], jnp.float32)

    def level(step: Array) -> Array:
        passed = jnp.sum(boundaries <= jnp.asarray(step, jnp.float32), dtype=jnp.int32)
        return jax.lax.dynamic_index_in_dim(levels, passed, keepdims=False)

    return level
