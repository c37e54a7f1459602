"""Row sums of the similarity matrix, in blocks or in a ring of devices, without storing the matrix.

In blocks, ``block_size`` rows of the [n, m] matrix are held at a time and computed again for the
gradient. Around a ring, no device ever holds all candidates: they travel from device to device,
and their gradient travels with them.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, cast

import jax
from jax import Array, lax
from jax import numpy as jnp

from jaxssl import collectives
from jaxssl.losses._block import (
    Block,
    Config,
    Rows,
    Sums,
    add_block,
    block_gradient,
    symmetric_gradient,
)
from jaxssl.losses.pairs import (
    Pairs,
    cosine,
    count_positives,
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


def row_sums(
    pairs: Pairs,
    temperature: Array | float,
    *,
    block_size: int | None = None,
    ring: bool = False,
    repulsion: bool = False,
) -> RowSums:
    """Compute the sums over positives and over negatives for all anchors.

    With neither blocks nor a ring, they are computed from the similarity matrix [n, m]. XLA removes
    the sums that a loss does not use.

    Args:
        pairs: n anchors, m candidates.
        temperature: softmax temperature, > 0.
        block_size: rows at a time, >= 1, or None for all rows at once.
        ring: pass the candidates around the devices instead of gathering them.
        repulsion: compute `RowSums.repulsion`, which is zeros otherwise.

    Raises:
        ValueError: if ``ring`` is used with a queue or without a mapped axis, or the batch size is
            symbolic.
        TypeError: in forward-mode differentiation.
    """
    has_positive = count_positives(pairs) > 0
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
    anchors = Rows(unit(pairs.anchor), pairs.anchor_id, pairs.self_index)
    if ring:
        candidates = _ring_candidates(pairs)
    else:
        position = jnp.arange(pairs.candidate.shape[0], dtype=jnp.int32)
        candidates = Rows(unit(pairs.candidate), pairs.candidate_id, position)
    config = Config(
        block_size=min(block_size or n, n),
        ring=pairs.axis_name if ring else None,
        queue_only=pairs.queue_only,
        repulsion=repulsion,
        symmetric=pairs.num_views > 0 and pairs.axis_name is None,
    )
    inverse = jnp.asarray(1 / temperature, anchors.z.dtype)
    anchors, candidates, inverse = collectives.align((anchors, candidates, inverse))
    try:
        sums = cast(Sums, _sums(config, anchors, candidates, inverse))
    except TypeError as error:
        if "forward-mode" not in str(error):
            raise
        raise TypeError(
            "block_size and ring have no forward-mode derivative (jvp, jacfwd); use jax.grad or "
            "jax.vjp, or set block_size=None and ring=False"
        ) from error
    count = count_positives(pairs).astype(sums.total.dtype)
    return RowSums(
        has_positive,
        all=jnp.logaddexp(sums.positive, sums.negative),
        positive=sums.positive,
        negative=sums.negative,
        mean_positive=sums.total / jnp.maximum(count, 1),
        repulsion=sums.repulsion,
    )


def takes_queue(hyper: Mapping[str, Any]) -> bool:
    """Return True if a `row_sums` loss with these settings accepts a queue of past keys (MoCo)."""
    return not hyper["ring"]


def _ring_candidates(pairs: Pairs) -> Rows:
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
        return Rows(unit(pairs.anchor), pairs.anchor_id, pairs.self_index)
    # Queries get position -1. A query is not itself a candidate, so no key may have that position.
    return Rows(unit(pairs.partner), pairs.anchor_id, jnp.zeros_like(pairs.self_index))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _sums(config: Config, anchors: Rows, candidates: Rows, inverse: Array) -> Sums:
    return _forward(config, anchors, candidates, inverse)[0]


def _forward(config: Config, anchors: Rows, candidates: Rows, inverse: Array) -> tuple[Sums, Any]:
    def meet(sums: Sums, candidates: Rows) -> tuple[Sums, Rows]:
        def add(block: tuple[Rows, Sums]) -> Sums:
            return add_block(config, *block, candidates, inverse)

        return _map_blocks(config, add, (anchors, sums)), candidates

    # The initial sums are computed from the data. They thus vary over the mapped axis as the data
    # do, which the type check of shard_map requires of a loop's carry.
    zero = jnp.zeros_like(anchors.z[:, 0])
    empty = zero + log_zero(zero.dtype)
    sums, _ = _around_ring(config, meet, Sums(empty, empty, zero, zero), candidates)
    return sums, (anchors, candidates, inverse, sums)


def _backward(config: Config, saved: Any, cotangents: Sums) -> tuple[Rows, Rows, Array]:
    anchors, candidates, inverse, sums = saved
    everyone = Block(anchors, sums, cotangents)

    def meet(carry: tuple[Array, Array], moving: tuple[Rows, Array]) -> tuple[Any, Any]:
        (du, dinverse), (candidates, dv) = carry, moving
        if config.symmetric:

            def gradient(block: Block) -> tuple[Array, Array]:
                return symmetric_gradient(config, block, everyone, inverse)

            step, step_inverse = _map_blocks(config, gradient, everyone)
        else:

            def accumulate(dv: Array, block: Block) -> tuple[Array, tuple[Array, Array]]:
                return block_gradient(config, block, candidates, inverse, dv)

            dv, (step, step_inverse) = _scan_blocks(config, accumulate, dv, everyone)
        return (du + step, dinverse + jnp.sum(step_inverse)), (candidates, dv)

    start = (jnp.zeros_like(anchors.z), jnp.zeros_like(anchors.z[0, 0]))
    moving = (candidates, jnp.zeros_like(candidates.z))
    (du, dinverse), (_, dv) = _around_ring(config, meet, start, moving)
    no_gradient: Any = None  # integer ids and positions have no gradient
    return Rows(du, no_gradient, no_gradient), Rows(dv, no_gradient, no_gradient), dinverse


_sums.defvjp(_forward, _backward)


def _map_blocks(config: Config, fn: Callable[[Any], Any], rows: Any) -> Any:
    """Map ``fn`` over blocks of rows, for a tree of arrays [n, ...], and join the results."""
    return _scan_blocks(config, lambda _, block: (None, fn(block)), None, rows)[1]


def _scan_blocks(
    config: Config, fn: Callable[[Any, Any], tuple[Any, Any]], carry: Any, rows: Any
) -> tuple[Any, Any]:
    """Scan ``fn(carry, block)`` over blocks of rows and join the outputs along axis 0.

    The blocks have equal length. The last one is padded with zeros (cotangents too).
    """
    n = jax.tree.leaves(rows)[0].shape[0]
    padding = -n % config.block_size

    def split(x: Array) -> Array:
        x = jnp.pad(x, [(0, padding)] + [(0, 0)] * (x.ndim - 1))
        return x.reshape(-1, config.block_size, *x.shape[1:])

    carry, out = lax.scan(fn, carry, jax.tree.map(split, rows))
    return carry, jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:n], out)


def _around_ring(
    config: Config, meet: Callable[[Any, Any], tuple[Any, Any]], carry: Any, moving: Any
) -> tuple[Any, Any]:
    """Apply ``meet`` to the candidates of every device in turn, which are sent around a ring."""
    axis_name = config.ring
    if axis_name is None:
        return meet(carry, moving)

    def step(_: Array, state: tuple[Any, Any]) -> tuple[Any, Any]:
        carry, moving = meet(*state)
        return carry, collectives.ring_shift(moving, axis_name)

    return lax.fori_loop(0, collectives.device_count(axis_name), step, (carry, moving))
