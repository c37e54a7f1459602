"""Buffers that losses keep between steps: one row per example (sharded), or a queue of past keys.

A per-example buffer has one number for each example of the data set. Under a mapped axis, device i
holds the rows i r to (i + 1) r - 1, where r is the length of its array. So the buffer may be
sharded. If every device holds all rows, the first device's are used.

An index outside the buffer reads NaN and writes nothing. So the loss of a batch with such an index
is NaN, and no example reads or changes the entry of another one. One case cannot be told from a
sharded buffer: under `jax.pmap` or ``check_vma=False``, if every device holds all r rows, the
indices r and above address the copies on the other devices. Shard the buffer there.
"""

import functools

import jax
from jax import Array, lax
from jax import numpy as jnp

from jaxssl import collectives
from jaxssl.losses.pairs import Pairs, by_view, unit


def log_average(old: Array, new: Array, weight: Array | float) -> Array:
    """Return log((1 - weight) e^old + weight e^new), or ``new`` where ``old`` is -inf (unset)."""
    w_old, w_new = jnp.asarray(1 - weight, new.dtype), jnp.asarray(weight, new.dtype)
    mixed = jnp.logaddexp(jnp.log(w_old) + old, jnp.log(w_new) + new)
    return jnp.where(old == -jnp.inf, new, mixed)


def mean_log(first: Array, *others: Array) -> Array:
    """Return log of the mean of e^x over the arrays x, without entries of -inf, which are unset.

    Equal numbers are returned unchanged.
    """
    arrays = (first, *others)
    top = functools.reduce(jnp.maximum, arrays)
    shift = jnp.where(top == -jnp.inf, 0, top)
    number = jnp.maximum(sum((x > -jnp.inf).astype(x.dtype) for x in arrays), 1)
    return shift + jnp.log(sum(jnp.exp(x - shift) for x in arrays) / number)


def require_per_anchor(x: Array | float, pairs: Pairs, name: str) -> None:
    """Raise ValueError unless an array has shape [n], with a number for each anchor."""
    if (shape := jnp.shape(x)) != pairs.anchor.shape[:1]:
        raise ValueError(
            f"{name} must have shape {list(pairs.anchor.shape[:1])}, one number for each anchor, "
            f"got {list(shape)}"
        )


def read_examples(buffer: Array, pairs: Pairs) -> Array:
    """Read the anchors' entries [n] from a per-example buffer; NaN for an index out of range."""
    if collectives.is_replicated(buffer, pairs.axis_name):
        entries = buffer.at[pairs.index]
        return entries.get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)
    num_views, b = by_view(pairs, pairs.index).shape
    row, is_local = _local_rows(buffer, pairs)
    # Each entry lies on one device only. The others add 0, so the sum over devices is the entry.
    entries = jnp.where(is_local, buffer[jnp.where(is_local, row, 0)], 0)
    entries = collectives.sum(entries, pairs.axis_name)
    first = collectives.device_index(pairs.axis_name) * b
    entries = lax.dynamic_slice_in_dim(entries, first, b)
    entries = jnp.tile(entries[None], (num_views, 1)).reshape(-1)
    num_examples = len(buffer) * collectives.device_count(pairs.axis_name)
    inside = (pairs.index >= 0) & (pairs.index < num_examples)
    return jnp.where(inside, entries, jnp.nan)


def write_examples(buffer: Array, pairs: Pairs, value: Array, *, logs: bool = False) -> Array:
    """Return a per-example buffer with new values for the examples of the global batch.

    Args:
        buffer: [r], this device's rows.
        pairs: pairs with the index of each anchor's example.
        value: [n] new entries of the anchors. The views of an example are averaged.
        logs: True if entries are logarithms of the numbers to average.
    """
    views = by_view(pairs, lax.stop_gradient(value))
    value = mean_log(*views) if logs else jnp.mean(views, axis=0)
    replicated = collectives.is_replicated(buffer, pairs.axis_name)
    value = collectives.gather(value, pairs.axis_name, equal=replicated)
    row, is_local = _local_rows(buffer, pairs)
    row = jnp.where(is_local, row, len(buffer))  # an index beyond the end is dropped by the scatter
    return buffer.at[row].set(value.astype(buffer.dtype), mode="drop")


def _local_rows(buffer: Array, pairs: Pairs) -> tuple[Array, Array]:
    """Return the rows [B] of the global batch in this device's buffer, and which are inside it."""
    replicated = collectives.is_replicated(buffer, pairs.axis_name)
    index = collectives.gather(by_view(pairs, pairs.index)[0], pairs.axis_name, equal=replicated)
    first = 0 if replicated else collectives.device_index(pairs.axis_name) * len(buffer)
    row = index - first
    return row, (row >= 0) & (row < len(buffer))


def empty_queue(key: Array, size: int, dim: int) -> dict[str, Array]:
    """Create a queue of ``size`` random unit vectors, which stand for past keys.

    Returns:
        "rows": [size, dim] float32; "next": [] int32, the row that is replaced next.
    """
    return {"rows": unit(jax.random.normal(key, (size, dim), jnp.float32)), "next": jnp.int32(0)}


def enqueue(queue: dict[str, Array], rows: Array, axis_name: str | None) -> dict[str, Array]:
    """Replace the oldest entries of a queue of keys by the L2-normalised ``rows`` of all devices.

    Args:
        queue: from `empty_queue`.
        rows: [V, b, d], this device's rows. If they exceed the queue, the last ones are stored.
        axis_name: mapped axis whose devices share the batch, or None.
    """
    size, dim = queue["rows"].shape
    new = collectives.gather(unit(lax.stop_gradient(rows)), axis_name, axis=1, equal=True)
    new = new.reshape(-1, dim)[-size:].astype(queue["rows"].dtype)
    position = (queue["next"] + jnp.arange(len(new), dtype=jnp.int32)) % size
    return {"rows": queue["rows"].at[position].set(new), "next": (position[-1] + 1) % size}
