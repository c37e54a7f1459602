"""Row sums over one block of the similarity matrix, and their gradients (used by `_row_sums`)."""

from typing import NamedTuple

import jax
from jax import Array, lax
from jax import numpy as jnp

from jaxssl.losses.pairs import dot, log_sum_exp, log_zero


class Config(NamedTuple):
    """Static settings of the blockwise row sums of a similarity matrix.

    Attributes:
        block_size: rows in a block.
        ring: mapped axis around which the candidates travel, or None.
        queue_only: True if only the rows of the queue are negatives.
        repulsion: True if `Sums.repulsion` is needed.
        symmetric: True if the candidates are the anchors, so that the matrix is symmetric.
    """

    block_size: int
    ring: str | None
    queue_only: bool
    repulsion: bool
    symmetric: bool


class Rows(NamedTuple):
    """L2-normalised embeddings [n, d], their ids [n] and positions [n] among all candidates."""

    z: Array
    ids: Array
    position: Array


class Sums(NamedTuple):
    """Sums over each anchor's row of logits ``l = cosine / temperature``, each [n].

    Attributes:
        positive: log of the sum of e^l over the positives.
        negative: log of the sum of e^l over the negatives.
        total: sum of l over the positives.
        repulsion: sum of e^-cosine over the positives.
    """

    positive: Array
    negative: Array
    total: Array
    repulsion: Array


class Block(NamedTuple):
    """A block of anchors in the backward pass: embeddings, row sums and cotangents of the sums."""

    rows: Rows
    sums: Sums
    cotangents: Sums


def add_block(config: Config, anchors: Rows, sums: Sums, candidates: Rows, inverse: Array) -> Sums:
    """Add the exponentials of some candidates' logits to the row sums of some anchors.

    Args:
        config: static settings.
        anchors: a block of anchors.
        sums: their sums so far.
        candidates: candidates to add.
        inverse: [], 1 / temperature.
    """
    s = dot(anchors.z, candidates.z)
    pos, neg = _masks(config, anchors, candidates)
    repulsion = sums.repulsion
    if config.repulsion:
        repulsion = repulsion + jnp.sum(jnp.where(pos, jnp.exp(-s), 0), axis=1)

    def one_exponential() -> tuple[Array, Array]:
        terms = jnp.exp((s - 1) * inverse)

        def log_sum(mask: Array) -> Array:
            x = jnp.sum(jnp.where(mask, terms, 0), axis=1)
            empty = x <= 0
            return jnp.where(empty, log_zero(s.dtype), jnp.log(jnp.where(empty, 1, x)) + inverse)

        return log_sum(pos), log_sum(neg)

    def two_maxima() -> tuple[Array, Array]:
        return log_sum_exp(s * inverse, pos), log_sum_exp(s * inverse, neg)

    # Up to 1 / temperature = 40, e^((s - 1) / temperature) is at least e^-80, which float32 can
    # hold. One exponential then serves positives and negatives. Beyond 40, each sum subtracts its
    # own maximum first.
    positive, negative = lax.cond(inverse <= 40, one_exponential, two_maxima)
    return Sums(
        jnp.logaddexp(sums.positive, positive),
        jnp.logaddexp(sums.negative, negative),
        sums.total + inverse * jnp.sum(jnp.where(pos, s, 0), axis=1),
        repulsion,
    )


def block_gradient(
    config: Config, block: Block, candidates: Rows, inverse: Array, dv: Array
) -> tuple[Array, tuple[Array, Array]]:
    """Compute the gradients of a block of anchors and of all candidates from the row sums.

    Args:
        config: static settings.
        block: anchors, sums and cotangents.
        candidates: m candidates.
        inverse: [], 1 / temperature.
        dv: [m, d] gradient of the candidates so far.

    Returns:
        ``dv`` with the block's part added; the gradient of the anchors, and the contribution of
        each anchor to the gradient of ``inverse``.
    """
    s = dot(block.rows.z, candidates.z)
    pos, neg = _masks(config, block.rows, candidates)
    columns = _expand(block, 1)
    g = _logit_gradient(pos, neg, s * inverse, columns)
    g = g + jnp.where(pos, columns.cotangents.total, 0)
    g, repulsion = _add_repulsion(config, s, pos, g * inverse, columns.cotangents.repulsion)
    du = jnp.matmul(g, candidates.z, precision=lax.Precision.HIGHEST)
    dv = dv + jnp.matmul(g.T, block.rows.z, precision=lax.Precision.HIGHEST)
    return dv, (du, (jnp.sum(du * block.rows.z, axis=1) + repulsion) / inverse)


