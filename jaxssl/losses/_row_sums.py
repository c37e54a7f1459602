"""Sums over an anchor's row of the similarity matrix: whole, block by block, or around a ring.

The softmax losses need few numbers of each row; `row_sums` gives them. Whole, it holds the [n, m]
matrix. In blocks it holds ``block_size`` rows at a time and computes them again for the gradient.
Around a ring no device ever holds all candidates: they travel, and their gradient with them.
"""

from functools import partial
from typing import NamedTuple

import jax
from jax import Array, lax
from jax import numpy as jnp

from jaxssl import collectives
from jaxssl.losses.pairs import (
    Pairs,
    cosine,
    count_positives,
    dot,
    negatives,
    not_self,
    positives,
    unit,
)


class RowSums(NamedTuple):
    """What a row of logits ``l_ij = cosine_ij / temperature`` sums to; all [n].

    Attributes:
        all: log sum of e^l over the candidates other than the anchor itself.
        positive: log sum of e^l over the positives.
        negative: log sum of e^l over the negatives.
        mean_positive: mean of l over the positives, 0 if there are none.
        repulsion: sum of e^-cosine over the positives.
        count: how many positives.

    The log of an empty sum is a large negative number, so that arithmetic stays finite.
    """

    all: Array
    positive: Array
    negative: Array
    mean_positive: Array
    repulsion: Array
    count: Array


def row_sums(
    pairs: Pairs,
    temperature: Array | float,
    *,
    block_size: int | None = None,
    ring: bool = False,
    repulsion: bool = False,
) -> RowSums:
    """The sums of each anchor's row; those not used are not computed.

    Args:
        pairs: n anchors, m candidates.
        temperature: > 0.
        block_size: rows at a time, >= 1, or None: all at once.
        ring: let the candidates travel around the devices instead of gathering them.
        repulsion: whether `RowSums.repulsion` is wanted; zeros otherwise.

    Raises:
        ValueError: on a block size < 1, or a ring that has a queue or no mapped axis.
    """
    if block_size is None and not ring:
        return _whole(pairs, temperature)
    n = pairs.anchor.shape[0]
    block_size = n if block_size is None else block_size
    if block_size < 1:
        raise ValueError(f"block_size must be >= 1 or None, got {block_size}")
    inverse = jnp.asarray(1 / temperature, unit(pairs.anchor).dtype)
    anchor = _Side(unit(pairs.anchor), pairs.anchor_id, pairs.self_index)
    if ring:
        candidate = _ring_side(pairs)
    else:
        m = pairs.candidate.shape[0]
        candidate = _Side(unit(pairs.candidate), pairs.candidate_id, _count(m))
    how = _How(
        block_size=min(block_size, n),
        ring=pairs.axis_name if ring else None,
        queue_only=pairs.queue_only,
        repulsion=repulsion,
        square=pairs.num_views > 0 and pairs.axis_name is None,
    )
    positive, negative, total, pushed = _blockwise(
        how, anchor.z, candidate.z, inverse, anchor[1:], candidate[1:]
    )
    count = count_positives(pairs).astype(positive.dtype)
    mean = total / jnp.maximum(count, 1)
    return RowSums(jnp.logaddexp(positive, negative), positive, negative, mean, pushed, count)


def _whole(pairs: Pairs, temperature: Array | float) -> RowSums:
    s = cosine(pairs)
    logits = s / temperature
    pos = positives(pairs)
    count = jnp.sum(pos, axis=1, dtype=s.dtype)
    return RowSums(
        all=log_sum(logits, not_self(pairs)),
        positive=log_sum(logits, pos),
        negative=log_sum(logits, negatives(pairs)),
        mean_positive=jnp.sum(jnp.where(pos, logits, 0), axis=1) / jnp.maximum(count, 1),
        repulsion=jnp.sum(jnp.where(pos, jnp.exp(-s), 0), axis=1),
        count=count,
    )


def log_sum(logits: Array, where: Array) -> Array:
    """[n] log of the sum of e^logits [n, m] where the mask says so."""
    # A finite stand-in for -inf: an empty row would otherwise give inf - inf.
    return jax.nn.logsumexp(jnp.where(where, logits, _empty(logits.dtype)), axis=1)


def _empty(dtype: jnp.dtype) -> float:
    return float(jnp.finfo(dtype).min) / 4


def or_zero(log_sum: Array) -> Array:
    """`log_sum`, or 0 where the sum was over nothing."""
    return jnp.where(log_sum > _empty(log_sum.dtype) / 2, log_sum, 0)


class _Side(NamedTuple):
    """Rows at length 1, their ids, and where they stand among all candidates."""

    z: Array
    ids: Array
    place: Array


