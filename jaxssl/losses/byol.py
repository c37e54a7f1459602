"""BYOL: predict the embedding of the other view, without negatives."""

from jax import Array, lax
from jax import numpy as jnp

from jaxssl.losses.objective import stateless
from jaxssl.losses.pairs import Pairs, partners, unit


def byol_loss(pairs: Pairs) -> Array:
    r"""Compute BYOL's loss: the squared distance of the normalised prediction and target embedding.

    .. math:: L_i = 2 - 2 \cos\big(q_i, \mathrm{stop}(k_i)\big)

    Args:
        pairs: n predictions and their targets, from `pair_towers` of the predictor's output and the
            momentum network's output. With V views, the targets are the V - 1 others.

    Returns:
        [n] float32, in [0, 4].

    Raises:
        ValueError: if there is only one view.

    References:
        Grill et al., Bootstrap Your Own Latent, 2020, eq. 2.

    Checked against: solo-learn.
    """
    return 2 + 2 * negative_cosine(pairs, "byol")


def negative_cosine(pairs: Pairs, name: str) -> Array:
    """Return -cos(anchor, stop_gradient(partner)) averaged over each anchor's partners, [n]."""
    targets = lax.stop_gradient(unit(partners(pairs, name)))
    return -jnp.mean(jnp.sum(unit(pairs.anchor)[None] * targets, axis=2), axis=0)


objective = stateless(
    byol_loss, needs_other_keys=True, needs_predictor=True, takes_labels=False, takes_queue=False
)
