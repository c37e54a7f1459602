"""Row sums of the similarity matrix, in blocks or in a ring of devices, without storing the matrix.

In blocks, ``block_size`` rows of the [n, m] matrix are held at a time and computed again for the
gradient. Around a ring, no device ever holds all candidates: they travel from device to device,
and their gradient travels with them.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
from jax import Array, lax
from jax import numpy as jnp

from jaxssl import collectives
from jaxssl.losses.pairs import (
    NO_ID,
    Pairs,
    cosine,
    count_positives,
    dot,
    log_sum_exp,
    log_zero,
    mean_where,
    negatives,
    not_self,
    positives,
    unit,
)


class RowSums(NamedTuple):
    """Sums over each anchor's row of logits ``l = cosine / temperature``, each [n].

    The log of an empty sum is a large negative number, so that arithmetic stays finite.

    Attributes:
        has_positive: whether the anchor has a positive.
        all: log of the sum of e^l over positives and negatives.
        positive: log of the sum of e^l over the positives.
        negative: log of the sum of e^l over the negatives.
        mean_positive: mean of l over the positives, 0 without any.
        repulsion: sum of e^-cosine over the positives.
    """

    has_positive: Array
    all: Array
    positive: Array
    negative: Array
    mean_positive: Array
    repulsion: Array


class Config(NamedTuple):
    """Static settings of the row sums in blocks or around a ring.

    Attributes:
        block_size: rows in a block.
        axis_name: mapped axis of the ring, or None without a ring.
        queue_only: True if only the rows of the queue are negatives.
        repulsion: True if `RunningSums.repulsion` is needed.
        symmetric: True if the candidates are the anchors, so that the matrix is symmetric.
    """

    block_size: int
    axis_name: str | None
    queue_only: bool
    repulsion: bool
    symmetric: bool


class Points(NamedTuple):
    """L2-normalised embeddings z [n, d], their ids [n] and positions [n] among all candidates."""

    z: Array
    ids: Array
    position: Array


class RunningSums(NamedTuple):
    """Row sums over the candidates seen so far, for logits ``l = cosine / temperature``, each [n].

    Attributes:
        positive: log of the sum of e^l over the positives.
        negative: log of the sum of e^l over the negatives.
        positive_logits: sum of l over the positives.
        repulsion: sum of e^-cosine over the positives.
    """

    positive: Array
    negative: Array
    positive_logits: Array
    repulsion: Array


class AnchorSums(NamedTuple):
    """Anchors (all, or a block), their row sums and the cotangents of the sums."""

    anchors: Points
    sums: RunningSums
    cotangents: RunningSums


# The forward pass saves its inputs and the row sums for the backward pass.
Residuals = tuple[Points, Points, Array, RunningSums]


def row_sums(
    pairs: Pairs,
    temperature: Array | float,
    *,
    block_size: int | None,
    ring: bool,
    repulsion: bool = False,
) -> RowSums:
    """Compute the sums over positives and over negatives for all anchors.

    With neither blocks nor a ring, they are computed from the similarity matrix [n, m]. XLA removes
    the sums that a loss does not use.

    Args:
        pairs: n anchors, m candidates. A ring sends the anchors of `pair_views` or the partners of
            `pair_towers` around, and does not read the candidates.
        temperature: softmax temperature, > 0.
        block_size: rows at a time, >= 1, or None for all rows at once.
        ring: pass the candidates around the devices instead of gathering them.
        repulsion: whether `RowSums.repulsion` is needed. Without it, blocks and rings return zeros.

    Raises:
        ValueError: if ``ring`` is used with a queue or without a mapped axis, or the batch size is
            symbolic.
        TypeError: in forward-mode differentiation (jvp, jacfwd) of blocks or a ring.
    """
    num_positives = count_positives(pairs)
    has_positive = num_positives > 0
    if block_size is None and not ring:
        s, pos = cosine(pairs), positives(pairs)
        logits = s / temperature
        return RowSums(
            has_positive,
            all=log_sum_exp(logits, not_self(pairs)),
            positive=log_sum_exp(logits, pos),
            negative=log_sum_exp(logits, negatives(pairs)),
            mean_positive=mean_where(logits, pos),
            repulsion=jnp.sum(jnp.where(pos, jnp.exp(-s), 0), axis=1),
        )
    n = pairs.anchor.shape[0]
    if not isinstance(n, int):
        raise ValueError(
            f"block_size and ring need a constant batch size, got {n} anchors; set block_size=None "
            "and ring=False to export a symbolic one"
        )
    anchors = Points(unit(pairs.anchor), pairs.anchor_id, pairs.self_index)
    # Without devices and a queue, `pair_views` takes the anchors themselves as candidates.
    symmetric = pairs.candidate is pairs.anchor and not ring
    if ring:
        candidates = _ring_candidates(pairs, anchors)
    elif symmetric:
        candidates = anchors
    else:
        position = jnp.arange(pairs.candidate.shape[0], dtype=jnp.int32)
        candidates = Points(unit(pairs.candidate), pairs.candidate_id, position)
    config = Config(
        block_size=min(block_size or n, n),
        axis_name=pairs.axis_name if ring else None,
        queue_only=pairs.queue_only,
        repulsion=repulsion,
        symmetric=symmetric,
    )
    inverse = 1 / jnp.asarray(temperature, anchors.z.dtype)
    anchors, candidates, inverse = collectives.align((anchors, candidates, inverse))
    sums = _compiled_sums(config, anchors, candidates, inverse)
    num_positives = num_positives.astype(sums.positive_logits.dtype)
    return RowSums(
        has_positive,
        all=jnp.logaddexp(sums.positive, sums.negative),
        positive=sums.positive,
        negative=sums.negative,
        mean_positive=sums.positive_logits / jnp.maximum(num_positives, 1),
        repulsion=sums.repulsion,
    )


def takes_queue(hyper: Mapping[str, object]) -> bool:
    """Return True if a `row_sums` loss with these settings accepts a queue of past keys (MoCo)."""
    return not hyper["ring"]


def _ring_candidates(pairs: Pairs, anchors: Points) -> Points:
    """Return this device's share of the candidates, which the ring sends from device to device."""
    if pairs.axis_name is None:
        raise ValueError(
            "ring=True needs a mapped axis, got axis_name=None; "
            "pass axis_name to pair_views or pair_towers, or set ring=False"
        )
    devices = collectives.device_count(pairs.axis_name)
    if pairs.candidate.shape[0] != devices * pairs.anchor.shape[0]:
        raise ValueError("ring=True cannot be used with a queue of past keys; set ring=False")
    if pairs.num_views > 0:
        return anchors
    # Queries have position -1. No key may have it, because a query is not itself a candidate.
    return Points(unit(pairs.partner), pairs.anchor_id, jnp.zeros_like(pairs.self_index))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _running_sums(
    config: Config, anchors: Points, candidates: Points, inverse: Array
) -> RunningSums:
    """Compute the row sums over all candidates for 1 / temperature = ``inverse``."""
    return _forward(config, anchors, candidates, inverse)[0]


