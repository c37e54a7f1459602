"""HCL: the debiased loss with hard negatives weighted up."""

from jax import Array
from jax import numpy as jnp

from jaxssl.losses._row_sums import log_sum, or_zero
from jaxssl.losses.debiased import corrected_softmax
from jaxssl.losses.objective import Number, require_not_negative, require_positive, stateless
from jaxssl.losses.pairs import Pairs, cosine, negatives, positives


def hcl_loss(
    pairs: Pairs,
    *,
    temperature: Number = 0.5,
    beta: Number = 1.0,
    positive_prior: Number = 0.1,
) -> Array:
    r"""The debiased loss with importance weights that grow with a negative's similarity.

    .. math:: \sum_n e^{s_{in}/\tau} \;\to\; \sum_n w_{in} e^{s_{in}/\tau}, \quad
              w_{in} = \frac{e^{\beta s_{in}/\tau}}{\frac1N \sum_k e^{\beta s_{ik}/\tau}}

    The gradient passes through the weights.

    Args:
        pairs: n anchors, m candidates; N is an anchor's number of negatives.
        temperature: tau, > 0.
        beta: concentration on hard negatives, >= 0; 0 is the debiased loss.
        positive_prior: pi, the chance that a negative is of the anchor's class, in [0, 1).

    Returns:
        [n] float32; 0 for an anchor without a positive.

    References:
        Robinson et al., Contrastive Learning with Hard Negative Samples, 2021, eq. 4.
    """
    require_positive(temperature=temperature)
    require_not_negative(beta=beta)
    neg = negatives(pairs)
    logits = cosine(pairs) / temperature
    count = jnp.sum(neg, axis=1, dtype=logits.dtype)
    # The log of (sum of e^((1 + beta) l)) N / (sum of e^(beta l)).
    weighted = (
        log_sum((1 + beta) * logits, neg)
        + jnp.log(jnp.maximum(count, 1))
        - or_zero(log_sum(beta * logits, neg))
    )
    return corrected_softmax(logits, positives(pairs), neg, weighted, temperature, positive_prior)


objective = stateless(hcl_loss)
