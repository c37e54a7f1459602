"""VICReg: variance, invariance and covariance."""

from itertools import combinations

from jax import Array
from jax import numpy as jnp

from jaxssl import collectives
from jaxssl.losses.objective import Number, require_not_negative, require_positive, stateless
from jaxssl.losses.pairs import Pairs, dot, views_of, wide

PRESETS = {"released": {}, "solo_learn": {"variance_weight": 50.0}}


def vicreg_loss(
    pairs: Pairs,
    *,
    invariance_weight: Number = 25.0,
    variance_weight: Number = 25.0,
    covariance_weight: Number = 1.0,
    epsilon: Number = 1e-4,
) -> Array:
    r"""Views alike, every feature of standard deviation 1, features uncorrelated.

    .. math:: L = \lambda \frac{1}{B d} \sum_i |z^1_i - z^2_i|^2
              + \frac\mu2 \sum_v \frac1d \sum_d \max\big(0, 1 - \sqrt{C^v_{dd} + \epsilon}\big)
              + \nu \sum_v \frac1d \sum_{d \ne e} (C^v_{de})^2

    where C is the covariance of a view's embeddings, with B - 1 below. Of V > 2 views, the loss is
    the mean over their pairs. Embeddings are not normalised.

    Args:
        pairs: from `pair_views` of V >= 2 views, or `pair_towers`.
        invariance_weight: lambda, >= 0.
        variance_weight: mu, >= 0. solo-learn's code does not halve: it is 2 mu there.
        covariance_weight: nu, >= 0.
        epsilon: added to the variance, > 0.

    Returns:
        [n] float32: the batch's loss, for every anchor.

    Raises:
        ValueError: if there is a single view.

    References:
        Bardes, Ponce and LeCun, VICReg, 2022, eq. 1 to 6.

    Differs from the paper: the variance term of the two views is halved, as in the authors' code.
    """
    require_not_negative(
        invariance_weight=invariance_weight,
        variance_weight=variance_weight,
        covariance_weight=covariance_weight,
    )
    require_positive(epsilon=epsilon)
    z = wide(views_of(pairs, "vicreg"))
    num_views, b, d = z.shape
    batch = b * collectives.device_count(pairs.axis_name)
    centred = z - collectives.mean(jnp.mean(z, axis=1, keepdims=True), pairs.axis_name)
    spread = []
    for view in centred:
        c = collectives.sum(dot(view.T, view.T), pairs.axis_name) / max(batch - 1, 1)
        variance = jnp.diagonal(c)
        hinge = jnp.mean(jnp.maximum(1 - jnp.sqrt(variance + epsilon), 0))
        off = (jnp.sum(c**2) - jnp.sum(variance**2)) / d
        spread.append(variance_weight * hinge / 2 + covariance_weight * off)
    values = []
    for v, w in combinations(range(num_views), 2):
        apart = collectives.mean(jnp.mean((z[v] - z[w]) ** 2), pairs.axis_name)
        values.append(invariance_weight * apart + spread[v] + spread[w])
    return jnp.broadcast_to(sum(values) / len(values), pairs.index.shape)


objective = stateless(vicreg_loss, takes_labels=False, takes_queue=False)