class _How(NamedTuple):
    """The static settings of `_blockwise`."""

    block_size: int
    ring: str | None
    queue_only: bool
    repulsion: bool
    square: bool  # candidates are the anchors, so that the matrix is symmetric


def _ring_side(pairs: Pairs) -> _Side:
    if pairs.axis_name is None:
        raise ValueError("ring needs pairs made with the axis_name of a mapped axis, got None")
    devices = collectives.device_count(pairs.axis_name)
    if pairs.candidate.shape[0] != devices * pairs.anchor.shape[0]:
        raise ValueError("ring does not take a queue: its rows are on every device already")
    views = pairs.num_views > 0
    # Towers' keys have places that no anchor has, for no key is an anchor itself.
    place = pairs.self_index if views else jnp.zeros_like(pairs.self_index)
    return _Side(unit(pairs.anchor if views else pairs.partner), pairs.anchor_id, place)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _blockwise(how, u, v, inverse, anchor_ids, candidate_ids):
    return _forward(how, u, v, inverse, anchor_ids, candidate_ids)[0]


def _forward(how, u, v, inverse, anchor_ids, candidate_ids):
    """Log sums of positives and negatives, sum of positive logits, sum of e^-cosine: each [n]."""

    def meet(sums, side):
        add = lambda row: _add_block(how, row, side, inverse)  # noqa: E731
        return _map_blocks(how, add, (u, *anchor_ids, *sums)), side

    # Carries start from the data, so that they vary over the mapped axis as it does.
    zero = jnp.zeros_like(u[:, 0])
    empty = zero + _empty(u.dtype)
    sums, _ = _around(how, meet, (empty, empty, zero, zero), _Side(v, *candidate_ids))
    return sums, (u, v, inverse, anchor_ids, candidate_ids, sums[0], sums[1])


def _backward(how, saved, cotangents):
    u, v, inverse, anchor_ids, candidate_ids, positive, negative = saved
    rows = (u, *anchor_ids, positive, negative, *cotangents)

    def meet(carry, moving):
        (du, dinverse), (side, dv) = carry, moving
        if how.square:
            pull = lambda row: _square_block(how, row, _Row(*rows), inverse)  # noqa: E731
            step, step_inverse = _map_blocks(how, pull, rows)
        else:
            pull = lambda dv, row: _pull_block(how, row, side, inverse, dv)  # noqa: E731
            dv, (step, step_inverse) = _scan_blocks(how, pull, dv, rows)
        return (du + step, dinverse + jnp.sum(step_inverse)), (side, dv)

    start = (jnp.zeros_like(u), jnp.zeros_like(u[0, 0]))
    moving = (_Side(v, *candidate_ids), jnp.zeros_like(v))
    (du, dinverse), (_, dv) = _around(how, meet, start, moving)
    return du, dv, dinverse, (None, None), (None, None)


_blockwise.defvjp(_forward, _backward)


class _Row(NamedTuple):
    """A block of anchors, what their rows sum to, and what comes back to each of the four sums."""

    z: Array
    ids: Array
    place: Array
    positive: Array
    negative: Array
    g_positive: Array
    g_negative: Array
    g_total: Array
    g_repulsion: Array


def _masks(how, ids, place, side):
    same = ids[:, None] == side.ids[None, :]
    pos = same & (place[:, None] != side.place[None, :])
    neg = ~same & (side.ids < 0)[None, :] if how.queue_only else ~same
    return pos, neg


def _add_block(how, row, side, inverse):
    """The four sums of a block of rows, grown by the candidates of ``side``."""
    z, ids, place, positive, negative, total, repulsion = row
    s = dot(z, side.z)
    pos, neg = _masks(how, ids, place, side)
    if how.repulsion:
        repulsion = repulsion + jnp.sum(jnp.where(pos, jnp.exp(-s), 0), axis=1)

    def one_exponential():
        shares = jnp.exp((s - 1) * inverse)
        sums = (jnp.sum(jnp.where(mask, shares, 0), axis=1) for mask in (pos, neg))
        return tuple(
            jnp.where(x > 0, jnp.log(jnp.where(x > 0, x, 1)) + inverse, _empty(s.dtype))
            for x in sums
        )

    def two_maxima():
        return log_sum(s * inverse, pos), log_sum(s * inverse, neg)

    # e^((s - 1) / temperature) is at least e^-80 above this temperature: nothing underflows.
    log_sums = lax.cond(inverse <= 40, one_exponential, two_maxima)
    return (
        jnp.logaddexp(positive, log_sums[0]),
        jnp.logaddexp(negative, log_sums[1]),
        total + inverse * jnp.sum(jnp.where(pos, s, 0), axis=1),
        repulsion,
    )


