"""DCLW: DCL that weighs hard positives more."""

import jax
from jax import Array, lax
from jax import numpy as jnp

from jaxssl.losses._row_sums import or_zero, row_sums
from jaxssl.losses.objective import Number, require_positive, stateless
from jaxssl.losses.pairs import Pairs, by_view, everyone


def dclw_loss(
    pairs: Pairs,
    *,
    temperature: Number = 0.1,
    sigma: Number = 0.5,
    stop_weight_gradient: bool = True,
    block_size: int | None = None,
    ring: bool = False,
) -> Array:
    r"""DCL whose positive term is weighted by how far the positive pair is apart.

    .. math:: L_i &= -w_i p_i / \tau + \log \sum_{n \in N_i} e^{s_{in}/\tau} \\
              w_i &= 2 - B \, \mathrm{softmax}_i(p_i / \sigma)

    where p is the mean similarity of an anchor's positives and the softmax is over the B anchors
    of its view, on all devices.

    Args:
        pairs: n anchors, m candidates; s is their cosine similarity.
        temperature: tau, > 0.
        sigma: of the von Mises-Fisher weight, > 0.
        stop_weight_gradient: whether the weights are constants, as in lightly; raminnakhli's code
            lets the gradient through.
        block_size: rows of the [n, m] matrix that are held at a time; None holds all of them.
        ring: never gather the candidates, let them travel around the devices.

    Returns:
        [n] float32; 0 for an anchor without a positive. Without a negative the sum is left out.

    References:
        Yeh et al., Decoupled Contrastive Learning, 2022, eq. 7 and section 3.2.
    """
    require_positive(temperature=temperature, sigma=sigma)
    rows = row_sums(pairs, temperature, block_size=block_size, ring=ring)
    p = rows.mean_positive * (temperature / sigma)
    # An anchor without a positive takes no part in the softmax.
    nothing = float(jnp.finfo(p.dtype).min) / 4
    p = jnp.where(rows.count > 0, p, nothing)
    p = lax.stop_gradient(p) if stop_weight_gradient else p
    all_p = everyone(pairs, p)
    batch = jnp.sum(all_p > nothing / 2, axis=1, dtype=p.dtype)
    log_share = by_view(pairs, p) - jax.nn.logsumexp(all_p, axis=1, keepdims=True)
    weight = 2 - batch[:, None] * jnp.exp(log_share)
    loss = or_zero(rows.negative) - weight.reshape(-1) * rows.mean_positive
    return jnp.where(rows.count > 0, loss, 0)


objective = stateless(dclw_loss, takes_queue=lambda hyper: not hyper["ring"])
