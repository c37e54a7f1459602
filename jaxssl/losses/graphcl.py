"""GraphCL's loss: DCL from the graphs to their augmented copies."""

from jax import Array

from jaxssl.losses.dcl import dcl_loss
from jaxssl.losses.objective import Number, stateless
from jaxssl.losses.pairs import Pairs


def graphcl_loss(
    pairs: Pairs, *, temperature: Number = 0.2, block_size: int | None = None, ring: bool = False
) -> Array:
    r"""-log of the positive's share over the negatives alone, in one direction.

    .. math:: L_i = -\log \frac{e^{s_{i+}/\tau}}{\sum_{n \ne i} e^{s_{in}/\tau}}

    Args:
        pairs: n graphs, m augmented graphs, from `pair_towers`.
        temperature: tau, > 0.
        block_size: rows of the [n, m] matrix that are held at a time; None holds all of them.
        ring: never gather the candidates, let them travel around the devices.

    Returns:
        [n] float32; 0 for an anchor without a positive. Without a negative the sum is left out.

    References:
        You et al., Graph Contrastive Learning with Augmentations, 2020, eq. 3.
    """
    return dcl_loss(pairs, temperature=temperature, block_size=block_size, ring=ring)


objective = stateless(graphcl_loss, takes_queue=lambda hyper: not hyper["ring"])