def _shares(pos, neg, logits, positive, negative, g_positive, g_negative):
    """What comes back to each logit through the two log sums."""
    total = jnp.where(pos, positive, negative)
    weight = jnp.where(pos, g_positive, jnp.where(neg, g_negative, 0))
    return weight * jnp.exp(jnp.minimum(logits - total, 0))


def _from_one(inverse, positive, negative, g_positive, g_negative):
    """What comes back to e^(l - 1 / temperature) through the two log sums."""
    scale = lambda log_sum: jnp.exp(jnp.minimum(inverse - log_sum, 60))  # noqa: E731
    return g_positive * scale(positive), g_negative * scale(negative)


def _pull_block(how, row, side, inverse, dv):
    """The gradient to a block of anchors and the candidates; and to 1 / temperature."""
    s = dot(row.z, side.z)
    pos, neg = _masks(how, row.ids, row.place, side)
    columns = (x[:, None] for x in row[3:7])
    pull = _shares(pos, neg, s * inverse, *columns) + jnp.where(pos, row.g_total[:, None], 0)
    pull, to_inverse = _finish(how, s, pos, pull * inverse, row.g_repulsion[:, None])
    du = jnp.matmul(pull, side.z, precision=lax.Precision.HIGHEST)
    dv = dv + jnp.matmul(pull.T, row.z, precision=lax.Precision.HIGHEST)
    return dv, (du, (jnp.sum(du * row.z, axis=1) + to_inverse) / inverse)


def _square_block(how, row, other, inverse):
    """The same where anchors are the candidates: what i and j send each other at once."""
    s = dot(row.z, other.z)
    pos, neg = _masks(how, row.ids, row.place, other)
    rows, columns = [x[:, None] for x in row[3:7]], [x[None, :] for x in other[3:7]]

    def one_exponential():
        scaled = [_from_one(inverse, *side) for side in (rows, columns)]
        both = [mine + theirs for mine, theirs in zip(*scaled, strict=True)]
        return jnp.exp((s - 1) * inverse) * jnp.where(pos, both[0], jnp.where(neg, both[1], 0))

    def two_exponentials():
        logits = s * inverse
        return _shares(pos, neg, logits, *rows) + _shares(pos, neg, logits, *columns)

    # A log sum is at least -1 / temperature: e^60 leaves room for the cotangents.
    pull = lax.cond(inverse <= 30, one_exponential, two_exponentials)
    pull += jnp.where(pos, row.g_total[:, None] + other.g_total[None, :], 0)
    g_repulsion = row.g_repulsion[:, None] + other.g_repulsion[None, :]
    pull, to_inverse = _finish(how, s, pos, pull * inverse, g_repulsion)
    du = jnp.matmul(pull, other.z, precision=lax.Precision.HIGHEST)
    return du, (jnp.sum(du * row.z, axis=1) + to_inverse) / (2 * inverse)


def _finish(how, s, pos, pull, g_repulsion):
    """`pull` less the repulsion's part; and that part times s, to keep it from 1 / temperature."""
    if not how.repulsion:
        return pull, jnp.zeros_like(pull[:, 0])
    away = jnp.where(pos, g_repulsion * jnp.exp(-s), 0)
    return pull - away, jnp.sum(away * s, axis=1)


def _blocks(how, rows):
    """`rows` in blocks, the last filled up with rows that are nobody's and have no cotangent."""
    n = rows[0].shape[0]
    extra = -n % how.block_size

    def split(x):
        x = jnp.pad(x, [(0, extra)] + [(0, 0)] * (x.ndim - 1))
        return x.reshape(-1, how.block_size, *x.shape[1:])

    return tuple(map(split, rows)), lambda x: x.reshape(-1, *x.shape[2:])[:n]


def _map_blocks(how, fn, rows):
    blocks, join = _blocks(how, rows)
    wrap = _Row if len(rows) == len(_Row._fields) else tuple
    out = lax.map(lambda block: fn(wrap(*block) if wrap is _Row else block), blocks)
    return jax.tree.map(join, out)


def _scan_blocks(how, fn, carry, rows):
    blocks, join = _blocks(how, rows)
    carry, out = lax.scan(lambda carry, block: fn(carry, _Row(*block)), carry, blocks)
    return carry, jax.tree.map(join, out)


def _around(how, meet, carry, moving):
    """`meet` with the candidates at hand, then, in a ring, with those of every other device."""
    if how.ring is None:
        return meet(carry, moving)

    def step(_, state):
        carry, moving = meet(*state)
        return carry, collectives.ring_shift(moving, how.ring)

    return lax.fori_loop(0, collectives.device_count(how.ring), step, (carry, moving))


def _count(n: int) -> Array:
    return jnp.arange(n, dtype=jnp.int32)
