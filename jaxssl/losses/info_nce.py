"""InfoNCE between two towers: MoCo-v3's scaled form, MoCo-v2's through a queue in the pairs."""

from jax import Array
from jax import numpy as jnp

from jaxssl.losses._row_sums import row_sums
from jaxssl.losses.objective import Number, require_positive, stateless
from jaxssl.losses.pairs import Pairs

PRESETS = {
    "moco_v3_vit": {"temperature": 0.2},
    "moco_v3_resnet": {"temperature": 1.0},
    "moco_v2": {"temperature": 0.2, "scale_by_temperature": False},
}


def info_nce_loss(
    pairs: Pairs,
    *,
    temperature: Number = 0.2,
    scale_by_temperature: bool = True,
    block_size: int | None = None,
    ring: bool = False,
) -> Array:
    r"""Cross-entropy of picking the key among all candidates, times 2 tau.

    .. math:: L_i = -2 \tau \log \frac{e^{s_{i+}/\tau}}{\sum_j e^{s_{ij}/\tau}}

    Args:
        pairs: n queries, m keys, from `pair_towers`. MoCo-v2 takes its negatives from the queue
            alone: ``pair_towers(q, k, queue=queue, batch_negatives=False)``. MoCo-v3 adds up two
            directions, (q1, k2) and (q2, k1).
        temperature: tau, > 0; MoCo-v3 used 0.2 for ViT and 1.0 for ResNet-50.
        scale_by_temperature: multiply by 2 tau, as MoCo-v3; False is MoCo-v2's plain form.
        block_size: rows of the [n, m] matrix that are held at a time; None holds all of them.
        ring: never gather the candidates, let them travel around the devices.

    Returns:
        [n] float32; 0 for an anchor without a positive.

    References:
        Chen, Xie and He, An Empirical Study of Training Self-Supervised Vision Transformers, 2021,
        eq. 1 and algorithm 1. He et al., Momentum Contrast, 2020, eq. 1.
    """
    require_positive(temperature=temperature)
    rows = row_sums(pairs, temperature, block_size=block_size, ring=ring)
    loss = jnp.where(rows.count > 0, rows.all - rows.mean_positive, 0)
    return loss * (2 * temperature) if scale_by_temperature else loss


objective = stateless(info_nce_loss, takes_queue=lambda hyper: not hyper["ring"])
