"""Pairs of anchors and candidates for the losses: positives are candidates with the anchor's id.

A loss sees only `Pairs`. Two rows with equal ids are positives. An anchor is neither a positive nor
a negative of itself. Ids replace [n, m] masks, so that blockwise losses never hold a mask.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp
from jax.core import Tracer

from jaxssl import collectives

NO_ID = -1  # candidate_id of past keys in a queue, which are positives of no anchor
ZERO = 1e-12  # An embedding whose entries are all smaller than this counts as zero.


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Pairs:
    """The input of a loss: n anchor embeddings of this device and m candidates of all devices.

    Attributes:
        anchor: [n, d] embeddings of this device, not normalised, ordered view by view.
        candidate: [m, d] embeddings of all devices, followed by the queue. XLA removes the gather
            if a loss does not use them.
        partner: [n, d] a positive of each anchor: the next view of its example, or its key.
        anchor_id: [n] int32, >= 0. Rows with equal ids are positives. An id is the index of an
            example, or a class label.
        candidate_id: [m] int32. `NO_ID` marks rows that are positives of no anchor.
        self_index: [n] int32, the row of anchor i among the candidates, or -1 if it is not there.
        index: [n] int32, the index of each anchor's example in the data set.
        num_views: number of views of each example among the anchors. 0 means two towers, where
            the anchors are not candidates. This and the next fields are static.
        labelled: True if ids are class labels.
        queue_only: True if only the rows of the queue are negatives.
        axis_name: mapped axis whose devices share the batch, or None.
    """

    anchor: Array
    candidate: Array
    partner: Array
    anchor_id: Array
    candidate_id: Array
    self_index: Array
    index: Array
    num_views: int = field(metadata={"static": True})
    labelled: bool = field(metadata={"static": True})
    queue_only: bool = field(metadata={"static": True})
    axis_name: str | None = field(metadata={"static": True})


def pair_views(
    views: Array | Sequence[Array],
    index: Array | None = None,
    labels: Array | None = None,
    *,
    queue: Array | None = None,
    axis_name: str | None = None,
) -> Pairs:
    """Pair every view of every example with all remaining views, as in SimCLR, SupCon and TCL.

    Args:
        views: [V, b, d], or V arrays [b, d]: V >= 1 views of this device's b examples. Anchors
            are ordered view by view. One view needs labels, or an index with repetitions.
        index: [b] int, index of each example in the data set (default: position in the batch).
        labels: [b] int >= 0. If given, all views of a class are positives.
        queue: [k, d] additional negatives of all anchors, equal on all devices.
        axis_name: mapped axis whose devices share the batch, or None.

    Raises:
        ValueError: if an array has the wrong rank, shape or dtype, or an id is out of range.
    """
    if np.isscalar(views) or getattr(views, "ndim", 3) != 3:
        raise ValueError(f"views must be [V, b, d] or a list [z1, z2], got shape {np.shape(views)}")
    z = jnp.stack(_same_shape(views))
    num_views, b, d = z.shape
    if num_views == 1 and labels is None and index is None:
        raise ValueError("one view has no positives; pass two views or labels")
    index = _check_ids(index, b, "index", axis_name)
    ids = index if labels is None else _check_ids(labels, b, "labels", axis_name)
    anchor, gathered = z.reshape(-1, d), collectives.gather(z, axis_name, axis=1)
    gathered_ids = jnp.tile(collectives.gather(ids, axis_name), num_views)
    first = collectives.device_index(axis_name) * b
    self_index = _arange(num_views)[:, None] * gathered.shape[1] + first + _arange(b)[None, :]
    candidate = anchor if gathered is z else gathered.reshape(-1, d)
    candidate, candidate_id = _append_queue(candidate, gathered_ids, queue)
    return Pairs(
        anchor=anchor,
        candidate=candidate,
        partner=jnp.roll(z, -1, axis=0).reshape(-1, d),
        anchor_id=jnp.tile(ids, num_views),
        candidate_id=candidate_id,
        self_index=self_index.reshape(-1),
        index=jnp.tile(index, num_views),
        num_views=num_views,
        labelled=labels is not None,
        queue_only=False,
        axis_name=axis_name,
    )


def pair_towers(
    query: Array,
    key: Array,
    index: Array | None = None,
    labels: Array | None = None,
    *,
    queue: Array | None = None,
    batch_negatives: bool = True,
    gathered: Array | None = None,
    axis_name: str | None = None,
) -> Pairs:
    """Pair the queries of one network with the keys of another, as in MoCo, BYOL and CLIP.

    Args:
        query: [b, d] anchors. They are not among the candidates.
        key: [b, d]. Row i belongs to query i. Apply `stop_gradient` first if the method needs it.
        index: [b] int, index of each example in the data set (default: position in the batch).
        labels: [b] int >= 0. If given, all keys of a class are positives.
        queue: [k, d] additional negatives of all anchors, equal on all devices.
        batch_negatives: False takes negatives only from the queue, as MoCo-v2 and ReSSL do.
        gathered: [B, d] keys of all devices, if already gathered; None gathers them.
        axis_name: mapped axis whose devices share the batch, or None.

    Raises:
        ValueError: if an array has the wrong rank, shape or dtype, or there are no negatives.
    """
    # Queries and keys stay separate arrays: stacked, constant keys would get a gradient too.
    query, key = _same_shape([query, key])
    b, d = query.shape
    index = _check_ids(index, b, "index", axis_name)
    ids = index if labels is None else _check_ids(labels, b, "labels", axis_name)
    candidate = collectives.gather(key, axis_name) if gathered is None else gathered
    candidate_id = collectives.gather(ids, axis_name)
    if candidate.shape != (shape := (candidate_id.shape[0], d)):
        raise ValueError(f"gathered must have shape {shape}, a row per key, got {candidate.shape}")
    if queue is None and not batch_negatives:
        raise ValueError("batch_negatives=False needs a queue of past keys, got queue=None")
    candidate, candidate_id = _append_queue(candidate, candidate_id, queue)
    return Pairs(
        anchor=query,
        candidate=candidate,
        partner=key,
        anchor_id=ids,
        candidate_id=candidate_id,
        self_index=jnp.full((b,), -1, jnp.int32),
        index=index,
        num_views=0,
        labelled=labels is not None,
        queue_only=not batch_negatives,
        axis_name=axis_name,
    )


def _append_queue(candidate: Array, ids: Array, queue: Array | None) -> tuple[Array, Array]:
    """Append past embeddings, which are positives of no anchor, to the candidates [m, d]."""
    if queue is None:
        return candidate, ids
    require_width(queue := jnp.asarray(queue), candidate.shape[1], "queue")
    if not jnp.issubdtype(queue.dtype, jnp.floating):
        raise ValueError(f"queue must be floating point, got {queue.dtype}")
    queue_ids = jnp.full_like(ids, NO_ID, shape=(queue.shape[0],))
    # A float32 queue is not rounded to the dtype of embeddings in half precision.
    dtype = max(candidate.dtype, queue.dtype, key=lambda dtype: jnp.finfo(dtype).bits)
    candidate = jnp.concatenate([candidate.astype(dtype), queue.astype(dtype)])
    return candidate, jnp.concatenate([ids, queue_ids])


def require_width(x: Array, d: int, name: str) -> None:
    """Raise ValueError unless an array has shape [k, d]."""
    if x.ndim != 2 or x.shape[1] != d:
        raise ValueError(f"{name} must have shape [k, {d}] like the embeddings, got {x.shape}")


def swap(pairs: Pairs) -> Pairs:
    """Exchange queries and keys of two towers. Pairs of views are returned unchanged.

    Raises:
        ValueError: for pairs with a queue, because its rows have no queries.
    """
    if pairs.num_views:
        return pairs
    batch = pairs.anchor.shape[0] * collectives.device_count(pairs.axis_name)
    if pairs.candidate.shape[0] != batch:
        raise ValueError("swap needs pairs without a queue; call pair_towers with queue=None")
    labels = pairs.anchor_id if pairs.labelled else None
    return pair_towers(pairs.partner, pairs.anchor, pairs.index, labels, axis_name=pairs.axis_name)


def stack_views(pairs: Pairs, name: str) -> Array:
    """Stack this device's views, or its queries and keys, to one array [V, b, d].

    Args:
        pairs: n anchors.
        name: the loss, for the error message.

    Raises:
        ValueError: if there is only one view.
    """
    if pairs.num_views == 0:
        return jnp.stack([pairs.anchor, pairs.partner])
    if pairs.num_views == 1:
        raise ValueError(f"the loss {name} needs two views of each example, got one; set views=2")
    return by_view(pairs, pairs.anchor)


def partners(pairs: Pairs, name: str) -> Array:
    """Stack the anchors' positives, [P, n, d]: a key per anchor, or the P = V - 1 other views.

    Args:
        pairs: n anchors.
        name: the loss, for the error message.

    Raises:
        ValueError: if there is only one view.
    """
    if pairs.num_views == 0:
        return pairs.partner[None]
    views = stack_views(pairs, name)
    others = [jnp.roll(views, -shift, axis=0) for shift in range(1, pairs.num_views)]
    return jnp.stack(others).reshape(len(others), *pairs.anchor.shape)


def by_view(pairs: Pairs, x: Array) -> Array:
    """Reshape per-anchor values [n, ...] to [V, b, ...], with V = 1 for queries and keys."""
    return x.reshape(max(pairs.num_views, 1), -1, *x.shape[1:])


def gather_by_view(pairs: Pairs, x: Array) -> Array:
    """Gather per-anchor values [n, ...] from all devices to [V, B, ...], in batch order."""
    return collectives.gather(by_view(pairs, x), pairs.axis_name, axis=1)


def anchor_keys(key: Array, pairs: Pairs) -> Array:
    """Derive one random key for each anchor's example and view, [n]."""
    index = by_view(pairs, pairs.index)
    view = jnp.broadcast_to(_arange(index.shape[0])[:, None], index.shape)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, index.reshape(-1))
    return jax.vmap(jax.random.fold_in)(keys, view.reshape(-1))


