"""NT-Xent: SimCLR's loss."""

from jax import Array
from jax import numpy as jnp

from jaxssl.losses._row_sums import row_sums
from jaxssl.losses.objective import Number, require_positive, stateless
from jaxssl.losses.pairs import Pairs


def nt_xent_loss(
    pairs: Pairs, *, temperature: Number = 0.5, block_size: int | None = None, ring: bool = False
) -> Array:
    r"""-log softmax of the positives' similarity among all candidates, averaged over positives.

    .. math:: L_i = -\frac{1}{|P_i|} \sum_{p \in P_i}
              \log \frac{e^{s_{ip}/\tau}}{\sum_{j \ne i} e^{s_{ij}/\tau}}

    Args:
        pairs: n anchors, m candidates; s is their cosine similarity.
        temperature: tau, > 0. SimCLR used 0.5 on CIFAR-10 and 0.1 to 0.2 on ImageNet.
        block_size: rows of the [n, m] matrix that are held at a time; None holds all of them.
        ring: never gather the candidates, let them travel around the devices.

    Returns:
        [n] float32; 0 for an anchor without a positive.

    References:
        Chen et al., A Simple Framework for Contrastive Learning of Visual Representations, 2020,
        eq. 1.
    """
    require_positive(temperature=temperature)
    rows = row_sums(pairs, temperature, block_size=block_size, ring=ring)
    return jnp.where(rows.count > 0, rows.all - rows.mean_positive, 0)


objective = stateless(nt_xent_loss, takes_queue=lambda hyper: not hyper["ring"])
