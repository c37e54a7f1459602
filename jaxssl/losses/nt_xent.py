"""NT-Xent: SimCLR's loss; with labels in the pairs, SupCon's L_out."""

import jax
from jax import Array
from jax import numpy as jnp

from jaxssl.objective import Number, require_positive, stateless
from jaxssl.pairs import Pairs, cosine, not_self, positives


def nt_xent_loss(pairs: Pairs, *, temperature: Number = 0.5) -> Array:
    r"""-log softmax of the positives' similarity among all candidates, averaged over positives.

    .. math:: L_i = -\frac{1}{|P_i|} \sum_{p \in P_i}
              \log \frac{e^{s_{ip}/\tau}}{\sum_{j \ne i} e^{s_{ij}/\tau}}

    Args:
        pairs: n anchors, m candidates; s is their cosine similarity.
        temperature: tau, > 0. SimCLR used 0.5 on CIFAR-10 and 0.1 to 0.2 on ImageNet.

    Returns:
        [n] float32; 0 for an anchor without a positive.

    References:
        Chen et al., A Simple Framework for Contrastive Learning of Visual Representations, 2020,
        eq. 1. Khosla et al., Supervised Contrastive Learning, 2020, eq. 2.
    """
    require_positive(temperature=temperature)
    logits = cosine(pairs) / temperature
    # A finite stand-in for -inf: an anchor that is alone would otherwise give inf - inf.
    others = jnp.where(not_self(pairs), logits, jnp.finfo(logits.dtype).min / 2)
    log_sum = jax.nn.logsumexp(others, axis=1)
    pos = positives(pairs)
    count = jnp.sum(pos, axis=1, dtype=logits.dtype)
    pos_mean = jnp.sum(jnp.where(pos, logits, 0), axis=1) / jnp.maximum(count, 1)
    return jnp.where(count > 0, log_sum - pos_mean, 0)


objective = stateless(nt_xent_loss)
