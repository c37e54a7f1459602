"""DCLW: the decoupled contrastive loss (DCL) with larger weights for hard positives."""

import jax
from jax import Array, lax
from jax import numpy as jnp

from jaxssl.losses._row_sums import row_sums, takes_queue
from jaxssl.losses.objective import Scalar, stateless
from jaxssl.losses.pairs import Pairs, by_view, gather_by_view, log_zero, zero_if_empty

RANGES = {"temperature": "> 0", "sigma": "> 0 or inf", "block_size": "> 0"}


def dclw_loss(
    pairs: Pairs,
    *,
    temperature: Scalar = 0.1,
    sigma: Scalar = 0.5,
    stop_weight_gradient: bool = True,
    block_size: int | None = None,
    ring: bool = False,
) -> Array:
    r"""Compute DCL with each positive term weighted by the dissimilarity of the positive pair.

    .. math:: L_i &= -w_i p_i / \tau + \log \sum_{n \in N_i} e^{s_{in}/\tau} \\
              w_i &= 2 - B \, \mathrm{softmax}_i(p_i / \sigma)

    where p is the mean similarity of an anchor's positives, and the softmax is over the B anchors
    of its view on all devices. A weight may be negative.

    Args:
        pairs: n anchors, m candidates, with cosine similarities s.
        temperature: softmax temperature tau, > 0.
        sigma: bandwidth of the von Mises-Fisher weight, > 0. With inf all weights are 1, as in DCL.
        stop_weight_gradient: treat the weights as constants, as lightly does. raminnakhli's code
            differentiates them.
        block_size: rows of the [n, m] matrix held at a time, >= 1; None holds all of them.
        ring: pass the candidates around the devices instead of gathering them.

    Returns:
        [n] float32, 0 for an anchor without a positive. Without negatives the log is left out.

    References:
        Yeh et al., Decoupled Contrastive Learning, 2022, eq. 7 and section 3.2.

    Checked against: lightly (``DCLWLoss``), raminnakhli/Decoupled-Contrastive-Learning.
    """
    sums = row_sums(pairs, temperature, block_size=block_size, ring=ring)
    positive = sums.mean_positive
    # Anchors without a positive get log 0 here, so that the softmax over anchors ignores them.
    excluded = log_zero(positive.dtype)
    p = jnp.where(sums.has_positive, positive * (temperature / sigma), excluded)
    p = lax.stop_gradient(p) if stop_weight_gradient else p
    all_p = gather_by_view(pairs, p)
    batch = jnp.sum(all_p > excluded / 2, axis=1, dtype=p.dtype)
    log_softmax = by_view(pairs, p) - jax.nn.logsumexp(all_p, axis=1, keepdims=True)
    weight = 2 - batch[:, None] * jnp.exp(log_softmax)
    loss = zero_if_empty(sums.negative) - weight.reshape(-1) * positive
    return jnp.where(sums.has_positive, loss, 0)


objective = stateless(dclw_loss, ranges=RANGES, takes_queue=takes_queue)
