"""DCL: NT-Xent decoupled from its positive."""

from jax import Array
from jax import numpy as jnp

from jaxssl.losses._row_sums import or_zero, row_sums
from jaxssl.losses.objective import Number, require_positive, stateless
from jaxssl.losses.pairs import Pairs


def dcl_loss(
    pairs: Pairs, *, temperature: Number = 0.1, block_size: int | None = None, ring: bool = False
) -> Array:
    r"""NT-Xent without the positive in the denominator.

    .. math:: L_i = -\frac{1}{|P_i|} \sum_{p \in P_i} s_{ip}/\tau
              + \log \sum_{n \in N_i} e^{s_{in}/\tau}

    Args:
        pairs: n anchors, m candidates; s is their cosine similarity.
        temperature: tau, > 0; the paper uses 0.07 to 0.5.
        block_size: rows of the [n, m] matrix that are held at a time; None holds all of them.
        ring: never gather the candidates, let them travel around the devices.

    Returns:
        [n] float32; 0 for an anchor without a positive. Without a negative the sum is left out.

    References:
        Yeh et al., Decoupled Contrastive Learning, 2022, eq. 6.
    """
    require_positive(temperature=temperature)
    rows = row_sums(pairs, temperature, block_size=block_size, ring=ring)
    return jnp.where(rows.count > 0, or_zero(rows.negative) - rows.mean_positive, 0)


objective = stateless(dcl_loss, takes_queue=lambda hyper: not hyper["ring"])
