"""InfoNCE between queries and keys: MoCo-v3's scaled form, or MoCo-v2's with a queue of keys."""

from jax import Array

from jaxssl.losses._row_sums import takes_queue
from jaxssl.losses.nt_xent import RANGES, nt_xent_loss
from jaxssl.losses.objective import Scalar, stateless
from jaxssl.losses.pairs import Pairs

PRESETS = {
    "moco_v3_vit": {"temperature": 0.2},
    "moco_v3_resnet": {"temperature": 1.0},
    "moco_v2": {"temperature": 0.2, "scale_by_temperature": False},
}


def info_nce_loss(
    pairs: Pairs,
    *,
    temperature: Scalar = 0.2,
    scale_by_temperature: bool = True,
    block_size: int | None = None,
    ring: bool = False,
) -> Array:
    r"""Compute InfoNCE: the cross-entropy of a query's key among all keys, times 2 * temperature.

    .. math:: L_i = -2 \tau \log \frac{e^{s_{i+}/\tau}}{\sum_j e^{s_{ij}/\tau}}

    Args:
        pairs: n queries, m keys, from `pair_towers`. MoCo-v2 takes its negatives only from the
            queue: ``pair_towers(q, k, queue=queue, batch_negatives=False)``. MoCo-v3 adds two
            directions, (q1, k2) and (q2, k1).
        temperature: softmax temperature tau, > 0. MoCo-v3 used 0.2 for ViT and 1.0 for ResNet-50.
        scale_by_temperature: multiply by 2 tau, as in MoCo-v3. False gives MoCo-v2's loss.
        block_size: rows of the [n, m] matrix held at a time, >= 1; None holds all of them.
        ring: pass the candidates around the devices instead of gathering them.

    Returns:
        [n] float32, 0 for an anchor without a positive.

    References:
        Chen, Xie and He, An Empirical Study of Training Self-Supervised Vision Transformers, 2021,
        eq. 1 and algorithm 1. He et al., Momentum Contrast, 2020, eq. 1.

    Checked against: facebookresearch/moco-v3 in both directions; solo-learn (MoCo-v3, and
    MoCo-v2+ with a queue).
    """
    loss = nt_xent_loss(pairs, temperature=temperature, block_size=block_size, ring=ring)
    return loss * (2 * temperature) if scale_by_temperature else loss


objective = stateless(info_nce_loss, ranges=RANGES, takes_queue=takes_queue)