def _forward(
    config: Config, anchors: Points, candidates: Points, inverse: Array
) -> tuple[RunningSums, Residuals]:
    def visit(sums: RunningSums, candidates: Points) -> tuple[RunningSums, Points]:
        def add(_: None, block: tuple[Points, RunningSums]) -> tuple[None, RunningSums]:
            return None, _add_candidates(config, *block, candidates, inverse)

        return _scan_blocks(config, add, None, (anchors, sums))[1], candidates

    # The type check of shard_map requires that a loop's carry varies over the mapped axis as the
    # data do. The initial sums are therefore computed from the data.
    zero = jnp.zeros_like(anchors.z[:, 0])
    empty = zero + log_zero(zero.dtype)
    sums, _ = _around_ring(config, visit, RunningSums(empty, empty, zero, zero), candidates)
    return sums, (anchors, candidates, inverse, sums)


def _backward(
    config: Config, residuals: Residuals, cotangents: RunningSums
) -> tuple[Points, Points, Array]:
    anchors, candidates, inverse, sums = residuals
    all_anchors = AnchorSums(anchors, sums, cotangents)

    # du, dv and dinverse are the gradients with respect to the anchors u, the candidates v and
    # ``inverse``. dv travels around the ring with its candidates.
    def visit(at_home: tuple[Array, Array], travelling: tuple[Points, Array]) -> tuple:
        (du, dinverse), (candidates, dv) = at_home, travelling

        def add(carry: tuple[Array, Array], block: AnchorSums) -> tuple[tuple[Array, Array], Array]:
            dv, dinverse = carry
            surrogate = partial(_surrogate, config, block, all_anchors, candidates, inverse)
            inputs = block.anchors.z, candidates.z, inverse
            if config.symmetric:
                # u stands for the candidates too, so the gradient of u is the whole gradient, and
                # the derivative by ``inverse`` counts every entry of the matrix twice.
                d_u, d_inverse = jax.grad(surrogate, argnums=(0, 2))(*inputs)
                return (dv, dinverse + d_inverse / 2), d_u
            d_u, d_v, d_inverse = jax.grad(surrogate, argnums=(0, 1, 2))(*inputs)
            return (dv + d_v, dinverse + d_inverse), d_u

        (dv, dinverse), d_u = _scan_blocks(config, add, (dv, dinverse), all_anchors)
        return (du + d_u, dinverse), (candidates, dv)

    at_home = jnp.zeros_like(anchors.z), jnp.zeros_like(anchors.z[0, 0])
    travelling = candidates, jnp.zeros_like(candidates.z)
    (du, dinverse), (_, dv) = _around_ring(config, visit, at_home, travelling)
    no_gradient: Any = None  # for integer ids and positions
    return Points(du, no_gradient, no_gradient), Points(dv, no_gradient, no_gradient), dinverse


