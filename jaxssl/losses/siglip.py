"""SigLIP: a binary logistic loss for every pair of an image and a caption."""

import math

import jax
from jax import Array
from jax import numpy as jnp

from jaxssl.losses.objective import Scalar, stateless
from jaxssl.losses.pairs import Pairs, cosine, count_positives, not_self, positives

LOG_SCALE = math.log(10.0)
RANGES = {"logit_scale": "finite", "bias": "finite"}


def siglip_loss(pairs: Pairs, logit_scale: Scalar = LOG_SCALE, bias: Scalar = -10.0) -> Array:
    r"""Compute the logistic loss of every (anchor, candidate) pair, summed over the candidates.

    .. math:: L_i = -\sum_j \log \sigma\big(y_{ij} (t s_{ij} + b)\big), \quad t = e^{scale}

    with y = 1 for positives and -1 for negatives.

    Args:
        pairs: n images, m captions, from `pair_towers`.
        logit_scale: log of t, trained together with the network from t = 10.
        bias: b, trained together with the network. It starts low, because most pairs are negatives.

    Returns:
        [n] float32, 0 for an anchor without a positive.

    References:
        Zhai et al., Sigmoid Loss for Language Image Pre-Training, 2023, algorithm 1.
    """
    # A scale above e^60 would overflow float32 in the loss.
    logits = cosine(pairs) * jnp.exp(jnp.minimum(logit_scale, 60.0)) + bias
    sign = jnp.where(positives(pairs), 1, -1).astype(logits.dtype)
    terms = jnp.where(not_self(pairs), jax.nn.softplus(-sign * logits), 0)
    return jnp.where(count_positives(pairs) > 0, jnp.sum(terms, axis=1), 0)


objective = stateless(siglip_loss, learn=("logit_scale", "bias"), ranges=RANGES)
