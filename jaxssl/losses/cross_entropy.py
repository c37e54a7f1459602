"""Supervised cross-entropy loss, the baseline with class labels."""

import jax
from jax import Array
from jax import numpy as jnp

from jaxssl.losses.objective import Number, Objective, Scalar, at_step, check
from jaxssl.losses.pairs import Pairs, dot, promote

RANGES = {"num_classes": "> 0", "label_smoothing": "in [0, 1]"}


def cross_entropy_loss(
    pairs: Pairs, weights: Array, bias: Array, *, label_smoothing: Scalar = 0.0
) -> Array:
    r"""Compute the negative log softmax probability of each anchor's class.

    .. math:: L_i = -\sum_k y_{ik} \log \mathrm{softmax}_k(w_k \cdot z_i + b_k),
              \quad y_{ik} = (1 - \epsilon) [k = y_i] + \epsilon / K

    Args:
        pairs: labelled anchors, from `pair_views` of V >= 1 views with labels < K. Features are not
            normalised. Candidates are not used.
        weights: w, [K, d], trained together with the network.
        bias: b, [K].
        label_smoothing: epsilon, in [0, 1].

    Returns:
        [n] float32. NaN for labels < 0 or >= K.

    Raises:
        ValueError: without labels, or if the weights have the wrong shape.

    References:
        Szegedy et al., Rethinking the Inception Architecture, 2015, section 7, for the smoothing.
    """
    if not pairs.labelled:
        raise ValueError(
            "the loss cross_entropy needs class labels, got none; set method.labels=True"
        )
    d = pairs.anchor.shape[1]
    if weights.ndim != 2 or weights.shape[1] != d or bias.shape != weights.shape[:1]:
        raise ValueError(
            f"weights and bias must have shapes [K, {d}] and [K] for K classes, "
            f"got {weights.shape} and {bias.shape}"
        )
    num_classes = weights.shape[0]
    log_p = jax.nn.log_softmax(dot(promote(pairs.anchor), weights) + bias[None, :], axis=1)
    # Label -1 (none) would select the last class, an index out of range selects no class.
    label = jnp.where(pairs.anchor_id < 0, num_classes, pairs.anchor_id)
    chosen = jnp.take_along_axis(log_p, label[:, None], axis=1, mode="fill")[:, 0]
    return -(1 - label_smoothing) * chosen - label_smoothing * jnp.sum(log_p, axis=1) / num_classes


def objective(*, num_classes: int = 10, label_smoothing: Number = 0.0) -> Objective:
    """Return cross-entropy with a trained linear classifier, and accuracy on the batch as a metric.

    Args:
        num_classes: number of classes of the data set, > 0.
        label_smoothing: share of the label spread over all classes, in [0, 1].
    """
    check(RANGES, num_classes=num_classes, label_smoothing=label_smoothing)

    def init(key, num_examples, dim):
        shapes = {"weights": (num_classes, dim), "bias": num_classes}
        return {name: jnp.zeros(shape, jnp.float32) for name, shape in shapes.items()}, ()

    def loss(pairs, params, memory, *, step, key):
        hyper = at_step({"label_smoothing": label_smoothing}, step)
        per_anchor = cross_entropy_loss(pairs, params["weights"], params["bias"], **hyper)
        logits = dot(promote(pairs.anchor), params["weights"]) + params["bias"][None, :]
        correct = (jnp.argmax(logits, axis=1) == pairs.anchor_id).astype(jnp.float32)
        return jnp.mean(per_anchor), memory, {"accuracy": 100 * jnp.mean(correct)}

    return Objective(init, loss, needs_labels=True, takes_queue=False, one_tower_only=True)