def symmetric_gradient(
    config: Config, block: Block, everyone: Block, inverse: Array
) -> tuple[Array, Array]:
    """Compute the gradient of a block when the anchors are also the candidates, as in SimCLR.

    Args:
        config: static settings.
        block: some anchors.
        everyone: all anchors.
        inverse: [], 1 / temperature.

    Returns:
        The gradient of the block as anchors and as candidates, and the contribution of each row to
        the gradient of ``inverse``.
    """
    s = dot(block.rows.z, everyone.rows.z)
    pos, neg = _masks(config, block.rows, everyone.rows)
    rows, columns = _expand(block, 1), _expand(everyone, 0)

    def one_exponential() -> Array:
        (p, n), (q, m) = (_term_gradient(inverse, side) for side in (rows, columns))
        return jnp.exp((s - 1) * inverse) * jnp.where(pos, p + q, jnp.where(neg, n + m, 0))

    def two_exponentials() -> Array:
        logits = s * inverse
        return _logit_gradient(pos, neg, logits, rows) + _logit_gradient(pos, neg, logits, columns)

    # The log of a row sum is at least -1 / temperature. Up to 1 / temperature = 30 the exponents
    # stay below 60, so that e^60 times the cotangent fits float32.
    g = lax.cond(inverse <= 30, one_exponential, two_exponentials)
    g += jnp.where(pos, rows.cotangents.total + columns.cotangents.total, 0)
    g_repulsion = rows.cotangents.repulsion + columns.cotangents.repulsion
    g, repulsion = _add_repulsion(config, s, pos, g * inverse, g_repulsion)
    du = jnp.matmul(g, everyone.rows.z, precision=lax.Precision.HIGHEST)
    return du, (jnp.sum(du * block.rows.z, axis=1) + repulsion) / (2 * inverse)


def _masks(config: Config, anchors: Rows, candidates: Rows) -> tuple[Array, Array]:
    """Return two [n, m] bool masks: which candidates are positives, and which are negatives."""
    same = anchors.ids[:, None] == candidates.ids[None, :]
    pos = same & (anchors.position[:, None] != candidates.position[None, :])
    neg = ~same & (candidates.ids < 0)[None, :] if config.queue_only else ~same
    return pos, neg


def _expand(block: Block, axis: int) -> Block:
    """Add an axis to a block's sums and cotangents, to broadcast along rows or columns."""
    sums, cotangents = jax.tree.map(
        lambda x: jnp.expand_dims(x, axis), (block.sums, block.cotangents)
    )
    return block._replace(sums=sums, cotangents=cotangents)


def _logit_gradient(pos: Array, neg: Array, logits: Array, block: Block) -> Array:
    """Compute the gradient of each logit [n, m] through the log sums of positives and negatives."""
    log_sum = jnp.where(pos, block.sums.positive, block.sums.negative)
    g = jnp.where(pos, block.cotangents.positive, jnp.where(neg, block.cotangents.negative, 0))
    return g * jnp.exp(jnp.minimum(logits - log_sum, 0))


def _term_gradient(inverse: Array, block: Block) -> tuple[Array, Array]:
    """Return the factors from e^(logit - 1 / temperature) to gradients of the two log sums."""

    def scale(log_sum: Array) -> Array:
        return jnp.exp(jnp.minimum(inverse - log_sum, 60))

    sums, cotangents = block.sums, block.cotangents
    return cotangents.positive * scale(sums.positive), cotangents.negative * scale(sums.negative)


def _add_repulsion(
    config: Config, s: Array, pos: Array, g: Array, g_repulsion: Array
) -> tuple[Array, Array]:
    """Add the gradient of the repulsion, the sum of e^-cosine over the positives, to ``g``.

    It does not depend on the temperature, so its part of sum(g * s) is returned too, to be taken
    out of the gradient of 1 / temperature.
    """
    if not config.repulsion:
        return g, jnp.zeros_like(g[:, 0])
    away = jnp.where(pos, g_repulsion * jnp.exp(-s), 0)
    return g - away, jnp.sum(away * s, axis=1)