def not_self(pairs: Pairs) -> Array:
    """Return a bool mask [n, m] of each anchor's positives and negatives, without itself."""
    others = _arange(pairs.candidate.shape[0])[None, :] != pairs.self_index[:, None]
    return others & (_from_queue(pairs) | _same_id(pairs)) if pairs.queue_only else others


def positives(pairs: Pairs) -> Array:
    """Return a bool mask [n, m] of the candidates with the anchor's id, except the anchor."""
    return _same_id(pairs) & not_self(pairs)


def negatives(pairs: Pairs) -> Array:
    """Return a bool mask [n, m] of the candidates with another id than the anchor."""
    return ~_same_id(pairs) & _from_queue(pairs) if pairs.queue_only else ~_same_id(pairs)


def count_positives(pairs: Pairs) -> Array:
    """Count each anchor's positives [n] as int32, without an [n, m] mask."""
    itself = (pairs.self_index >= 0).astype(jnp.int32)
    if not isinstance(pairs.candidate_id.shape[0], int):  # searchsorted needs a constant batch size
        return jnp.sum(_same_id(pairs), axis=1, dtype=jnp.int32) - itself
    ids = jnp.sort(pairs.candidate_id)
    first = jnp.searchsorted(ids, pairs.anchor_id, side="left", method="scan_unrolled")
    last = jnp.searchsorted(ids, pairs.anchor_id, side="right", method="scan_unrolled")
    return (last - first).astype(jnp.int32) - itself


