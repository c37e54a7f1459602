"""TCL: SupCon with gradients tuned by k1 for hard positives and k2 for hard negatives."""

from functools import wraps
from typing import Any

from jax import Array, lax
from jax import numpy as jnp

from jaxssl.losses._row_sums import row_sums, takes_queue
from jaxssl.losses.objective import Metrics, Scalar, check, mean_over_anchors, stateless
from jaxssl.losses.pairs import Pairs, cosine, mean_where, negatives, positives

# These are the paper's settings. The paper does not state its self-supervised temperature.
PRESETS = {
    "supervised_cifar10": {"temperature": 0.1, "k1": 5000.0, "k2": 1.0},
    "supervised_cifar100": {"temperature": 0.1, "k1": 4000.0, "k2": 1.0},
    "self_supervised": {"temperature": 0.2, "k1": 1.0, "k2": 1.5},
}
RANGES = {"temperature": "> 0", "k1": ">= 0", "k2": ">= 0", "block_size": "> 0"}


def tcl_loss(
    pairs: Pairs,
    *,
    temperature: Scalar = 0.2,
    k1: Scalar = 1.0,
    k2: Scalar = 1.5,
    block_size: int | None = None,
    ring: bool = False,
) -> Array:
    r"""Compute TCL: SupCon with gradients scaled by k1 for positives and k2 for negatives.

    .. math:: L_i &= -\frac{1}{|P_i|} \sum_{p \in P_i} \log \frac{e^{s_{ip}/\tau}}{D_i} \\
              D_i &= \sum_{p \in P_i} e^{s_{ip}/\tau} + k_1 \sum_{p \in P_i} e^{-s_{ip}}
                     + k_2 \sum_{n \in N_i} e^{s_{in}/\tau}

    The middle term has no temperature. (k1, k2) = (0, 1) is SupCon.

    Args:
        pairs: n anchors, m candidates, with cosine similarities s. The paper uses labels, or three
            views.
        temperature: softmax temperature tau, > 0.
        k1: strength of the gradient of hard positives, >= 0. The paper uses >= 1. With
            labels it depends on the batch: 4000 to 7500 for 16 to 512 images (32 to 1024 views).
            Without, 1.
        k2: strength of the gradient of hard negatives, >= 0. The paper uses >= 1.
        block_size: rows of the [n, m] matrix held at a time, >= 1; None holds all of them.
        ring: pass the candidates around the devices instead of gathering them.

    Objective:
        gradients: report the means of `tcl_gradients` as metrics; it holds an [n, m] matrix.

    Returns:
        [n] float32, 0 for an anchor without a positive.

    References:
        Animesh and Chandraker, Tuned Contrastive Learning, 2023, eq. 4.2 and 4.3.

    Differs from the released code: anchors without a positive are left out of the mean. In the
    released code they make the loss NaN.

    Checked against: the authors' ``loss/tcl.py``, two views, with labels and without.
    """
    sums = row_sums(pairs, temperature, block_size=block_size, ring=ring, repulsion=True)
    # The log of the denominator D is computed with its largest exponent subtracted. Terms of weight
    # 0 do not count for it. The logs of k1 and k2 are avoided, because both may be 0.
    shift = jnp.maximum(sums.positive, jnp.where(k2 > 0, sums.negative, sums.positive))
    shift = jnp.maximum(shift, jnp.where(k1 > 0, 0, shift))

    def exponential(x: Array) -> Array:
        return jnp.exp(jnp.where(x > shift, 0, x - shift))  # x > shift only if its weight is 0.

    total = (
        exponential(sums.positive)
        + k1 * sums.repulsion * exponential(jnp.zeros_like(shift))
        + k2 * exponential(sums.negative)
    )
    log_total = shift + jnp.log(jnp.where(sums.has_positive, total, 1))
    return jnp.where(sums.has_positive, log_total - sums.mean_positive, 0)


def tcl_gradients(
    pairs: Pairs, *, temperature: Scalar = 0.2, k1: Scalar = 1.0, k2: Scalar = 1.5
) -> tuple[Array, Array]:
    r"""Compute how strongly each anchor's loss attracts its positives and repels its negatives.

    .. math:: \frac{\partial L_i}{\partial z_i} &= \frac{1}{\tau} \Big(
              \sum_p (P_{ip} - X_{ip} - Y_{ip}) z_p + \sum_n P_{in} z_n \Big) \\
              P_{ip} &= \frac{e^{s_{ip}/\tau}}{D_i}, \quad X_{ip} = \frac{1}{|P_i|}, \quad
              Y_{ip} = \frac{\tau k_1 e^{-s_{ip}}}{D_i}, \quad
              P_{in} = \frac{k_2 e^{s_{in}/\tau}}{D_i}

    Args:
        pairs: n anchors, m candidates.
        temperature: softmax temperature tau, > 0.
        k1: >= 0. (k1, k2) = (0, 1) is SupCon.
        k2: >= 0.

    Returns:
        [n] mean of |P - X - Y| / tau over the positives, and [n] mean of P / tau over the
        negatives, float32. Both are 0 for an anchor without a positive. No gradient flows.

    References:
        Animesh and Chandraker, Tuned Contrastive Learning, 2023, lemmas 1 and 2. Figures 5.5, 5.7
        and 5.8 show the means over a batch.
    """
    check(RANGES, temperature=temperature, k1=k1, k2=k2)
    s, pos, neg = lax.stop_gradient(cosine(pairs)), positives(pairs), negatives(pairs)
    count = jnp.maximum(jnp.sum(pos, axis=1, keepdims=True, dtype=s.dtype), 1)
    # All exponentials are divided by e^shift, the largest exponential of nonzero weight.
    largest = jnp.max(jnp.where(pos | (neg & (k2 > 0)), s, -1), axis=1) / temperature
    shift = jnp.maximum(largest, jnp.where(k1 > 0, 0, largest))[:, None]
    exponential = jnp.exp(jnp.minimum(s / temperature - shift, 0))
    repulsion = k1 * jnp.exp(jnp.where(k1 > 0, -s - shift, 0))
    terms = jnp.where(pos, exponential + repulsion, 0) + jnp.where(neg, k2 * exponential, 0)
    total = jnp.maximum(jnp.sum(terms, axis=1), jnp.finfo(s.dtype).tiny)[:, None]
    pull = jnp.abs((exponential - temperature * repulsion) / total - 1 / count) / temperature
    push = k2 * exponential / total / temperature
    has_positive = jnp.any(pos, axis=1)
    pull, push = mean_where(pull, pos), mean_where(push, neg)
    return jnp.where(has_positive, pull, 0), jnp.where(has_positive, push, 0)


@wraps(tcl_loss)
def _with_metrics(pairs: Pairs, *, gradients: bool, **hyper: Any) -> tuple[Array, Metrics]:
    """Return `tcl_loss` and, as metrics, the mean strengths of attraction and repulsion."""
    loss = tcl_loss(pairs, **hyper)
    if not gradients:
        return loss, {}
    pull, push = tcl_gradients(pairs, **{name: hyper[name] for name in ("temperature", "k1", "k2")})
    return loss, {
        "positive_gradient": mean_over_anchors(pull, pairs)[0],
        "negative_gradient": mean_over_anchors(push, pairs)[0],
    }


objective = stateless(
    _with_metrics, ranges=RANGES, has_aux=True, extra={"gradients": False}, takes_queue=takes_queue
)
