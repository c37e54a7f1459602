"""GraphCL's loss: DCL in one direction, from graphs to their augmented copies."""

from jax import Array

from jaxssl.losses._row_sums import takes_queue
from jaxssl.losses.dcl import RANGES, dcl_loss
from jaxssl.losses.objective import Scalar, stateless
from jaxssl.losses.pairs import Pairs


def graphcl_loss(
    pairs: Pairs, *, temperature: Scalar = 0.2, block_size: int | None = None, ring: bool = False
) -> Array:
    r"""Compute -log(e^positive / sum of e^negatives) from each query graph to the key graphs.

    .. math:: L_i = -\log \frac{e^{s_{i+}/\tau}}{\sum_{n \ne i} e^{s_{in}/\tau}}

    Args:
        pairs: n graphs, m augmented graphs, from `pair_towers`.
        temperature: softmax temperature tau, > 0.
        block_size: rows of the [n, m] matrix held at a time, >= 1; None holds all of them.
        ring: pass the candidates around the devices instead of gathering them.

    Returns:
        [n] float32, 0 for an anchor without a positive. Without negatives the log is left out.

    References:
        You et al., Graph Contrastive Learning with Augmentations, 2020, eq. 3.

    Checked against: Shen-Lab/GraphCL, whose anchors are graphs without augmentation.
    """
    return dcl_loss(pairs, temperature=temperature, block_size=block_size, ring=ring)


objective = stateless(graphcl_loss, ranges=RANGES, takes_queue=takes_queue)
