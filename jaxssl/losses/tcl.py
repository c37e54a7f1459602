"""TCL: the tuned contrastive loss."""

from jax import Array
from jax import numpy as jnp

from jaxssl.objective import Number, require_not_negative, require_positive, stateless
from jaxssl.pairs import Pairs
from jaxssl.rows import row_sums

# The paper's settings; its self-supervised temperature is unstated.
PRESETS = {
    "supervised_cifar10": {"temperature": 0.1, "k1": 5000.0, "k2": 1.0},
    "supervised_cifar100": {"temperature": 0.1, "k1": 4000.0, "k2": 1.0},
    "self_supervised": {"temperature": 0.2, "k1": 1.0, "k2": 1.5},
}


def tcl_loss(
    pairs: Pairs,
    *,
    temperature: Number = 0.2,
    k1: Number = 1.0,
    k2: Number = 1.5,
    block_size: int | None = None,
    ring: bool = False,
) -> Array:
    r"""SupCon whose gradient is tuned: k1 for the positives, k2 for the negatives.

    .. math:: L_i &= -\frac{1}{|P_i|} \sum_{p \in P_i} \log \frac{e^{s_{ip}/\tau}}{D_i} \\
              D_i &= \sum_{p \in P_i} e^{s_{ip}/\tau} + k_1 \sum_{p \in P_i} e^{-s_{ip}}
                     + k_2 \sum_{n \in N_i} e^{s_{in}/\tau}

    The middle term has no temperature. (k1, k2) = (0, 1) is SupCon.

    Args:
        pairs: n anchors, m candidates; s is their cosine similarity. The paper uses labels, or
            three views.
        temperature: tau, > 0.
        k1: >= 0, the paper's range is >= 1. Thousands with labels, 1 without.
        k2: >= 0, the paper's range is >= 1; its gradient on negatives grows with k2.
        block_size: hold this many rows of the [n, m] matrix at a time (`jaxssl.rows`), or None.
        ring: never gather the candidates, let them travel around the devices.

    Returns:
        [n] float32; 0 for an anchor without a positive.

    References:
        Animesh and Chandraker, Tuned Contrastive Learning, 2023, eq. 4.2 and 4.3.

    Differs from the released code: an anchor without a positive is left out of the mean; there the
    loss is NaN.
    """
    require_positive(temperature=temperature)
    require_not_negative(k1=k1, k2=k2)
    rows = row_sums(pairs, temperature, block_size=block_size, ring=ring, repulsion=True)
    # log D with the largest exponent taken out; there is no log of k1 or k2, which may be 0.
    shift = jnp.maximum(jnp.maximum(rows.positive, rows.negative), 0)
    total = (
        jnp.exp(rows.positive - shift)
        + k1 * rows.repulsion * jnp.exp(-shift)
        + k2 * jnp.exp(rows.negative - shift)
    )
    alone = rows.count == 0
    log_total = shift + jnp.log(jnp.where(alone, 1, total))
    return jnp.where(alone, 0, log_total - rows.mean_positive)


objective = stateless(tcl_loss)
