"""HCL: the debiased contrastive loss with larger weights for hard negatives."""

from jax import Array
from jax import numpy as jnp

from jaxssl.losses.debiased import corrected_softmax
from jaxssl.losses.objective import Scalar, stateless
from jaxssl.losses.pairs import Pairs, log_sum_exp, zero_if_empty

RANGES = {"temperature": "> 0", "beta": ">= 0", "positive_prior": "in [0, 1)"}


def hcl_loss(
    pairs: Pairs, *, temperature: Scalar = 0.5, beta: Scalar = 1.0, positive_prior: Scalar = 0.1
) -> Array:
    r"""Compute the debiased contrastive loss, with weights that grow with a negative's similarity.

    In `jaxssl.losses.debiased_loss`, the sum over the N negatives is replaced by a weighted one:

    .. math:: \sum_n e^{s_{in}/\tau} \;\to\; \sum_n w_{in} e^{s_{in}/\tau}, \quad
              w_{in} = \frac{e^{\beta s_{in}/\tau}}{\frac1N \sum_k e^{\beta s_{ik}/\tau}}

    The weights are differentiated.

    Args:
        pairs: n anchors, m candidates. N is the number of negatives of an anchor.
        temperature: softmax temperature tau, > 0.
        beta: concentration on hard negatives, >= 0. With 0 it is the debiased loss.
        positive_prior: pi, the probability that a negative is of the anchor's class, in [0, 1).

    Returns:
        [n] float32, 0 for an anchor without a positive.

    References:
        Robinson et al., Contrastive Learning with Hard Negative Samples, 2021, eq. 4.

    Checked against: joshr17/HCL.
    """

    def log_sum(logits: Array, neg: Array) -> Array:
        """Compute log(N sum(e^((1 + beta) l)) / sum(e^(beta l))) for logits l of N negatives."""
        count = jnp.sum(neg, axis=1, dtype=logits.dtype)
        total = log_sum_exp((1 + beta) * logits, neg) + jnp.log(jnp.maximum(count, 1))
        return total - zero_if_empty(log_sum_exp(beta * logits, neg))

    return corrected_softmax(pairs, log_sum, temperature, positive_prior)


objective = stateless(hcl_loss, ranges=RANGES)
