"""CLIP's loss: symmetric InfoNCE between an image and a text encoder, with a learned scale."""

import math

from jax import Array
from jax import numpy as jnp

from jaxssl.losses.nt_xent import nt_xent_loss
from jaxssl.losses.objective import Scalar, clip_scale, constrain_scale, stateless
from jaxssl.losses.pairs import Pairs, swap

LOG_SCALE = math.log(1 / 0.07)
RANGES = {"logit_scale": "finite", "max_scale": "> 0 or inf", "block_size": "> 0"}


def clip_loss(
    pairs: Pairs,
    logit_scale: Scalar = LOG_SCALE,
    *,
    max_scale: Scalar = 100.0,
    block_size: int | None = None,
    ring: bool = False,
) -> Array:
    r"""Compute the cross-entropy of captions given images and that of images given captions.

    .. math:: L_i = -\frac12 \log \frac{e^{t s_{ii}}}{\sum_j e^{t s_{ij}}}
              -\frac12 \log \frac{e^{t s_{ii}}}{\sum_j e^{t s_{ji}}},
              \quad t = \min(e^{scale}, t_{max})

    Args:
        pairs: n images, m captions, from `pair_towers` without a queue.
        logit_scale: log of t, trained together with the network from t = 1 / 0.07. Above the log of
            t_max it has no gradient. The objective lowers it to the bound after each update, as
            CLIP's code does.
        max_scale: t_max, > 0, or inf.
        block_size: rows of the [n, m] matrix held at a time, >= 1; None holds all of them.
        ring: pass the candidates around the devices instead of gathering them.

    Returns:
        [n] float32, 0 for an anchor without a positive.

    Raises:
        ValueError: if the pairs have a queue.

    References:
        Radford et al., Learning Transferable Visual Models From Natural Language Supervision,
        2021, figure 3.
    """
    temperature = jnp.exp(-clip_scale(logit_scale, max_scale))
    hyper = {"temperature": temperature, "block_size": block_size, "ring": ring}
    return (nt_xent_loss(pairs, **hyper) + nt_xent_loss(swap(pairs), **hyper)) / 2


objective = stateless(
    clip_loss,
    learn=("logit_scale",),
    ranges=RANGES,
    takes_queue=False,
    constrain=lambda hyper: constrain_scale(hyper["max_scale"]),
)
