"""MoCHi: InfoNCE with further negatives, mixtures of each anchor's hardest ones."""

from functools import partial

import jax
from jax import Array, lax
from jax import numpy as jnp
from jax.core import min_dim

from jaxssl.losses.objective import Scalar, Terms, factory, make_objective
from jaxssl.losses.pairs import (
    Pairs,
    anchor_keys,
    dot,
    log_zero,
    mean_where,
    negatives,
    not_self,
    positives,
    unit,
)

RANGES = dict(
    temperature="> 0", weight="in [0, 1]", hardest="> 0", mixed=">= 0", mixed_with_anchor=">= 0"
)


def mochi_loss(
    pairs: Pairs,
    draws: Array | None = None,
    *,
    temperature: Scalar = 0.2,
    weight: Scalar = 1.0,
    hardest: int = 1024,
    mixed: int = 512,
    mixed_with_anchor: int = 256,
) -> Array:
    r"""Compute InfoNCE with synthetic negatives, drawn between the N hardest ones of each anchor.

    .. math:: L_i &= -\log \frac{e^{s_{i+}/\tau}}
              {\sum_j e^{s_{ij}/\tau} + w \sum_k e^{z_i \cdot h_k / \tau}} \\
              h_k &\propto \alpha_k n_k + (1 - \alpha_k) n'_k \quad (k \le s), \quad
              h_k \propto \beta_k z_i + (1 - \beta_k) n_k \quad (s < k \le s + s')

    with n and n' drawn from the N negatives that are most similar to the anchor, alpha from (0, 1),
    and beta from (0, 0.5). All vectors have length 1, and h is a constant in the gradient.

    Args:
        pairs: n queries, m keys, from `pair_towers`. The paper's negatives are a queue of keys:
            ``pair_towers(q, k, queue=queue, batch_negatives=False)``.
        draws: [n, 3 s + 2 s'] or [3 s + 2 s'], uniform in [0, 1): s numbers each for n, n' and
            alpha, then s' each for n and beta. None takes the same draws for all anchors and calls.
            The objective draws new ones for every anchor and step.
        temperature: softmax temperature tau, > 0.
        weight: w of the synthetic negatives, in [0, 1]. The paper starts with 0, by a schedule.
        hardest: N, > 0. With fewer negatives, all of them.
        mixed: s, number of mixtures of two negatives.
        mixed_with_anchor: s', number of mixtures of a negative with the anchor.

    Returns:
        [n] float32, 0 for an anchor without a positive. Several positives are averaged.

    References:
        Kalantidis et al., Hard Negative Mixing for Contrastive Learning, 2020, eq. 1, 4 and 5.

    Checked against: davidsvy/hard-negative-mixing. No official code is known.
    """
    number = 3 * mixed + 2 * mixed_with_anchor
    if draws is None:
        draws = jax.random.uniform(jax.random.key(0), (number,), jnp.float32)
    if draws.shape[-1] != number:
        raise ValueError(f"draws must have {number} numbers per anchor, got {draws.shape}")
    anchor, candidate = unit(pairs.anchor), unit(pairs.candidate)
    s, neg = dot(anchor, candidate), negatives(pairs)
    empty = log_zero(s.dtype)
    top = min_dim(hardest, candidate.shape[0])  # The batch size may be symbolic.
    _, order = lax.top_k(lax.stop_gradient(jnp.where(neg, s, empty)), top)
    available = jnp.minimum(jnp.sum(neg, axis=1, keepdims=True, dtype=jnp.int32), top)
    draws = jnp.broadcast_to(draws.astype(s.dtype), (s.shape[0], number))
    first, second, alpha, third, beta = jnp.split(
        draws, [mixed, 2 * mixed, 3 * mixed, 3 * mixed + mixed_with_anchor], axis=1
    )

    def hard_negatives(uniform: Array) -> Array:
        """Return the negatives [n, k, d] of rank ``uniform`` * N among each anchor's N hardest."""
        rank = (uniform * available.astype(s.dtype)).astype(jnp.int32)
        rank = jnp.clip(rank, 0, jnp.maximum(available - 1, 0))
        return candidate[jnp.take_along_axis(order, rank, axis=1)]

    alpha, beta = alpha[:, :, None], beta[:, :, None] / 2
    pure = alpha * hard_negatives(first) + (1 - alpha) * hard_negatives(second)
    with_anchor = beta * anchor[:, None] + (1 - beta) * hard_negatives(third)
    synthetic = unit(lax.stop_gradient(jnp.concatenate([pure, with_anchor], axis=1)))
    s_synthetic = jnp.einsum("nd,nkd->nk", anchor, synthetic, precision=lax.Precision.HIGHEST)
    weight = jnp.asarray(weight, s.dtype)
    has_synthetic = (available > 0) & (weight > 0)
    log_weight = jnp.log(jnp.where(weight > 0, weight, 1))
    logits = [
        jnp.where(not_self(pairs), s / temperature, empty),
        jnp.where(has_synthetic, s_synthetic / temperature + log_weight, empty),
    ]
    total = jax.nn.logsumexp(jnp.concatenate(logits, axis=1), axis=1)
    pos = positives(pairs)
    return jnp.where(jnp.any(pos, axis=1), total - mean_where(s, pos) / temperature, 0)


def _draw_and_compute(pairs, params, memory, hyper, key):
    """Compute MoCHi's loss with new draws for every anchor and step."""
    shape = (3 * hyper["mixed"] + 2 * hyper["mixed_with_anchor"],)
    draw = partial(jax.random.uniform, shape=shape, dtype=jnp.float32)
    draws = jax.vmap(draw)(anchor_keys(key, pairs))
    return Terms(mochi_loss(pairs, draws, **hyper), memory)


objective = factory(mochi_loss, RANGES, partial(make_objective, _draw_and_compute))
