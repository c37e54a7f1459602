"""VICReg: variance, invariance and covariance terms instead of negatives."""

from itertools import combinations

from jax import Array
from jax import numpy as jnp

from jaxssl import collectives
from jaxssl.losses.objective import Scalar, stateless
from jaxssl.losses.pairs import Pairs, dot, promote, stack_views

# solo-learn's variance term lacks the factor 1/2 of the authors' code.
PRESETS = {"released": {}, "solo_learn": {"variance_weight": 50.0}}
RANGES = {
    "invariance_weight": ">= 0",
    "variance_weight": ">= 0",
    "covariance_weight": ">= 0",
    "epsilon": "> 0",
}


def vicreg_loss(
    pairs: Pairs,
    *,
    invariance_weight: Scalar = 25.0,
    variance_weight: Scalar = 25.0,
    covariance_weight: Scalar = 1.0,
    epsilon: Scalar = 1e-4,
) -> Array:
    r"""Compute VICReg's terms: equal views, features of standard deviation 1, no correlations.

    .. math:: L = \lambda \frac{1}{B d} \sum_i |z^1_i - z^2_i|^2
              + \frac\mu2 \sum_v \frac1d \sum_d \max\big(0, 1 - \sqrt{C^v_{dd} + \epsilon}\big)
              + \nu \sum_v \frac1d \sum_{d \ne e} (C^v_{de})^2

    where C is the covariance of a view's embeddings, with B - 1 in the denominator. With V > 2
    views, the loss is the mean over their pairs. Embeddings are not normalised.

    Args:
        pairs: from `pair_views` of V >= 2 views, or `pair_towers`.
        invariance_weight: lambda, >= 0.
        variance_weight: mu, >= 0. solo-learn's code does not halve the term: its weight is 2 mu.
        covariance_weight: nu, >= 0.
        epsilon: number added to the variance, > 0.

    Returns:
        [n] float32: the loss of the batch, repeated for every anchor.

    Raises:
        ValueError: if there is only one view.

    References:
        Bardes, Ponce and LeCun, VICReg, 2022, eq. 1 to 6.

    Differs from the paper: the variance term of the two views is halved, as in the authors' code.

    Checked against: facebookresearch/vicreg, lightly, solo-learn.
    """
    z = promote(stack_views(pairs, "vicreg"))
    num_views, b, d = z.shape
    batch = b * collectives.device_count(pairs.axis_name)
    centred = z - collectives.mean(jnp.mean(z, axis=1, keepdims=True), pairs.axis_name)
    regularisers = []
    for view in centred:
        c = collectives.sum(dot(view.T, view.T), pairs.axis_name) / max(batch - 1, 1)
        variance = jnp.diagonal(c)
        hinge = jnp.mean(jnp.maximum(1 - jnp.sqrt(variance + epsilon), 0))
        off_diagonal = (jnp.sum(c**2) - jnp.sum(variance**2)) / d
        regularisers.append(variance_weight * hinge / 2 + covariance_weight * off_diagonal)
    values = []
    for v, w in combinations(range(num_views), 2):
        invariance = collectives.mean(jnp.mean((z[v] - z[w]) ** 2), pairs.axis_name)
        values.append(invariance_weight * invariance + regularisers[v] + regularisers[w])
    return jnp.broadcast_to(jnp.mean(jnp.stack(values)), pairs.index.shape)


objective = stateless(vicreg_loss, ranges=RANGES, takes_labels=False, takes_queue=False)
