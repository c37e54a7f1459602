"""Anchors, candidates and who is whose positive: views, labels, queues and devices end here.

A loss sees only `Pairs`. Two rows with the same id are positives; the anchor itself is neither
positive nor negative. Ids stand in for [n, m] masks, which blockwise losses need not hold.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import jax
from jax import Array, lax
from jax import numpy as jnp

from jaxssl import collectives

NO_ID = -1  # the id of a queue's rows: nobody's positive
ZERO = 1e-12  # embeddings shorter than about this count as zero


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Pairs:
    """n anchors of this device against the m candidates of all devices.

    Attributes:
        anchor: [n, d] this device's embeddings as the network gave them, not normalised; view by
            view if there are several.
        candidate: [m, d] every device's embeddings, then the queue's. XLA drops the gather if the
            loss does without.
        partner: [n, d] each anchor's own positive: its example's next view, or its key.
        anchor_id: [n] int32, >= 0. Equal ids are positives: an example index, or a class label.
        candidate_id: [m] int32; `NO_ID` is no anchor's positive.
        self_index: [n] int32, where anchor i stands among the candidates; -1 if it does not.
        index: [n] int32, the anchor's place in the data set, for per-example memory.
        num_views: V, how many views of an example are among the anchors; 0 for two towers, whose
            anchors are not among the candidates. Static, like those that follow.
        labelled: whether ids are class labels.
        queue_only: whether the negatives are the queue's rows alone.
        axis_name: the mapped axis whose devices share the batch, or None.
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
    axis_name: str | None = None,
) -> Pairs:
    """Every view of every example against all others, as in SimCLR, SupCon and TCL.

    Args:
        views: [V, b, d], or V arrays [b, d]: V >= 1 views of this device's b examples. Anchors
            are ordered view by view.
        index: [b] int, each example's place in the data set; default: its place in the batch.
        labels: [b] int >= 0. When given, all views of a class are positives.
        axis_name: the mapped axis whose devices share the batch, or None.

    Raises:
        ValueError: on arrays of wrong rank, shape or dtype.
    """
    z = _stack(views)
    num_views, b, d = z.shape
    index = _check_ids(index, b, "index", axis_name)
    ids = index if labels is None else _check_ids(labels, b, "labels", axis_name)
    everyone = collectives.gather(z, axis_name, axis=1)
    everyone_id = collectives.gather(ids, axis_name)
    global_batch = everyone.shape[1]
    first = collectives.device_index(axis_name) * b
    own = _count(num_views)[:, None] * global_batch + first + _count(b)[None, :]
    return Pairs(
        anchor=z.reshape(-1, d),
        candidate=everyone.reshape(-1, d),
        partner=jnp.roll(z, -1, axis=0).reshape(-1, d),
        anchor_id=jnp.tile(ids, num_views),
        candidate_id=jnp.tile(everyone_id, num_views),
        self_index=own.reshape(-1),
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
    """Queries against keys of another tower, as in MoCo, BYOL and CLIP.

    Args:
        query: [b, d] anchors; they are not among the candidates.
        key: [b, d], row i belongs to query i. Stop its gradient beforehand where the method does.
        index: [b] int, each example's place in the data set; default: its place in the batch.
        labels: [b] int >= 0. When given, all keys of a class are positives.
        queue: [k, d] further candidates, equal on all devices; positives of nobody.
        batch_negatives: False takes the negatives from the queue alone, as MoCo-v2 and ReSSL do.
        gathered: [B, d] the keys of all devices, where they are at hand; None gathers them.
        axis_name: the mapped axis whose devices share the batch, or None.

    Raises:
        ValueError: on arrays of wrong rank, shape or dtype, or no negatives at all.
    """
    # Not stacked: keys without gradient stay so, and none is computed or sent for them.
    query, key = _alike([query, key])
    b, d = query.shape
    index = _check_ids(index, b, "index", axis_name)
    ids = index if labels is None else _check_ids(labels, b, "labels", axis_name)
    candidate = collectives.gather(key, axis_name) if gathered is None else gathered
    candidate_id = collectives.gather(ids, axis_name)
    if queue is not None:
        if queue.ndim != 2 or queue.shape[1] != d:
            raise ValueError(f"queue must have shape [k, {d}] like the keys, got {queue.shape}")
        candidate = jnp.concatenate([candidate, queue.astype(candidate.dtype)])
        nobody = jnp.full_like(candidate_id, NO_ID, shape=(queue.shape[0],))
        candidate_id = jnp.concatenate([candidate_id, nobody])
    elif not batch_negatives:
        raise ValueError("batch_negatives=False needs a queue to take the negatives from")
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


def swap(pairs: Pairs) -> Pairs:
    """The other direction of two towers: keys look for their queries. Views swap to themselves.

    Raises:
        ValueError: if there is a queue, which has no queries.
    """
    if pairs.num_views:
        return pairs
    if pairs.candidate.shape[0] != pairs.anchor.shape[0] * collectives.device_count(
        pairs.axis_name
    ):
        raise ValueError("both directions of two towers were asked for, but there is a queue")
    labels = pairs.anchor_id if pairs.labelled else None
    return pair_towers(pairs.partner, pairs.anchor, pairs.index, labels, axis_name=pairs.axis_name)


def views_of(pairs: Pairs, name: str) -> Array:
    """[V, b, d]: this device's views, or query and key; for losses without negatives.

    Raises:
        ValueError: if there is a single view; it names the loss.
    """
    if pairs.num_views == 0:
        return jnp.stack([pairs.anchor, pairs.partner])
    if pairs.num_views == 1:
        raise ValueError(f"{name} needs two views or two towers, got one view")
    return by_view(pairs, pairs.anchor)


def partners(pairs: Pairs, name: str) -> list[Array]:
    """Each anchor's own positives, [n, d] each: its key, or its example's V - 1 other views.

    Raises:
        ValueError: if there is a single view; it names the loss.
    """
    if pairs.num_views == 0:
        return [pairs.partner]
    views = views_of(pairs, name)
    others = (jnp.roll(views, -shift, axis=0) for shift in range(1, pairs.num_views))
    return [other.reshape(pairs.anchor.shape) for other in others]


def by_view(pairs: Pairs, x: Array) -> Array:
    """[n, ...] of the anchors as [V, b, ...]; V is 1 for towers."""
    return x.reshape(max(pairs.num_views, 1), -1, *x.shape[1:])


def everyone(pairs: Pairs, x: Array) -> Array:
    """[V, B, ...]: `x` [n, ...] of the anchors of all devices, in the order of the batch."""
    return collectives.gather(by_view(pairs, x), pairs.axis_name, axis=1)


def not_self(pairs: Pairs) -> Array:
    """[n, m] bool: candidate j takes part for anchor i, that is, as positive or negative."""
    others = _count(pairs.candidate.shape[0])[None, :] != pairs.self_index[:, None]
    return others & (_from_queue(pairs) | _same(pairs)) if pairs.queue_only else others


def positives(pairs: Pairs) -> Array:
    """[n, m] bool: candidate j has anchor i's id and is not anchor i itself."""
    return _same(pairs) & (_count(pairs.candidate.shape[0])[None, :] != pairs.self_index[:, None])


def negatives(pairs: Pairs) -> Array:
    """[n, m] bool: candidate j has another id than anchor i."""
    return ~_same(pairs) & _from_queue(pairs) if pairs.queue_only else ~_same(pairs)


def count_positives(pairs: Pairs) -> Array:
    """[n] int32: how many positives each anchor has, without an [n, m] mask."""
    ids = jnp.sort(pairs.candidate_id)
    first = jnp.searchsorted(ids, pairs.anchor_id, side="left", method="scan_unrolled")
    last = jnp.searchsorted(ids, pairs.anchor_id, side="right", method="scan_unrolled")
    return (last - first).astype(jnp.int32) - (pairs.self_index >= 0).astype(jnp.int32)


def unit(z: Array) -> Array:
    """Rows of ``z`` at length 1, in float32 or wider; a zero row gives zeros and no gradient.

    Rows are first divided by their largest entry, so that no finite input overflows the square;
    one whose largest entry is below `ZERO` counts as zero, so that no gradient overflows.
    """
    z = wide(z)
    largest = lax.stop_gradient(jnp.max(jnp.abs(z), axis=-1, keepdims=True))
    nonzero = largest >= ZERO
    z = jnp.where(nonzero, z, 0) / jnp.where(nonzero, largest, 1)
    square = jnp.sum(z * z, axis=-1, keepdims=True)
    return z * lax.rsqrt(jnp.where(nonzero, square, 1))


def wide(z: Array) -> Array:
    """`z` in float32, or float64 if it is."""
    return z if z.dtype == jnp.float64 else z.astype(jnp.float32)


def dot(x: Array, y: Array) -> Array:
    """[n, m] inner products of rows [n, d] and [m, d], at full precision on every device."""
    return jnp.matmul(x, y.T, precision=lax.Precision.HIGHEST)


def cosine(pairs: Pairs) -> Array:
    """[n, m] cosine similarity of anchors and candidates, float32 or wider, in [-1, 1]."""
    return dot(unit(pairs.anchor), unit(pairs.candidate))


def distance(pairs: Pairs) -> Array:
    """[n, m] Euclidean distance of anchors and candidates as they are, float32 or wider.

    Its gradient is 0 between equal rows.
    """
    x, y = wide(pairs.anchor), wide(pairs.candidate)
    largest = lax.stop_gradient(jnp.maximum(jnp.max(jnp.abs(x)), jnp.max(jnp.abs(y))))
    scale = jnp.where(largest >= ZERO, largest, 1)
    x, y = x / scale, y / scale
    square = jnp.sum(x * x, axis=1)[:, None] + jnp.sum(y * y, axis=1)[None, :] - 2 * dot(x, y)
    apart = square > 4 * jnp.finfo(x.dtype).eps * x.shape[1]
    return jnp.where(apart, jnp.sqrt(jnp.where(apart, square, 1)), 0) * scale


def _same(pairs: Pairs) -> Array:
    return pairs.anchor_id[:, None] == pairs.candidate_id[None, :]


def _from_queue(pairs: Pairs) -> Array:
    return (pairs.candidate_id == NO_ID)[None, :]


def _count(n: int) -> Array:
    return jnp.arange(n, dtype=jnp.int32)


def _stack(views: Array | Sequence[Array]) -> Array:
    """[V, b, d] of one floating dtype, or a ValueError that names the shapes."""
    if not isinstance(views, jax.Array):
        return jnp.stack(_alike(views))
    if views.ndim == 0:
        raise ValueError("embeddings must have shape [b, d] per view, got a scalar")
    _check_rows(views.shape[1:], views.dtype)
    return views


def _alike(views: Sequence[Array]) -> list[Array]:
    """Arrays [b, d] of one shape and one floating dtype, or a ValueError that names the shapes."""
    views = [jnp.asarray(v) for v in views]
    shapes = sorted({v.shape for v in views})
    if len(shapes) != 1:
        raise ValueError(f"views must be one or more arrays of one shape [b, d], got {shapes}")
    dtype = jnp.result_type(*views)
    _check_rows(shapes[0], dtype)
    return [v.astype(dtype) for v in views]


def _check_rows(shape: tuple[int, ...], dtype: jnp.dtype) -> None:
    if len(shape) != 2:
        raise ValueError(f"embeddings must have shape [b, d] per view, got {shape}")
    if not jnp.issubdtype(dtype, jnp.floating):
        raise ValueError(f"embeddings must be floating point, got {dtype}")


def _check_ids(ids: Array | None, b: int, name: str, axis_name: str | None) -> Array:
    """[b] int32 ids; by default each example's place in the global batch."""
    if ids is None:
        return collectives.device_index(axis_name) * b + _count(b)
    ids = jnp.asarray(ids)
    if ids.shape != (b,) or not jnp.issubdtype(ids.dtype, jnp.integer):
        raise ValueError(f"{name} must be [{b}] integers, got {ids.dtype}{list(ids.shape)}")
    return ids.astype(jnp.int32)
