"""DCL (decoupled contrastive loss): NT-Xent without the positive in the denominator."""

from jax import Array
from jax import numpy as jnp

from jaxssl.losses._row_sums import row_sums, takes_queue
from jaxssl.losses.objective import Scalar, stateless
from jaxssl.losses.pairs import Pairs, zero_if_empty

RANGES = {"temperature": "> 0", "block_size": "> 0"}


def dcl_loss(
    pairs: Pairs, *, temperature: Scalar = 0.1, block_size: int | None = None, ring: bool = False
) -> Array:
    r"""Compute DCL: NT-Xent without the positive in the denominator.

    .. math:: L_i = -\frac{1}{|P_i|} \sum_{p \in P_i} s_{ip}/\tau
              + \log \sum_{n \in N_i} e^{s_{in}/\tau}

    Args:
        pairs: n anchors, m candidates, with cosine similarities s.
        temperature: softmax temperature tau, > 0. The paper uses 0.07 to 0.5.
        block_size: rows of the [n, m] matrix held at a time, >= 1; None holds all of them.
        ring: pass the candidates around the devices instead of gathering them.

    Returns:
        [n] float32, 0 for an anchor without a positive. Without negatives the log is left out.

    References:
        Yeh et al., Decoupled Contrastive Learning, 2022, eq. 6.

    Checked against: lightly (``DCLLoss``), raminnakhli/Decoupled-Contrastive-Learning.
    """
    sums = row_sums(pairs, temperature, block_size=block_size, ring=ring)
    loss = zero_if_empty(sums.negative) - sums.mean_positive
    return jnp.where(sums.has_positive, loss, 0)


objective = stateless(dcl_loss, ranges=RANGES, takes_queue=takes_queue)
