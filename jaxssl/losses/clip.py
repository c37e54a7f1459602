"""CLIP: symmetric InfoNCE between two towers, with a learned scale."""

import math

from jax import Array
from jax import numpy as jnp

from jaxssl.losses.nt_xent import nt_xent_loss
from jaxssl.losses.objective import Number, require_positive, stateless
from jaxssl.losses.pairs import Pairs, swap

LOG_SCALE = math.log(1 / 0.07)


def clip_loss(
    pairs: Pairs,
    logit_scale: Number = LOG_SCALE,
    *,
    max_scale: Number = 100.0,
    block_size: int | None = None,
    ring: bool = False,
) -> Array:
    r"""Cross-entropy of picking the caption for an image and the image for a caption.

    .. math:: L_i = -\frac12 \log \frac{e^{t s_{ii}}}{\sum_j e^{t s_{ij}}}
              -\frac12 \log \frac{e^{t s_{ii}}}{\sum_j e^{t s_{ji}}},
              \quad t = \min(e^{scale}, t_{max})

    Args:
        pairs: n images, m captions, from `pair_towers` without a queue.
        logit_scale: log of t; trained beside the network, from 1 / 0.07.
        max_scale: t_max, > 0.
        block_size: rows of the [n, m] matrix that are held at a time; None holds all of them.
        ring: never gather the candidates, let them travel around the devices.

    Returns:
        [n] float32; 0 for an anchor without a positive.

    Raises:
        ValueError: if the pairs have a queue.

    References:
        Radford et al., Learning Transferable Visual Models From Natural Language Supervision,
        2021, figure 3.
    """
    require_positive(max_scale=max_scale)
    temperature = jnp.exp(-jnp.minimum(logit_scale, jnp.log(max_scale)))
    each = (
        nt_xent_loss(way, temperature=temperature, block_size=block_size, ring=ring)
        for way in (pairs, swap(pairs))
    )
    return sum(each) / 2


objective = stateless(clip_loss, learn=("logit_scale",), takes_queue=False)
