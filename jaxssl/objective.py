"""An objective: a loss, what it learns, what it remembers. The idea of optax's (init, update)."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jax import Array
from jax import numpy as jnp
from jax.core import Tracer

from jaxssl import parallel
from jaxssl.pairs import Pairs, positives

Number = float | Array | Callable[[Array], Array]  # a schedule is a function of the step
Metrics = dict[str, Array]


class Objective(NamedTuple):
    """Pure functions that a method calls.

    Attributes:
        init: ``(key, num_examples) -> (params, memory)``. The optimiser moves ``params`` beside
            the network's; ``memory`` is what a step hands to the next one.
        loss: ``(pairs, params, memory, *, step, key, axis_name) -> (scalar, memory, metrics)``.
            The scalar is this device's share: its mean over devices is the loss.
    """

    init: Callable[[Array, int], tuple[Any, Any]]
    loss: Callable[..., tuple[Array, Any, Metrics]]


def stateless(
    loss_fn: Callable[..., Array], learn: tuple[str, ...] = ()
) -> Callable[..., Objective]:
    """`(**hyper) -> Objective` for a loss without memory.

    Any hyper-parameter may be a number or a schedule. Those named in ``learn`` are trained, from
    the value given; ``objective(learn=...)`` overrides which.

    Args:
        loss_fn: ``(pairs, **hyper) -> [n]``.
        learn: names of the hyper-parameters that are trained by default.
    """
    parameters = list(inspect.signature(loss_fn).parameters.values())[1:]
    keyword = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    keyword.append(inspect.Parameter("learn", inspect.Parameter.KEYWORD_ONLY, default=learn))
    signature = inspect.Signature(keyword)

    def objective(**hyper: Any) -> Objective:
        bound = signature.bind(**hyper)
        bound.apply_defaults()
        fixed = dict(bound.arguments)
        learned = {name: _initial(name, fixed) for name in fixed.pop("learn")}

        def init(key: Array, num_examples: int) -> tuple[Any, Any]:
            del key, num_examples
            return {name: jnp.float32(value) for name, value in learned.items()}, ()

        def loss(pairs, params, memory, *, step, key, axis_name):
            del key
            now = {k: v(step) if callable(v) else v for k, v in fixed.items()} | params
            per_anchor = loss_fn(pairs, **now)
            value, alone = mean_over_anchors(per_anchor, pairs, axis_name)
            return value, memory, {"anchors_without_positive": alone, **params}

        return Objective(init, loss)

    objective.__signature__ = signature
    return objective


def mean_over_anchors(
    per_anchor: Array, pairs: Pairs, axis_name: str | None
) -> tuple[Array, Array]:
    """The mean over the anchors of all devices that have a positive, and the share without one.

    Args:
        per_anchor: [n] losses.
        pairs: what they were computed from.
        axis_name: the mapped axis, or None.

    Returns:
        This device's share of the mean (the mean of the shares is the mean), and this device's
        share of anchors without a positive, in [0, 1].
    """
    has_positive = jnp.any(positives(pairs), axis=1).astype(per_anchor.dtype)
    count = parallel.mean(jnp.sum(has_positive), axis_name)
    value = jnp.sum(per_anchor * has_positive) / jnp.maximum(count, 1e-9)
    return value, 1 - jnp.mean(has_positive)


def require_positive(**hyper: Number) -> None:
    """Raise ValueError for a hyper-parameter known at trace time that is not > 0."""
    for name, value in hyper.items():
        if not isinstance(value, Tracer) and not np.all(np.asarray(value) > 0):
            raise ValueError(f"{name} must be > 0, got {value}")


def _initial(name: str, hyper: dict[str, Any]) -> float:
    if name not in hyper:
        raise ValueError(f"learn names {name!r}, expected some of {sorted(hyper)}")
    value = hyper.pop(name)
    if callable(value) or isinstance(value, str | bool):
        raise ValueError(f"{name} is learned, so its value must be a number, got {value!r}")
    return float(value)
