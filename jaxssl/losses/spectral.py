"""The spectral contrastive loss."""

from jax import Array
from jax import numpy as jnp

from jaxssl.losses.objective import Number, require_positive, stateless
from jaxssl.losses.pairs import Pairs, dot, negatives, positives, unit, wide


def spectral_loss(pairs: Pairs, *, mu: Number = 1.0) -> Array:
    r"""Positives' inner products up, negatives' squared ones down.

    .. math:: L_i = \frac1\mu \Big(-\frac{2}{|P_i|} \sum_p z_i \cdot z_p
              + \frac{1}{|N_i|} \sum_n (z_i \cdot z_n)^2\Big)

    where embeddings longer than sqrt(mu) are cut to that length.

    Args:
        pairs: n anchors, m candidates; the authors' code takes the negatives from the other view
            alone, as `pair_towers` does.
        mu: squared radius of the ball that holds the embeddings, > 0.

    Returns:
        [n] float32; 0 for an anchor without a positive.

    References:
        HaoChen et al., Provable Guarantees for Self-Supervised Deep Learning with Spectral
        Contrastive Loss, 2021, eq. 6.
    """
    require_positive(mu=mu)
    s = dot(_in_ball(pairs.anchor, mu), _in_ball(pairs.candidate, mu))
    pos, neg = positives(pairs), negatives(pairs)
    num_pos, num_neg = (jnp.sum(mask, axis=1, dtype=s.dtype) for mask in (pos, neg))
    pull = jnp.sum(jnp.where(pos, s, 0), axis=1) / jnp.maximum(num_pos, 1)
    push = jnp.sum(jnp.where(neg, s * s, 0), axis=1) / jnp.maximum(num_neg, 1)
    return jnp.where(num_pos > 0, (push - 2 * pull) / mu, 0)


def _in_ball(z: Array, mu: Number) -> Array:
    z, radius = wide(z), jnp.sqrt(jnp.asarray(mu, wide(z).dtype))
    largest = jnp.max(jnp.abs(z), axis=1, keepdims=True)
    # A row with an entry above the radius is outside; only the others' squares are needed.
    outside = largest >= radius
    square = jnp.sum(jnp.where(outside, 0, z) ** 2, axis=1, keepdims=True)
    outside |= square >= radius**2
    return jnp.where(outside, unit(z) * radius, jnp.where(outside, 0, z))


objective = stateless(spectral_loss)
