"""Memory: numbers for every example, shared by the devices, and queues, equal on all of them.

Under a mapped axis device i has rows i r to (i + 1) r - 1 of a table of numbers for every example,
r being as many as its array has. So it may be split; where every device has all rows, the first
one's count.
"""

import math

import jax
from jax import Array, lax
from jax import numpy as jnp

from jaxssl import collectives
from jaxssl.losses.pairs import Pairs, by_view, unit


def log_average(old: Array, new: Array, weight: Array | float) -> Array:
    """log((1 - weight) e^old + weight e^new); ``new`` alone where ``old`` is -inf (never seen)."""
    keep, take = jnp.asarray(1 - weight, new.dtype), jnp.asarray(weight, new.dtype)
    mixed = jnp.logaddexp(jnp.log(keep) + old, jnp.log(take) + new)
    return jnp.where(old == -jnp.inf, new, mixed)


def read(memory: Array, pairs: Pairs) -> Array:
    """[n]: the entry of each anchor's example, of ``memory`` [r], this device's rows."""
    if pairs.axis_name is None:
        return memory[pairs.index]
    index = by_view(pairs, pairs.index)[0]
    place, own = _places(memory, pairs)
    # What is not here is 0, so that the sum over devices is what there is.
    found = jnp.where(own, memory[jnp.where(own, place, 0)], 0)
    found = collectives.sum(found, pairs.axis_name)
    first = collectives.device_index(pairs.axis_name) * len(index)
    found = lax.dynamic_slice_in_dim(found, first, len(index))
    views = (by_view(pairs, pairs.index).shape[0], 1)
    return jnp.tile(found[None], views).reshape(-1)


def write(memory: Array, pairs: Pairs, value: Array, *, logs: bool = False) -> Array:
    """`memory` with the entries of the global batch replaced.

    Args:
        memory: [r], this device's rows.
        pairs: whose examples, and on which devices.
        value: [n] of the anchors; an example's views are averaged.
        logs: whether these are logarithms of what is averaged.
    """
    views = by_view(pairs, lax.stop_gradient(value))
    if logs:
        value = jax.nn.logsumexp(views, axis=0) - math.log(views.shape[0])
    else:
        value = jnp.mean(views, axis=0)
    value = collectives.gather(value, pairs.axis_name)
    place, own = _places(memory, pairs)
    place = jnp.where(own, place, len(memory))  # beyond the end: dropped
    return memory.at[place].set(value.astype(memory.dtype), mode="drop")


def _places(memory: Array, pairs: Pairs) -> tuple[Array, Array]:
    """[B] where the batch's examples are in this device's rows, and whether they are."""
    index = collectives.gather(by_view(pairs, pairs.index)[0], pairs.axis_name)
    place = index - collectives.device_index(pairs.axis_name) * len(memory)
    return place, (place >= 0) & (place < len(memory))


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
    new = collectives.gather(unit(lax.stop_gradient(rows)), axis_name, axis=1)
    new = new.reshape(-1, dim)[-size:].astype(queue["rows"].dtype)
    place = (queue["next"] + jnp.arange(len(new), dtype=jnp.int32)) % size
    return {"rows": queue["rows"].at[place].set(new), "next": (place[-1] + 1) % size}
