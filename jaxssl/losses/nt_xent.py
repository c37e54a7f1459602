"""NT-Xent, the normalised temperature-scaled cross-entropy loss of SimCLR."""

from jax import Array
from jax import numpy as jnp

from jaxssl.losses._row_sums import row_sums, takes_queue
from jaxssl.losses.objective import Scalar, stateless
from jaxssl.losses.pairs import Pairs

RANGES = {"temperature": "> 0", "block_size": "> 0"}


def nt_xent_loss(
    pairs: Pairs, *, temperature: Scalar = 0.5, block_size: int | None = None, ring: bool = False
) -> Array:
    r"""Compute NT-Xent: -log softmax of an anchor's positives among all candidates.

    .. math:: L_i = -\frac{1}{|P_i|} \sum_{p \in P_i}
              \log \frac{e^{s_{ip}/\tau}}{\sum_{j \ne i} e^{s_{ij}/\tau}}

    Args:
        pairs: n anchors, m candidates, with cosine similarities s.
        temperature: softmax temperature tau, > 0. SimCLR used 0.5 on CIFAR-10 and 0.1 to 0.2 on
            ImageNet.
        block_size: rows of the [n, m] matrix held at a time, >= 1; None holds all of them.
        ring: pass the candidates around the devices instead of gathering them.

    Returns:
        [n] float32, 0 for an anchor without a positive.

    References:
        Chen et al., A Simple Framework for Contrastive Learning of Visual Representations, 2020,
        eq. 1.

    Checked against: lightly (``NTXentLoss``), leftthomas/SimCLR, SupContrast without labels.
    """
    sums = row_sums(pairs, temperature, block_size=block_size, ring=ring)
    return jnp.where(sums.has_positive, sums.all - sums.mean_positive, 0)


objective = stateless(nt_xent_loss, ranges=RANGES, takes_queue=takes_queue)
