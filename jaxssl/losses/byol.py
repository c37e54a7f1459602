"""BYOL: predict the other view's embedding; no negatives."""

from jax import Array, lax
from jax import numpy as jnp

from jaxssl.losses.objective import stateless
from jaxssl.losses.pairs import Pairs, partners, unit


def byol_loss(pairs: Pairs) -> Array:
    r"""Squared distance of unit vectors: the prediction's and the target's.

    .. math:: L_i = 2 - 2 \cos\big(q_i, \mathrm{stop}(k_i)\big)

    Args:
        pairs: n predictions and their targets: `pair_towers` of the predictor's output and the
            momentum network's. Of V views, the targets are the V - 1 others.

    Returns:
        [n] float32, in [0, 4].

    Raises:
        ValueError: if there is a single view.

    References:
        Grill et al., Bootstrap Your Own Latent, 2020, eq. 2.
    """
    return 2 + 2 * negative_cosine(pairs, "byol")


def negative_cosine(pairs: Pairs, name: str) -> Array:
    """[n] mean of -cos(anchor, stop(partner)) over an anchor's partners."""
    u = unit(pairs.anchor)
    targets = [lax.stop_gradient(unit(p)) for p in partners(pairs, name)]
    return -sum(jnp.sum(u * v, axis=1) for v in targets) / len(targets)


objective = stateless(
    byol_loss,
    needs_other_keys=True,
    needs_predictor=True,
    takes_labels=False,
    takes_queue=False,
)
