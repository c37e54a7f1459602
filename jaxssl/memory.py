"""Memory, equal on all devices: a number for every example, queues of rows, a running centre."""

import math

import jax
from jax import Array, lax
from jax import numpy as jnp

from jaxssl import parallel
from jaxssl.pairs import Pairs, by_view, unit, wide


def log_average(old: Array, new: Array, weight: Array | float) -> Array:
    """log((1 - weight) e^old + weight e^new); ``new`` alone where ``old`` is -inf (never seen)."""
    keep, take = jnp.asarray(1 - weight, new.dtype), jnp.asarray(weight, new.dtype)
    mixed = jnp.logaddexp(jnp.log(keep) + old, jnp.log(take) + new)
    return jnp.where(old == -jnp.inf, new, mixed)


def read(memory: Array, pairs: Pairs) -> Array:
    """[n]: the entry of each anchor's example."""
    return memory[pairs.index]


def write(memory: Array, pairs: Pairs, value: Array, *, logs: bool = False) -> Array:
    """`memory` [N] with the entries of the global batch replaced.

    Args:
        memory: [N].
        pairs: whose examples, and on which devices.
        value: [n] of the anchors; an example's views are averaged.
        logs: whether these are logarithms of what is averaged.
    """
    views = by_view(pairs, lax.stop_gradient(value))
    if logs:
        value = jax.nn.logsumexp(views, axis=0) - math.log(views.shape[0])
    else:
        value = jnp.mean(views, axis=0)
    index = by_view(pairs, pairs.index)[0]
    value, index = (parallel.gather(x, pairs.axis_name) for x in (value, index))
    return memory.at[index].set(value.astype(memory.dtype))


def empty_queue(key: Array, size: int, dim: int) -> dict[str, Array]:
    """A queue of ``size`` rows [size, dim], random unit vectors at first."""
    return {"rows": unit(jax.random.normal(key, (size, dim))), "next": jnp.int32(0)}


def enqueue(queue: dict[str, Array], rows: Array, axis_name: str | None) -> dict[str, Array]:
    """The queue with its oldest rows replaced by those of all devices, set to length 1.

    Args:
        queue: from `empty_queue`.
        rows: [V, b, d], this device's. Of more than the queue holds, the last stay.
        axis_name: the mapped axis whose devices share the batch, or None.
    """
    size, dim = queue["rows"].shape
    new = parallel.gather(unit(lax.stop_gradient(rows)), axis_name, axis=1)
    new = new.reshape(-1, dim)[-size:].astype(queue["rows"].dtype)
    place = (queue["next"] + jnp.arange(len(new), dtype=jnp.int32)) % size
    return {"rows": queue["rows"].at[place].set(new), "next": (place[-1] + 1) % size}


def empty_center(dim: int) -> dict[str, Array]:
    """A running centre "center" [dim] of 0, beside it what a step has added up so far."""
    zero = jnp.zeros(dim)
    return {"center": zero, "sum": zero + 0, "count": jnp.int32(0), "step": jnp.int32(0)}


def center_at(memory: dict[str, Array], step: Array, momentum: Array | float) -> dict[str, Array]:
    r"""The memory at ``step``: its "center" holds the rows of all steps before, none of this one.

    .. math:: c \leftarrow m c + (1 - m) \bar t

    once when a step's first call comes, with t the rows added in the step before.

    Args:
        memory: from `empty_center`.
        step: of the call; a step may have several.
        momentum: m, in [0, 1].
    """
    center, total, count = (memory[name] for name in ("center", "sum", "count"))
    closed = (step != memory["step"]) & (count > 0)
    batch = total / jnp.maximum(count, 1).astype(total.dtype)
    return {
        "center": jnp.where(closed, momentum * center + (1 - momentum) * batch, center),
        "sum": jnp.where(closed, 0, total),
        "count": jnp.where(closed, 0, count),
        "step": jnp.asarray(step, jnp.int32),
    }


def add_to_center(memory: dict[str, Array], rows: Array, axis_name: str | None) -> dict[str, Array]:
    """The memory with the mean of ``rows`` added to what this step has; the centre stays.

    Args:
        memory: from `center_at`.
        rows: [n, d], this device's. No gradient flows through them.
        axis_name: the mapped axis whose devices share the batch, or None.
    """
    mean = parallel.mean(jnp.mean(wide(lax.stop_gradient(rows)), axis=0), axis_name)
    return {**memory, "sum": memory["sum"] + mean, "count": memory["count"] + 1}