def unit(z: Array) -> Array:
    """L2-normalise embeddings in float32 or float64. A zero row gives zeros and no gradient.

    Rows are first divided by their largest entry, so that squares do not overflow. Rows whose
    entries are all below `ZERO` count as zero, so that gradients do not overflow. A row with a NaN
    or an infinite entry gives NaN.
    """
    z = promote(z)
    largest = lax.stop_gradient(jnp.max(jnp.abs(z), axis=-1, keepdims=True))
    zero = largest < ZERO
    z, largest = z / 4, largest / 4  # The reciprocal of the largest floats would underflow.
    z = jnp.where(zero, 0, z) / jnp.where(zero, 1, largest)
    square = jnp.sum(z * z, axis=-1, keepdims=True)
    return z * lax.rsqrt(jnp.where(zero, 1, square))


def promote(z: Array) -> Array:
    """Cast an array to float32, or leave it unchanged if it is float64."""
    return z if z.dtype == jnp.float64 else z.astype(jnp.float32)


def dot(x: Array, y: Array) -> Array:
    """Compute inner products [n, m] of rows [n, d] and [m, d] in full precision."""
    return jnp.matmul(x, y.T, precision=lax.Precision.HIGHEST)


def centre(z: Array, axis_name: str | None) -> tuple[Array, Array]:
    """Centre embeddings [..., b, d] over the global batch, and scale entries to at most 1.

    Returns:
        The centred embeddings, divided by their largest entry if it exceeds 1, because their
        squares could overflow, and that divisor []. Gradients take it as a constant, because the
        losses do not depend on it.
    """
    centred = z - collectives.mean(jnp.mean(z, axis=-2, keepdims=True), axis_name)
    largest = collectives.max(jnp.abs(lax.stop_gradient(centred)), axis_name)
    scale = jnp.maximum(largest, 1)
    return centred / scale, scale


