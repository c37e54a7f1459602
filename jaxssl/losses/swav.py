"""SwAV: predict the prototype assignment (code) of the other view."""

import inspect
from dataclasses import replace
from functools import partial

import jax
from jax import Array, lax
from jax import numpy as jnp

from jaxssl import collectives
from jaxssl.losses.objective import (
    Hyper,
    Objective,
    Scalar,
    Terms,
    check,
    check_kinds,
    factory,
    make_objective,
)
from jaxssl.losses.pairs import Pairs, by_view, dot, partners, promote, require_width, unit

RANGES = {"num_prototypes": "> 0", "temperature": "> 0", "epsilon": "> 0", "num_iters": "> 0"}


def swav_loss(
    pairs: Pairs,
    prototypes: Array,
    *,
    temperature: Scalar = 0.1,
    epsilon: Scalar = 0.05,
    num_iters: int = 3,
) -> Array:
    r"""Compute the cross-entropy between the partner's code and the anchor's softmax.

    .. math:: L_i = -\sum_k q_{i+,k} \log
              \frac{e^{z_i \cdot c_k / \tau}}{\sum_{k'} e^{z_i \cdot c_{k'} / \tau}}

    The codes q are constants from `sinkhorn`, which spreads the global batch about equally over the
    prototypes. With V views, q is the mean code of the V - 1 others.

    Args:
        pairs: from `pair_views` of V >= 2 views, or `pair_towers`.
        prototypes: [K, d], trained together with the network. They are L2-normalised here.
        temperature: softmax temperature tau, > 0.
        epsilon: entropy regularisation of Sinkhorn's algorithm, > 0.
        num_iters: number of times that Sinkhorn's algorithm normalises columns, then rows, >= 1.

    Objective:
        num_prototypes: number K of prototypes, > 0. They are trained, from random unit vectors.

    Returns:
        [n] float32.

    Raises:
        ValueError: if there is only one view, or the prototypes have the wrong shape.

    References:
        Caron et al., Unsupervised Learning of Visual Features by Contrasting Cluster Assignments,
        2020, eq. 1, 2 and 5.
    """
    require_width(prototypes, pairs.anchor.shape[1], "prototypes")
    prototypes = unit(prototypes)
    scores = dot(unit(pairs.anchor), prototypes)
    log_p = jax.nn.log_softmax(scores / temperature, axis=1)
    keys = scores if pairs.num_views else dot(unit(pairs.partner), prototypes)
    assign = partial(sinkhorn, epsilon=epsilon, num_iters=num_iters, axis_name=pairs.axis_name)
    codes = jnp.concatenate([assign(view) for view in by_view(pairs, keys)])
    targets = partners(replace(pairs, anchor=codes, partner=codes), "swav")
    return -jnp.sum(jnp.mean(targets, axis=0) * log_p, axis=1)


def sinkhorn(
    scores: Array, *, epsilon: Scalar = 0.05, num_iters: int = 3, axis_name: str | None = None
) -> Array:
    """Assign a batch softly to prototypes so that all prototypes are used equally (Sinkhorn).

    Args:
        scores: [b, K] similarities of this device's rows.
        epsilon: entropy regularisation, > 0. Smaller values give harder assignments.
        num_iters: number of times that columns, then rows, are normalised, >= 1.
        axis_name: mapped axis whose devices share the batch, or None.

    Returns:
        [b, K] float32 with rows that sum to 1, without gradient.

    Raises:
        ValueError: if the scores have another shape, or a number is out of range.
    """
    scores = jnp.asarray(scores)
    if scores.ndim != 2:
        raise ValueError(f"scores must have shape [b, K], got {scores.shape}")
    check_kinds(inspect.signature(sinkhorn), {"epsilon": epsilon, "num_iters": num_iters})
    check(RANGES, epsilon=epsilon, num_iters=num_iters)
    log_q = lax.stop_gradient(promote(scores) / epsilon)
    for _ in range(num_iters):
        column = jax.nn.logsumexp(log_q, axis=0)
        column = jax.nn.logsumexp(collectives.gather(column[None, :], axis_name), axis=0)
        log_q = log_q - column[None, :]
        log_q = log_q - jax.nn.logsumexp(log_q, axis=1, keepdims=True)
    return jnp.exp(log_q)


def _build(hyper: Hyper) -> Objective:
    num_prototypes = hyper.pop("num_prototypes")

    def init(key, num_examples, dim):
        return {"prototypes": unit(jax.random.normal(key, (num_prototypes, dim), jnp.float32))}, ()

    def compute(pairs, params, memory, hyper, key):
        return Terms(swav_loss(pairs, **params, **hyper), memory)

    return make_objective(compute, hyper, init, takes_labels=False, takes_queue=False)


objective = factory(swav_loss, RANGES, _build, num_prototypes=3000)
