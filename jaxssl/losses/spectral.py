"""Spectral contrastive loss (SpectralCL): squared inner products of negatives against positives."""

from jax import Array
from jax import numpy as jnp

from jaxssl.losses.objective import Scalar, stateless
from jaxssl.losses.pairs import Pairs, dot, mean_where, negatives, positives, promote, unit

RANGES = {"mu": "> 0"}


def spectral_loss(pairs: Pairs, *, mu: Scalar = 1.0) -> Array:
    r"""Compute squared inner products of the negatives minus twice those of the positives.

    .. math:: L_i = \frac1\mu \Big(-\frac{2}{|P_i|} \sum_p z_i \cdot z_p
              + \frac{1}{|N_i|} \sum_n (z_i \cdot z_n)^2\Big)

    where embeddings longer than sqrt(mu) are scaled to that length.

    Args:
        pairs: n anchors, m candidates. The authors' code takes negatives only from the other view,
            as `pair_towers` does.
        mu: squared radius of the ball that holds the embeddings, > 0.

    Returns:
        [n] float32, 0 for an anchor without a positive.

    References:
        HaoChen et al., Provable Guarantees for Self-Supervised Deep Learning with Spectral
        Contrastive Loss, 2021, eq. 6.

    Checked against: jhaochenz96/spectral_contrastive_learning.
    """
    s = dot(_project_to_ball(pairs.anchor, mu), _project_to_ball(pairs.candidate, mu))
    pos = positives(pairs)
    loss = (mean_where(s * s, negatives(pairs)) - 2 * mean_where(s, pos)) / mu
    return jnp.where(jnp.any(pos, axis=1), loss, 0)


def _project_to_ball(z: Array, mu: Scalar) -> Array:
    """Scale embeddings longer than sqrt(mu) to the length sqrt(mu)."""
    z = promote(z)
    radius = jnp.sqrt(jnp.asarray(mu, z.dtype))
    largest = jnp.max(jnp.abs(z), axis=1, keepdims=True)
    # An embedding with one entry above the radius is certainly too long. It is left out of the
    # squared norms, because its square could overflow.
    outside = largest >= radius
    square = jnp.sum(jnp.where(outside, 0, z) ** 2, axis=1, keepdims=True)
    outside |= square >= radius**2
    return jnp.where(outside, unit(z) * radius, z)


# The rows of a queue are normalised, and this loss's embeddings are not.
objective = stateless(spectral_loss, ranges=RANGES, takes_queue=False)