_running_sums.defvjp(_forward, _backward)
# Without `jax.jit` here, a call outside `jax.jit` would compile the loops again.
_compiled_sums = jax.jit(_running_sums, static_argnums=0)


def _add_candidates(
    config: Config, anchors: Points, sums: RunningSums, candidates: Points, inverse: Array
) -> RunningSums:
    """Add the logits of some anchors and all ``candidates`` to the anchors' running sums."""
    logits = dot(anchors.z * inverse, candidates.z)
    pos, neg = _masks(config, anchors, candidates)
    empty = log_zero(logits.dtype)
    # Each sum subtracts its own maximum, so that low temperatures do not underflow. One exponential
    # per entry is enough, because positives and negatives are disjoint.
    top_pos = jnp.max(jnp.where(pos, logits, empty), axis=1)
    top_neg = jnp.max(jnp.where(neg, logits, empty), axis=1)
    # The exponential of an entry in no set could overflow, which spoils second derivatives.
    below = logits - jnp.where(pos, top_pos[:, None], top_neg[:, None])
    terms = jnp.exp(jnp.where(pos | neg, below, 0))

    def log_sum(mask: Array, top: Array) -> Array:
        x = jnp.sum(jnp.where(mask, terms, 0), axis=1)
        return jnp.log(jnp.where(x > 0, x, 1)) + top

    repulsion = 0
    if config.repulsion:
        repulsion = jnp.sum(jnp.where(pos, jnp.exp(-logits / inverse), 0), axis=1)
    return RunningSums(
        jnp.logaddexp(sums.positive, log_sum(pos, top_pos)),
        jnp.logaddexp(sums.negative, log_sum(neg, top_neg)),
        sums.positive_logits + jnp.sum(jnp.where(pos, logits, 0), axis=1),
        sums.repulsion + repulsion,
    )


