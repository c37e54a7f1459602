"""W-MSE: whiten the embeddings of each view, then minimise the distance between views."""

from itertools import combinations

import jax
from jax import Array
from jax import numpy as jnp

from jaxssl import collectives
from jaxssl.losses.objective import Scalar, stateless
from jaxssl.losses.pairs import Pairs, centre, dot, promote, stack_views, unit

RANGES = {"epsilon": "in [0, 1]"}


def w_mse_loss(pairs: Pairs, *, epsilon: Scalar = 1e-3) -> Array:
    r"""Compute the squared distance between the whitened, normalised embeddings of two views.

    .. math:: L = \frac1B \sum_i \big(2 - 2 \cos(W_1 (z^1_i - m_1), W_2 (z^2_i - m_2))\big), \quad
              W_v = L_v^{-1}, \; L_v L_v^T = (1 - \epsilon) C_v + \epsilon I

    where m and C are the mean and covariance (B - 1 in the denominator) of a view over the global
    batch. With V > 2 views, the loss is the mean over their pairs.

    Args:
        pairs: from `pair_views` of V >= 2 views, or `pair_towers`.
        epsilon: weight of the identity, in [0, 1]. With 0, as in the authors' code, the batch must
            have more rows than features.

    Returns:
        [n] float32: mean distance of each anchor to its partners.

    Raises:
        ValueError: if there is only one view.

    References:
        Ermolov et al., Whitening for Self-Supervised Representation Learning, 2021, eq. 4 to 6.

    Differs from the released code: the whole global batch is whitened at once, in place of random
    subsets.

    Checked against: htdt/self-supervised, with epsilon 0 and the whole batch.
    """
    z = promote(stack_views(pairs, "w_mse"))
    white = [unit(_whiten(view, epsilon, pairs.axis_name)) for view in z]
    distances = [jnp.zeros_like(view[:, 0]) for view in white]
    for v, w in combinations(range(len(white)), 2):
        distance = (2 - 2 * jnp.sum(white[v] * white[w], axis=1)) / (len(white) - 1)
        distances[v], distances[w] = distances[v] + distance, distances[w] + distance
    return jnp.concatenate(distances[: max(pairs.num_views, 1)])


def _whiten(z: Array, epsilon: Scalar, axis_name: str | None) -> Array:
    """Whiten embeddings [b, d]: mean 0 and identity covariance over the global batch."""
    batch = z.shape[0] * collectives.device_count(axis_name)
    centred, scale = centre(z, axis_name)
    # The identity that regularises the covariance is scaled as the embeddings are, but stays large
    # enough for the Cholesky factorisation.
    weight = jnp.maximum(epsilon / scale**2, jnp.minimum(epsilon, 64 * jnp.finfo(z.dtype).eps))
    covariance = collectives.sum(dot(centred.T, centred.T), axis_name) / max(batch - 1, 1)
    identity = jnp.eye(z.shape[1], dtype=z.dtype)
    lower = jnp.linalg.cholesky((1 - epsilon) * covariance + weight * identity)
    return jax.scipy.linalg.solve_triangular(lower, centred.T, lower=True).T


objective = stateless(w_mse_loss, ranges=RANGES, takes_labels=False, takes_queue=False)
