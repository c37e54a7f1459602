"""TCL: the tuned contrastive loss."""

from jax import Array, lax
from jax import numpy as jnp

from jaxssl.losses._row_sums import row_sums
from jaxssl.losses.objective import (
    Metrics,
    Number,
    mean_over_anchors,
    require_not_negative,
    require_positive,
    stateless,
)
from jaxssl.losses.pairs import Pairs, cosine, negatives, positives

# The paper's settings; its self-supervised temperature is unstated.
PRESETS = {
    "supervised_cifar10": {"temperature": 0.1, "k1": 5000.0, "k2": 1.0},
    "supervised_cifar100": {"temperature": 0.1, "k1": 4000.0, "k2": 1.0},
    "self_supervised": {"temperature": 0.2, "k1": 1.0, "k2": 1.5},
}


def tcl_loss(
    pairs: Pairs,
    *,
    temperature: Number = 0.2,
    k1: Number = 1.0,
    k2: Number = 1.5,
    block_size: int | None = None,
    ring: bool = False,
) -> Array:
    r"""SupCon whose gradient is tuned: k1 for the positives, k2 for the negatives.

    .. math:: L_i &= -\frac{1}{|P_i|} \sum_{p \in P_i} \log \frac{e^{s_{ip}/\tau}}{D_i} \\
              D_i &= \sum_{p \in P_i} e^{s_{ip}/\tau} + k_1 \sum_{p \in P_i} e^{-s_{ip}}
                     + k_2 \sum_{n \in N_i} e^{s_{in}/\tau}

    The middle term has no temperature. (k1, k2) = (0, 1) is SupCon.

    Args:
        pairs: n anchors, m candidates; s is their cosine similarity. The paper uses labels, or
            three views.
        temperature: tau, > 0.
        k1: >= 0, the paper's range is >= 1. Thousands with labels, 1 without.
        k2: >= 0, the paper's range is >= 1; its gradient on negatives grows with k2.
        block_size: rows of the [n, m] matrix that are held at a time; None holds all of them.
        ring: never gather the candidates, let them travel around the devices.

    Returns:
        [n] float32; 0 for an anchor without a positive.

    References:
        Animesh and Chandraker, Tuned Contrastive Learning, 2023, eq. 4.2 and 4.3.

    Differs from the released code: an anchor without a positive is left out of the mean; there the
    loss is NaN.
    """
    require_positive(temperature=temperature)
    require_not_negative(k1=k1, k2=k2)
    rows = row_sums(pairs, temperature, block_size=block_size, ring=ring, repulsion=True)
    # log D with the largest exponent taken out; there is no log of k1 or k2, which may be 0.
    shift = jnp.maximum(jnp.maximum(rows.positive, rows.negative), 0)
    total = (
        jnp.exp(rows.positive - shift)
        + k1 * rows.repulsion * jnp.exp(-shift)
        + k2 * jnp.exp(rows.negative - shift)
    )
    alone = rows.count == 0
    log_total = shift + jnp.log(jnp.where(alone, 1, total))
    return jnp.where(alone, 0, log_total - rows.mean_positive)


def tcl_gradients(
    pairs: Pairs, *, temperature: Number = 0.2, k1: Number = 1.0, k2: Number = 1.5
) -> tuple[Array, Array]:
    r"""How strongly an anchor's loss pulls on its positives and pushes its negatives.

    .. math:: \frac{\partial L_i}{\partial z_i} &= \frac{1}{\tau} \Big(
              \sum_p (P_{ip} - X_{ip} - Y_{ip}) z_p + \sum_n P_{in} z_n \Big) \\
              P_{ip} &= \frac{e^{s_{ip}/\tau}}{D_i}, \quad X_{ip} = \frac{1}{|P_i|}, \quad
              Y_{ip} = \frac{\tau k_1 e^{-s_{ip}}}{D_i}, \quad
              P_{in} = \frac{k_2 e^{s_{in}/\tau}}{D_i}

    Args:
        pairs: n anchors, m candidates.
        temperature: tau, > 0.
        k1: >= 0; (k1, k2) = (0, 1) is SupCon.
        k2: >= 0.

    Returns:
        [n] the mean of |P - X - Y| / tau over the positives, and [n] the mean of P / tau over the
        negatives, float32; 0 for an anchor without a positive. No gradient flows.

    References:
        Animesh and Chandraker, Tuned Contrastive Learning, 2023, lemmas 1 and 2, whose figures 5.5,
        5.7 and 5.8 have the means over a batch.
    """
    require_positive(temperature=temperature)
    require_not_negative(k1=k1, k2=k2)
    s, pos, neg = lax.stop_gradient(cosine(pairs)), positives(pairs), negatives(pairs)
    count, away = (jnp.maximum(jnp.sum(x, axis=1, dtype=s.dtype), 1) for x in (pos, neg))
    # All terms over e^shift, so that none overflows.
    shift = jnp.maximum(jnp.max(jnp.where(pos | neg, s, -1), axis=1) / temperature, 0)[:, None]
    share = jnp.exp(s / temperature - shift)
    repulsion = k1 * jnp.exp(-s - shift)
    terms = jnp.where(pos, share + repulsion, 0) + jnp.where(neg, k2 * share, 0)
    total = jnp.maximum(jnp.sum(terms, axis=1), jnp.finfo(s.dtype).tiny)[:, None]
    pull = jnp.abs((share - temperature * repulsion) / total - 1 / count[:, None]) / temperature
    push = k2 * share / total / temperature
    some = jnp.any(pos, axis=1)
    of_positives = jnp.sum(jnp.where(pos, pull, 0), axis=1) / count
    of_negatives = jnp.sum(jnp.where(neg, push, 0), axis=1) / away
    return jnp.where(some, of_positives, 0), jnp.where(some, of_negatives, 0)


def _with_metrics(
    pairs: Pairs,
    *,
    temperature: Number = 0.2,
    k1: Number = 1.0,
    k2: Number = 1.5,
    block_size: int | None = None,
    ring: bool = False,
    gradients: bool = False,
) -> tuple[Array, Metrics]:
    """`tcl_loss`; with ``gradients`` the mean of `tcl_gradients`, which holds an [n, m] matrix."""
    loss = tcl_loss(pairs, temperature=temperature, k1=k1, k2=k2, block_size=block_size, ring=ring)
    if not gradients:
        return loss, {}
    found = tcl_gradients(pairs, temperature=temperature, k1=k1, k2=k2)
    names = ("positive_gradient", "negative_gradient")
    return loss, {n: mean_over_anchors(g, pairs)[0] for n, g in zip(names, found, strict=True)}


objective = stateless(_with_metrics, has_aux=True, takes_queue=lambda hyper: not hyper["ring"])
