"""An objective: a loss, what it learns, what it remembers. The idea of optax's (init, update)."""

import inspect
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from jax import numpy as jnp
from jax.core import Tracer

from jaxssl import collectives
from jaxssl.losses.pairs import Pairs, count_positives

Number = float | Array | Callable[[Array], Array]  # a schedule is a function of the step
Metrics = dict[str, Array]


def mean_memory(memories: Sequence[Any]) -> Any:
    """The mean of what several pairings of one batch would have remembered, leaf by leaf."""
    if len(memories) == 1:  # as it is: a mean would turn integers into floats
        return memories[0]
    return jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *memories)


def last_memory(memories: Sequence[Any]) -> Any:
    """What the last of several pairings would have remembered; for queues."""
    return memories[-1]


class Objective(NamedTuple):
    """Pure functions that a method calls.

    Attributes:
        init: ``(key, num_examples, dim) -> (params, memory)`` for embeddings of ``dim`` features.
            The optimiser moves ``params`` beside the network's; ``memory`` is what a step hands to
            the next one, and equal on all devices.
        loss: ``(pairs, params, memory, *, step, key) -> (scalar, memory, metrics)``. The scalar is
            this device's share: its mean over devices is the loss.
        merge: ``[memory] -> memory``. A step with several pairings of its batch (two directions,
            small crops) starts each from the same memory and merges what they return.
        per_example: whether memory is made of numbers for every example, whose rows the devices may
            share, see `jaxssl.losses.memory`.
        needs_other_keys: whether positives must come from another network, or the anchors from a
            predictor; two views of one network would be their own targets.
        needs_predictor: whether the loss collapses to constant embeddings without a predictor.
        needs_two_towers: whether the pairs must come from `pair_towers`.
        needs_two_views: whether an anchor must have another view of its example, or a key, even if
            there are labels.
        needs_labels: whether the pairs must be labelled.
        takes_labels: False if labels would be ignored or refused.
        takes_queue: False if a queue's rows would be ignored or refused.
        one_tower_only: whether the pairs must come from `pair_views`.
    """

    init: Callable[[Array, int, int], tuple[Any, Any]]
    loss: Callable[..., tuple[Array, Any, Metrics]]
    merge: Callable[[Sequence[Any]], Any] = mean_memory
    per_example: bool = False
    needs_other_keys: bool = False
    needs_predictor: bool = False
    needs_two_towers: bool = False
    needs_two_views: bool = False
    needs_labels: bool = False
    takes_labels: bool = True
    takes_queue: bool = True
    one_tower_only: bool = False


def stateless(
    loss_fn: Callable[..., Any],
    learn: tuple[str, ...] = (),
    *,
    has_aux: bool = False,
    **needs: bool | Callable[[dict[str, Any]], bool],
) -> Callable[..., Objective]:
    """`(**hyper) -> Objective` for a loss without memory.

    Any hyper-parameter may be a number or a schedule. Those named in ``learn`` are trained, from
    the value given; ``objective(learn=...)`` overrides which.

    Args:
        loss_fn: ``(pairs, **hyper) -> [n]``.
        learn: names of the hyper-parameters that are trained by default.
        has_aux: whether ``loss_fn`` returns ``([n], metrics)``.
        **needs: fields of `Objective` such as ``needs_predictor``: a bool, or a function of the
            hyper-parameters.
    """
    parameters = list(inspect.signature(loss_fn).parameters.values())[1:]
    keyword = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    keyword.append(inspect.Parameter("learn", inspect.Parameter.KEYWORD_ONLY, default=learn))
    signature = inspect.Signature(keyword)

    def objective(**hyper: Any) -> Objective:
        bound = signature.bind(**hyper)
        bound.apply_defaults()
        fixed = dict(bound.arguments)
        flags = {name: flag(fixed) if callable(flag) else flag for name, flag in needs.items()}
        learned = {name: _initial(name, fixed) for name in fixed.pop("learn")}

        def init(key: Array, num_examples: int, dim: int) -> tuple[Any, Any]:
            del key, num_examples, dim
            return {name: jnp.float32(value) for name, value in learned.items()}, ()

        def loss(pairs, params, memory, *, step, key):
            del key
            out = loss_fn(pairs, **at_step(fixed, step), **params)
            per_anchor, metrics = out if has_aux else (out, {})
            value, alone = mean_over_anchors(per_anchor, pairs)
            return value, memory, {"anchors_without_positive": alone, **metrics, **params}

        return Objective(init, loss, **flags)

    objective.__signature__ = signature
    return objective