def cosine(pairs: Pairs) -> Array:
    """Compute the cosine similarity [n, m] of anchors and candidates, in [-1, 1] up to rounding."""
    return dot(unit(pairs.anchor), unit(pairs.candidate))


def log_sum_exp(logits: Array, where: Array) -> Array:
    """Compute log(sum(e^logits)) [n] over the masked entries of each row of logits [n, m].

    An empty sum gives a large negative number in place of -inf, so that arithmetic stays finite.
    """
    return jax.nn.logsumexp(jnp.where(where, logits, log_zero(logits.dtype)), axis=1)


def log_zero(dtype: jnp.dtype) -> float:
    """Return the large negative number that stands for log 0, so that arithmetic stays finite."""
    return float(jnp.finfo(dtype).min) / 4


def zero_if_empty(log_sum: Array) -> Array:
    """Replace the log of an empty sum, a large negative number in `log_sum_exp`, by 0."""
    return jnp.where(log_sum <= log_zero(log_sum.dtype) / 2, 0, log_sum)


def mean_where(x: Array, where: Array) -> Array:
    """Average the masked entries of each row of x [n, m]. A row without any gives 0."""
    count = jnp.sum(where, axis=1, dtype=x.dtype)
    return jnp.sum(jnp.where(where, x, 0), axis=1) / jnp.maximum(count, 1)


def _same_id(pairs: Pairs) -> Array:
    return pairs.anchor_id[:, None] == pairs.candidate_id[None, :]


def _from_queue(pairs: Pairs) -> Array:
    return (pairs.candidate_id == NO_ID)[None, :]


def _arange(n: int) -> Array:
    return jnp.arange(n, dtype=jnp.int32)


def _same_shape(views: Array | Sequence[Array]) -> list[Array]:
    """Check that arrays share one shape [b, d], and cast them to one floating dtype."""
    views = [jnp.asarray(v) for v in views]
    shapes = list(dict.fromkeys(v.shape for v in views))
    if len(shapes) != 1:
        raise ValueError(f"views must be one or more arrays of one shape [b, d], got {shapes}")
    if len(shapes[0]) != 2 or shapes[0][1] == 0:
        raise ValueError(f"embeddings must have shape [b, d] per view, d > 0, got {shapes[0]}")
    if not jnp.issubdtype(dtype := jnp.result_type(*views), jnp.floating):
        raise ValueError(f"embeddings must be floating point, got {dtype}")
    if axes := {axis for view in views for axis in explicit_axes(view)}:
        raise ValueError(
            f"embeddings are sharded over the explicit mesh axes {sorted(axes)}; wrap the function "
            "that makes the pairs and computes the loss in jax.sharding.auto_axes(..., "
            "out_sharding=jax.P()), under jax.set_mesh(mesh)"
        )
    return [v.astype(dtype) for v in views]


def explicit_axes(x: Array) -> set[str]:
    """Return the mesh axes in the type of ``x``: the explicit axes over which ``x`` is sharded."""
    entries = jax.tree.leaves(tuple(jax.typeof(x).sharding.spec))
    return {axis for axis in entries if isinstance(axis, str)}


def _check_ids(ids: Array | None, b: int, name: str, axis_name: str | None) -> Array:
    """Check ids and return them as int32 [b]. None gives positions in the global batch."""
    if ids is None:
        return collectives.device_index(axis_name) * b + _arange(b)
    if isinstance(ids, np.ma.MaskedArray):
        raise ValueError(f"{name} must not be a masked array; give masked rows ids of their own")
    # Converted to a JAX array, an integer beyond int32 would wrap around.
    given = ids if isinstance(ids, Tracer) else np.asarray(ids)
    if given.shape != (b,) or not jnp.issubdtype(given.dtype, jnp.integer):
        raise ValueError(f"{name} must be [{b}] integers, got {given.dtype}{list(given.shape)}")
    if isinstance(given, np.ndarray) and (outside := given[(given < 0) | (given >= 2**31)]).size:
        raise ValueError(f"{name} must be in [0, 2^31), got {outside[0]}")
    return jnp.asarray(ids, jnp.int32)
