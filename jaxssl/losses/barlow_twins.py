"""Barlow Twins: bring the cross-correlation matrix of two views close to the identity."""

from itertools import combinations

from jax import Array, lax
from jax import numpy as jnp

from jaxssl import collectives
from jaxssl.losses.objective import Scalar, stateless
from jaxssl.losses.pairs import Pairs, centre, dot, promote, stack_views

# The authors' code has lambda = 0.0051, the paper 0.005.
PRESETS = {
    "released": {"off_diagonal_weight": 0.0051},
    "solo_learn": {"off_diagonal_weight": 0.0051, "scale": 0.025},
}
RANGES = {"off_diagonal_weight": ">= 0", "scale": ">= 0", "epsilon": "> 0"}


def barlow_twins_loss(
    pairs: Pairs,
    *,
    off_diagonal_weight: Scalar = 0.005,
    scale: Scalar = 1.0,
    epsilon: Scalar = 1e-5,
) -> Array:
    r"""Compute the squared distance of the features' cross-correlation matrix from the identity.

    .. math:: L = s \Big(\sum_d (1 - C_{dd})^2 + \lambda \sum_{d \ne e} C_{de}^2\Big), \quad
              C = \frac1B \sum_i \hat z^1_i {\hat z^2_i}^T

    where every feature of a view is standardised to mean 0 and variance 1 over the global batch.
    With V > 2 views, the loss is the mean over their pairs.

    Args:
        pairs: from `pair_views` of V >= 2 views, or `pair_towers`.
        off_diagonal_weight: lambda, >= 0.
        scale: s, >= 0.
        epsilon: number added to the variance, > 0.

    Returns:
        [n] float32: the loss of the batch, repeated for every anchor.

    Raises:
        ValueError: if there is only one view.

    References:
        Zbontar et al., Barlow Twins, 2021, eq. 1 and 2.

    Checked against: facebookresearch/barlowtwins, lightly, solo-learn.
    """
    z = promote(stack_views(pairs, "barlow_twins"))
    centred, scaled_by = centre(z, pairs.axis_name)
    variance = collectives.mean(jnp.mean(centred**2, axis=1, keepdims=True), pairs.axis_name)
    variance = variance + epsilon / scaled_by**2
    constant = variance <= 0
    normal = centred * jnp.where(constant, 0, lax.rsqrt(jnp.where(constant, 1, variance)))
    values = []
    for one, other in combinations(normal, 2):
        c = collectives.mean(dot(one.T, other.T) / one.shape[0], pairs.axis_name)
        diagonal = jnp.diagonal(c)
        off_diagonal = jnp.sum(c**2) - jnp.sum(diagonal**2)
        values.append(jnp.sum((1 - diagonal) ** 2) + off_diagonal_weight * off_diagonal)
    return jnp.broadcast_to(scale * jnp.mean(jnp.stack(values)), pairs.index.shape)


objective = stateless(barlow_twins_loss, ranges=RANGES, takes_labels=False, takes_queue=False)
