"""Debiased contrastive loss: NT-Xent corrected for false negatives of the anchor's class."""

from collections.abc import Callable

from jax import Array
from jax import numpy as jnp

from jaxssl.losses.objective import Scalar, stateless
from jaxssl.losses.pairs import Pairs, cosine, log_sum_exp, mean_where, negatives, positives

RANGES = {"temperature": "> 0", "positive_prior": "in [0, 1)"}


def debiased_loss(
    pairs: Pairs, *, temperature: Scalar = 0.5, positive_prior: Scalar = 0.1
) -> Array:
    r"""Compute NT-Xent with the expected share of false negatives subtracted from the denominator.

    .. math:: L_i &= -\frac{1}{|P_i|} \sum_p
              \log \frac{e^{s_{ip}/\tau}}{e^{s_{ip}/\tau} + G_{ip}} \\
              G_{ip} &= \max\Big(\frac{\sum_n e^{s_{in}/\tau} - N \pi e^{s_{ip}/\tau}}{1 - \pi},
              N e^{-1/\tau}\Big)

    Args:
        pairs: n anchors, m candidates. N is the number of negatives of an anchor.
        temperature: softmax temperature tau, > 0.
        positive_prior: pi, the probability that a negative is of the anchor's class, in [0, 1).
            With 0 and two views it is NT-Xent.

    Returns:
        [n] float32, 0 for an anchor without a positive.

    References:
        Chuang et al., Debiased Contrastive Learning, 2020, eq. 7 and 8.

    Checked against: chingyaoc/DCL.
    """
    return corrected_softmax(pairs, log_sum_exp, temperature, positive_prior)


def corrected_softmax(
    pairs: Pairs,
    log_sum: Callable[[Array, Array], Array],
    temperature: Scalar,
    positive_prior: Scalar,
) -> Array:
    """Compute the debiased loss [n] for a weighted sum over each anchor's negatives.

    Args:
        pairs: n anchors, m candidates.
        log_sum: maps similarity / temperature and the bool mask of the negatives, each [n, m], to
            the log of the sum, [n].
        temperature: tau, > 0.
        positive_prior: pi, in [0, 1).
    """
    logits, pos, neg = cosine(pairs) / temperature, positives(pairs), negatives(pairs)
    log_negatives = log_sum(logits, neg)
    count = jnp.sum(neg, axis=1, keepdims=True, dtype=logits.dtype)
    # The larger of log_negatives and logits is subtracted, so that no exponential overflows.
    shift = jnp.maximum(log_negatives[:, None], logits)
    candidate = jnp.exp(logits - shift)
    rest = jnp.exp(log_negatives[:, None] - shift) - count * positive_prior * candidate
    floor = count * jnp.exp(jnp.minimum(-1 / temperature - shift, 0))
    rest = jnp.maximum(rest / (1 - positive_prior), floor)
    return mean_where(shift - logits + jnp.log(candidate + rest), pos)


objective = stateless(debiased_loss, ranges=RANGES)
