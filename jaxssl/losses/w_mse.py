"""W-MSE: whiten the embeddings, then bring the views together."""

from itertools import combinations

import jax
from jax import Array
from jax import numpy as jnp

from jaxssl import collectives
from jaxssl.losses.objective import Number, require_share, stateless
from jaxssl.losses.pairs import Pairs, dot, unit, views_of, wide


def w_mse_loss(pairs: Pairs, *, epsilon: Number = 1e-3) -> Array:
    r"""Squared distance of the unit vectors of whitened views.

    .. math:: L = \frac1B \sum_i \big(2 - 2 \cos(W_1 (z^1_i - m_1), W_2 (z^2_i - m_2))\big), \quad
              W_v = L_v^{-1}, \; L_v L_v^T = (1 - \epsilon) C_v + \epsilon I

    where m and C are a view's mean and covariance (B - 1 below) over the global batch. Of V > 2
    views, the loss is the mean over their pairs.

    Args:
        pairs: from `pair_views` of V >= 2 views, or `pair_towers`.
        epsilon: share of the identity, in [0, 1]. With 0, as in the authors' code, the batch must
            have more rows than features.

    Returns:
        [n] float32: each anchor's distances to its partners, averaged.

    Raises:
        ValueError: if there is a single view.

    References:
        Ermolov et al., Whitening for Self-Supervised Representation Learning, 2021, eq. 4 to 6.

    Differs from the released code: the whole global batch is whitened at once, not random parts
    of it.
    """
    require_share(epsilon=epsilon)
    z = wide(views_of(pairs, "w_mse"))
    white = [unit(_whiten(view, epsilon, pairs.axis_name)) for view in z]
    distance = [jnp.zeros_like(z[0, :, 0]) for _ in white]
    for v, w in combinations(range(len(white)), 2):
        apart = (2 - 2 * jnp.sum(white[v] * white[w], axis=1)) / (len(white) - 1)
        distance[v], distance[w] = distance[v] + apart, distance[w] + apart
    return jnp.concatenate(distance[: max(pairs.num_views, 1)])


def _whiten(z: Array, epsilon: Number, axis_name: str | None) -> Array:
    """[b, d] rows with mean 0 and, over the global batch, the identity as covariance."""
    batch = z.shape[0] * collectives.device_count(axis_name)
    centred = z - collectives.mean(jnp.mean(z, axis=0, keepdims=True), axis_name)
    # At largest entry 1 squares fit; the identity's share is scaled along, down to what keeps the
    # factorisation positive in this precision.
    scale = jnp.maximum(collectives.max(jnp.abs(centred), axis_name), 1)
    centred = centred / scale
    share = jnp.maximum(epsilon / scale**2, jnp.minimum(epsilon, 64 * jnp.finfo(z.dtype).eps))
    covariance = collectives.sum(dot(centred.T, centred.T), axis_name) / max(batch - 1, 1)
    identity = jnp.eye(z.shape[1], dtype=z.dtype)
    lower = jnp.linalg.cholesky((1 - epsilon) * covariance + share * identity)
    return jax.scipy.linalg.solve_triangular(lower, centred.T, lower=True).T


objective = stateless(w_mse_loss, takes_labels=False, takes_queue=False)
