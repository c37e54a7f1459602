"""SwAV: predict the other view's prototype assignment."""

import jax
from jax import Array, lax
from jax import numpy as jnp

from jaxssl import collectives
from jaxssl.losses.objective import (
    Metrics,
    Number,
    Objective,
    at_step,
    mean_over_anchors,
    require_positive,
)
from jaxssl.losses.pairs import Pairs, dot, partners, unit


def swav_loss(
    pairs: Pairs,
    prototypes: Array,
    *,
    temperature: Number = 0.1,
    epsilon: Number = 0.05,
    num_iters: int = 3,
) -> Array:
    r"""Cross-entropy between an anchor's prototype probabilities and its partner's code.

    .. math:: L_i = -\sum_k q_{i+,k} \log
              \frac{e^{z_i \cdot c_k / \tau}}{\sum_{k'} e^{z_i \cdot c_{k'} / \tau}}

    The codes q are constants from `sinkhorn`, which gives every prototype an equal share of the
    global batch. Of V views, the partners are the V - 1 others.

    Args:
        pairs: from `pair_views` of V >= 2 views, or `pair_towers`.
        prototypes: [K, d], trained beside the network; normalised here.
        temperature: tau, > 0.
        epsilon: of Sinkhorn's entropy, > 0.
        num_iters: of Sinkhorn's algorithm, >= 1.

    Returns:
        [n] float32.

    Raises:
        ValueError: if there is a single view, or the prototypes have another dimension.

    References:
        Caron et al., Unsupervised Learning of Visual Features by Contrasting Cluster Assignments,
        2020, eq. 1, 2 and 5.
    """
    require_positive(temperature=temperature, epsilon=epsilon, num_iters=num_iters)
    d = pairs.anchor.shape[1]
    if prototypes.ndim != 2 or prototypes.shape[1] != d:
        raise ValueError(f"prototypes must have shape [K, {d}], got {prototypes.shape}")
    centres = unit(prototypes)
    log_p = jax.nn.log_softmax(dot(unit(pairs.anchor), centres) / temperature, axis=1)
    codes = []
    for partner in partners(pairs, "swav"):
        views = partner.reshape(max(pairs.num_views, 1), -1, d)
        scores = (dot(unit(view), centres) for view in views)
        codes += [
            jnp.concatenate(
                [
                    sinkhorn(s, epsilon=epsilon, num_iters=num_iters, axis_name=pairs.axis_name)
                    for s in scores
                ]
            )
        ]
    return -jnp.sum(sum(codes) / len(codes) * log_p, axis=1)


def sinkhorn(
    scores: Array,
    *,
    epsilon: Number = 0.05,
    num_iters: int = 3,
    axis_name: str | None = None,
) -> Array:
    """Soft assignments of a batch to prototypes that use every prototype equally.

    Args:
        scores: [b, K] similarities of this device's rows.
        epsilon: the smaller, the harder the assignments; > 0.
        num_iters: alternations of the two normalisations, >= 1.
        axis_name: the mapped axis whose devices share the batch, or None.

    Returns:
        [b, K] float32, rows sum to 1; a constant.
    """
    log_q = lax.stop_gradient(scores) / epsilon
    for _ in range(num_iters):
        column = jax.nn.logsumexp(log_q, axis=0)
        column = jax.nn.logsumexp(collectives.gather(column[None, :], axis_name), axis=0)
        log_q = log_q - column[None, :]
        log_q = log_q - jax.nn.logsumexp(log_q, axis=1, keepdims=True)
    return jnp.exp(log_q)


def objective(
    *,
    num_prototypes: int = 3000,
    temperature: Number = 0.1,
    epsilon: Number = 0.05,
    num_iters: int = 3,
) -> Objective:
    """SwAV with its trained prototypes: ``num_prototypes`` unit vectors, at random at first."""
    require_positive(num_prototypes=num_prototypes)
    fixed = {"temperature": temperature, "epsilon": epsilon, "num_iters": num_iters}

    def init(key: Array, num_examples: int, dim: int) -> tuple[dict[str, Array], tuple]:
        del num_examples
        return {"prototypes": unit(jax.random.normal(key, (num_prototypes, dim)))}, ()

    def loss(pairs, params, memory, *, step, key) -> tuple[Array, tuple, Metrics]:
        del key
        per_anchor = swav_loss(pairs, params["prototypes"], **at_step(fixed, step))
        value, alone = mean_over_anchors(per_anchor, pairs)
        return value, memory, {"anchors_without_positive": alone}

    return Objective(init, loss, takes_labels=False, takes_queue=False)