def at_step(hyper: dict[str, Any], step: Array) -> dict[str, Any]:
    """`hyper` with every schedule at its value for ``step``."""
    return {k: v(step) if callable(v) else v for k, v in hyper.items()}


def mean_over_anchors(per_anchor: Array, pairs: Pairs) -> tuple[Array, Array]:
    """The mean over the anchors of all devices that have a positive, and the share without one.

    Args:
        per_anchor: [n] losses.
        pairs: what they were computed from.

    Returns:
        This device's share of the mean (the mean of the shares is the mean), and this device's
        share of anchors without a positive, in [0, 1].
    """
    has_positive = (count_positives(pairs) > 0).astype(per_anchor.dtype)
    count = collectives.mean(jnp.sum(has_positive), pairs.axis_name)
    value = jnp.sum(per_anchor * has_positive) / jnp.maximum(count, 1e-9)
    return value, 1 - jnp.mean(has_positive)


def on_arrays(loss_fn: Callable[..., Array], pair: Callable[..., Pairs]) -> Callable[..., Array]:
    """The loss for those who do not want to know about pairs: ``(z1, z2, **hyper) -> scalar``.

    Args:
        loss_fn: ``(pairs, **hyper) -> [n]``.
        pair: `pair_views` for a loss over all rows of both arrays, `pair_towers` for one whose
            first array holds the anchors and whose second their keys.
    """

    def on_two_arrays(
        z1: Array,
        z2: Array,
        *args: Any,
        labels: Array | None = None,
        axis_name: str | None = None,
        **hyper: Any,
    ) -> Array:
        if pair.__name__ == "pair_views":
            pairs = pair([z1, z2], labels=labels, axis_name=axis_name)
        else:
            pairs = pair(z1, z2, labels=labels, axis_name=axis_name)
        return mean_over_anchors(loss_fn(pairs, *args, **hyper), pairs)[0]

    name = loss_fn.__name__.removesuffix("_loss")
    rows = "rows of both" if pair.__name__ == "pair_views" else "rows of z1, whose keys are z2,"
    on_two_arrays.__name__ = on_two_arrays.__qualname__ = name
    on_two_arrays.__doc__ = f"""`{name}_loss` of two [b, d] arrays, row by row two views.

    ``{name}(z1, z2, *, labels=None, axis_name=None, **hyper) -> scalar``: the mean over the
    {rows} that have a positive. ``labels`` [b] makes rows of a class positives;
    under a mapped ``axis_name`` the batch is that of all devices, and the scalar this device's
    share (`jax.lax.pmean` of it is the loss). ``hyper`` as in `{name}_loss`:

    {inspect.cleandoc(loss_fn.__doc__ or "")}
    """
    return on_two_arrays


def require_positive(**hyper: Number) -> None:
    """Raise ValueError for a hyper-parameter known at trace time that is not > 0."""
    _require(lambda x: x > 0, "> 0", hyper)


def require_not_negative(**hyper: Number) -> None:
    """Raise ValueError for a hyper-parameter known at trace time that is not >= 0."""
    _require(lambda x: x >= 0, ">= 0", hyper)


def require_share(**hyper: Number) -> None:
    """Raise ValueError for a hyper-parameter known at trace time that is not in [0, 1]."""
    _require(lambda x: (x >= 0) & (x <= 1), "in [0, 1]", hyper)


def require_one_of(options: Collection[str], **hyper: Any) -> None:
    """Raise ValueError for a choice that is none of ``options``."""
    for name, value in hyper.items():
        if value not in options:
            valid = ", ".join(f'"{option}"' for option in options)
            raise ValueError(f"{name} must be one of {valid}, got {value!r}")


def _require(holds: Callable[[np.ndarray], Any], expected: str, hyper: dict[str, Any]) -> None:
    for name, value in hyper.items():
        if not isinstance(value, Tracer) and not np.all(holds(np.asarray(value))):
            raise ValueError(f"{name} must be {expected}, got {value}")


def _initial(name: str, hyper: dict[str, Any]) -> float:
    if name not in hyper:
        raise ValueError(f"learn names {name!r}, expected some of {sorted(hyper)}")
    value = hyper.pop(name)
    if callable(value) or isinstance(value, str | bool):
        raise ValueError(f"{name} is learned, so its value must be a number, got {value!r}")
    return float(value)
