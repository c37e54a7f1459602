"""Anchors, candidates and who is whose positive: views, labels, queues and devices end here.

A loss sees only `Pairs`. Two rows with the same id are positives; the anchor itself is neither
positive nor negative. Ids stand in for [n, m] masks, which blockwise losses need not hold.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
from jax import Array, lax
from jax import numpy as jnp

from jaxssl import parallel

NO_ID = -1  # the id of a queue's rows: nobody's positive
ZERO = 1e-12  # embeddings shorter than about this count as zero


class Pairs(NamedTuple):
    """n anchors of this device against the m candidates of all devices.

    Attributes:
        anchor: [n, d] this device's embeddings as the network gave them, not normalised.
        candidate: [m, d] every device's embeddings, then the queue's.
        anchor_id: [n] int32, >= 0. Equal ids are positives: an example index, or a class label.
        candidate_id: [m] int32; `NO_ID` is no anchor's positive.
        self_index: [n] int32, where anchor i stands among the candidates; -1 if it does not.
        index: [n] int32, the anchor's place in the data set, for per-example memory.
    """

    anchor: Array
    candidate: Array
    anchor_id: Array
    candidate_id: Array
    self_index: Array
    index: Array


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
    everyone = parallel.gather(z, axis_name, axis=1)
    everyone_id = parallel.gather(ids, axis_name)
    global_batch = everyone.shape[1]
    first = parallel.device_index(axis_name) * b
    own = _count(num_views)[:, None] * global_batch + first + _count(b)[None, :]
    return Pairs(
        anchor=z.reshape(-1, d),
        candidate=everyone.reshape(-1, d),
        anchor_id=jnp.tile(ids, num_views),
        candidate_id=jnp.tile(everyone_id, num_views),
        self_index=own.reshape(-1),
        index=jnp.tile(index, num_views),
    )


def pair_towers(
    query: Array,
    key: Array,
    index: Array | None = None,
    labels: Array | None = None,
    *,
    queue: Array | None = None,
    axis_name: str | None = None,
) -> Pairs:
    """Queries against keys of another tower, as in MoCo, BYOL and CLIP.

    Args:
        query: [b, d] anchors; they are not among the candidates.
        key: [b, d], row i belongs to query i. Stop its gradient beforehand where the method does.
        index: [b] int, each example's place in the data set; default: its place in the batch.
        labels: [b] int >= 0. When given, all keys of a class are positives.
        queue: [k, d] further candidates, equal on all devices; positives of nobody.
        axis_name: the mapped axis whose devices share the batch, or None.

    Raises:
        ValueError: on arrays of wrong rank, shape or dtype.
    """
    z = _stack([query, key])
    b, d = z.shape[1:]
    index = _check_ids(index, b, "index", axis_name)
    ids = index if labels is None else _check_ids(labels, b, "labels", axis_name)
    candidate = parallel.gather(z[1], axis_name)
    candidate_id = parallel.gather(ids, axis_name)
    if queue is not None:
        if queue.ndim != 2 or queue.shape[1] != d:
            raise ValueError(f"queue must have shape [k, {d}] like the keys, got {queue.shape}")
        candidate = jnp.concatenate([candidate, queue.astype(candidate.dtype)])
        nobody = jnp.full_like(candidate_id, NO_ID, shape=(queue.shape[0],))
        candidate_id = jnp.concatenate([candidate_id, nobody])
    nowhere = jnp.full((b,), -1, jnp.int32)
    return Pairs(z[0], candidate, ids, candidate_id, nowhere, index)


def not_self(pairs: Pairs) -> Array:
    """[n, m] bool: whether candidate j is another row than anchor i itself."""
    return _count(pairs.candidate.shape[0])[None, :] != pairs.self_index[:, None]


def positives(pairs: Pairs) -> Array:
    """[n, m] bool: candidate j has anchor i's id and is not anchor i itself."""
    return (pairs.anchor_id[:, None] == pairs.candidate_id[None, :]) & not_self(pairs)


def negatives(pairs: Pairs) -> Array:
    """[n, m] bool: candidate j has another id than anchor i."""
    return pairs.anchor_id[:, None] != pairs.candidate_id[None, :]


def unit(z: Array) -> Array:
    """Rows of ``z`` at length 1, in float32 or wider; a zero row gives zeros and no gradient.

    Rows are first divided by their largest entry, so that no finite input overflows the square;
    one whose largest entry is below `ZERO` counts as zero, so that no gradient overflows.
    """
    z = z if z.dtype == jnp.float64 else z.astype(jnp.float32)
    largest = lax.stop_gradient(jnp.max(jnp.abs(z), axis=-1, keepdims=True))
    nonzero = largest >= ZERO
    z = jnp.where(nonzero, z, 0) / jnp.where(nonzero, largest, 1)
    square = jnp.sum(z * z, axis=-1, keepdims=True)
    return z * lax.rsqrt(jnp.where(nonzero, square, 1))


def cosine(pairs: Pairs) -> Array:
    """[n, m] cosine similarity of anchors and candidates, float32 or wider, in [-1, 1]."""
    return jnp.matmul(unit(pairs.anchor), unit(pairs.candidate).T, precision=lax.Precision.HIGHEST)


def _count(n: int) -> Array:
    return jnp.arange(n, dtype=jnp.int32)


def _stack(views: Array | Sequence[Array]) -> Array:
    """[V, b, d] of one floating dtype, or a ValueError that names the shapes."""
    if not isinstance(views, jax.Array):
        views = [jnp.asarray(v) for v in views]
        shapes = sorted({v.shape for v in views})
        if len(shapes) != 1:
            raise ValueError(f"views must be one or more arrays of one shape [b, d], got {shapes}")
        views = jnp.stack([v.astype(jnp.result_type(*views)) for v in views])
    if views.ndim != 3:
        raise ValueError(
            f"embeddings must have shape [b, d] per view, got {views.shape[1:]}"
            if views.ndim > 0
            else "embeddings must have shape [b, d] per view, got a scalar"
        )
    if not jnp.issubdtype(views.dtype, jnp.floating):
        raise ValueError(f"embeddings must be floating point, got {views.dtype}")
    return views


def _check_ids(ids: Array | None, b: int, name: str, axis_name: str | None) -> Array:
    """[b] int32 ids; by default each example's place in the global batch."""
    if ids is None:
        return parallel.device_index(axis_name) * b + _count(b)
    ids = jnp.asarray(ids)
    if ids.shape != (b,) or not jnp.issubdtype(ids.dtype, jnp.integer):
        raise ValueError(f"{name} must be [{b}] integers, got {ids.dtype}{list(ids.shape)}")
    return ids.astype(jnp.int32)