def _surrogate(
    config: Config,
    block: AnchorSums,
    all_anchors: AnchorSums,
    candidates: Points,
    scale: Array,
    u: Array,
    v: Array,
    inverse: Array,
) -> Array:
    """Return a scalar whose gradient is the gradient of the row sums, weighted by their cotangents.

    The gradient of a log-sum-exp is the mean of the logits' gradients, with softmax weights. The
    weights follow from the saved sums and the first embeddings and temperature, by which this
    gradient is not taken. A second derivative passes through both.

    Args:
        config: static settings.
        block: some anchors, their sums and cotangents.
        all_anchors: all anchors, which a symmetric matrix needs.
        candidates: m candidates.
        scale: [], 1 / temperature.
        u: embeddings of the anchors, to differentiate by.
        v: embeddings of the candidates, to differentiate by.
        inverse: [], 1 / temperature, to differentiate by.
    """
    pos, neg = _masks(config, block.anchors, candidates)
    logits = dot(u * inverse, v)
    fixed = dot(block.anchors.z * scale, candidates.z)  # XLA computes equal products once.

    def weigh(block: AnchorSums, candidate_axis: int) -> tuple[Array, Array]:
        """Return the weights of the logits and of the repulsion."""
        expand = partial(jnp.expand_dims, axis=candidate_axis)
        sums, slopes = jax.tree.map(expand, (block.sums, block.cotangents))
        softmax = jnp.exp(jnp.minimum(fixed - jnp.where(pos, sums.positive, sums.negative), 0))
        weight = softmax * jnp.where(pos, slopes.positive, jnp.where(neg, slopes.negative, 0))
        return weight + jnp.where(pos, slopes.positive_logits, 0), slopes.repulsion

    weight, repulsion = weigh(block, 1)
    if config.symmetric:  # The anchors of the block are also candidates of all anchors.
        column_weight, column_repulsion = weigh(all_anchors, 0)
        weight, repulsion = weight + column_weight, repulsion + column_repulsion
    value = jnp.sum(weight * logits)
    if config.repulsion:
        value += jnp.sum(jnp.where(pos, repulsion * jnp.exp(-logits / inverse), 0))
    return value


def _masks(config: Config, anchors: Points, candidates: Points) -> tuple[Array, Array]:
    """Return two [n, m] bool masks: which candidates are positives, and which are negatives."""
    same_id = anchors.ids[:, None] == candidates.ids[None, :]
    pos = same_id & (anchors.position[:, None] != candidates.position[None, :])
    neg = ~same_id
    if config.queue_only:
        neg &= (candidates.ids == NO_ID)[None, :]
    return pos, neg


def _scan_blocks(config: Config, fn: Callable[..., tuple], carry: object, arrays: object) -> tuple:
    """Scan ``fn(carry, block)`` over blocks of the arrays [n, ...] and join the outputs [n, ...].

    The blocks have equal length. The last one is padded with zeros (cotangents too).
    """
    n = jax.tree.leaves(arrays)[0].shape[0]
    padding = -n % config.block_size

    def split(x: Array) -> Array:
        x = jnp.pad(x, [(0, padding)] + [(0, 0)] * (x.ndim - 1))
        return x.reshape(-1, config.block_size, *x.shape[1:])

    carry, out = lax.scan(fn, carry, jax.tree.map(split, arrays))
    return carry, jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:n], out)


def _around_ring(
    config: Config, visit: Callable[..., tuple], at_home: object, travelling: object
) -> tuple:
    """Apply ``visit(at_home, travelling) -> (at_home, travelling)`` on every device of the ring.

    Arrays ``at_home`` stay on their device. Arrays ``travelling`` are sent on after each visit, so
    that they return after as many visits as there are devices. Without a ring there is one visit.
    """
    axis_name = config.axis_name
    if axis_name is None:
        return visit(at_home, travelling)

    def step(_: Array, carry: tuple) -> tuple:
        at_home, travelling = visit(*carry)
        return at_home, collectives.ring_shift(travelling, axis_name)

    return lax.fori_loop(0, collectives.device_count(axis_name), step, (at_home, travelling))
