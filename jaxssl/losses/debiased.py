"""Debiased contrastive loss: negatives corrected for the positives among them."""

from jax import Array
from jax import numpy as jnp

from jaxssl.losses._row_sums import log_sum
from jaxssl.losses.objective import Number, require_positive, stateless
from jaxssl.losses.pairs import Pairs, cosine, negatives, positives


def debiased_loss(
    pairs: Pairs, *, temperature: Number = 0.5, positive_prior: Number = 0.1
) -> Array:
    r"""NT-Xent whose negatives are rid of the share of them that are positives by chance.

    .. math:: L_i &= -\frac{1}{|P_i|} \sum_p
              \log \frac{e^{s_{ip}/\tau}}{e^{s_{ip}/\tau} + G_{ip}} \\
              G_{ip} &= \max\Big(\frac{\sum_n e^{s_{in}/\tau} - N \pi e^{s_{ip}/\tau}}{1 - \pi},
              N e^{-1/\tau}\Big)

    Args:
        pairs: n anchors, m candidates; N is an anchor's number of negatives.
        temperature: tau, > 0.
        positive_prior: pi, the chance that a negative is of the anchor's class, in [0, 1). With 0
            and two views it is NT-Xent.

    Returns:
        [n] float32; 0 for an anchor without a positive.

    References:
        Chuang et al., Debiased Contrastive Learning, 2020, eq. 7 and 8.
    """
    require_positive(temperature=temperature)
    neg = negatives(pairs)
    logits = cosine(pairs) / temperature
    return corrected_softmax(
        logits, positives(pairs), neg, log_sum(logits, neg), temperature, positive_prior
    )


def corrected_softmax(
    logits: Array,
    pos: Array,
    neg: Array,
    log_negatives: Array,
    temperature: Number,
    positive_prior: Number,
) -> Array:
    """The loss above, given the log of the (re-weighted) sum over negatives; [n].

    Args:
        logits: [n, m] similarity / temperature.
        pos: [n, m] bool, the positives.
        neg: [n, m] bool, the negatives.
        log_negatives: [n] log of the sum that stands for the negatives.
        temperature: tau, > 0.
        positive_prior: pi, in [0, 1).
    """
    if isinstance(positive_prior, float | int) and not 0 <= positive_prior < 1:
        raise ValueError(f"positive_prior must be in [0, 1), got {positive_prior}")
    count = jnp.sum(neg, axis=1, keepdims=True, dtype=logits.dtype)
    # Each entry has its largest exponent taken out, so that no temperature overflows.
    shift = jnp.maximum(log_negatives[:, None], logits)
    own = jnp.exp(logits - shift)
    rest = jnp.exp(log_negatives[:, None] - shift) - count * positive_prior * own
    floor = count * jnp.exp(jnp.minimum(-1 / temperature - shift, 0))
    rest = jnp.maximum(rest / (1 - positive_prior), floor)
    terms = jnp.where(pos, shift - logits + jnp.log(own + rest), 0)
    num_pos = jnp.sum(pos, axis=1, dtype=logits.dtype)
    return jnp.sum(terms, axis=1) / jnp.maximum(num_pos, 1)


objective = stateless(debiased_loss)
