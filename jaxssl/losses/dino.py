"""DINO: match the student's softmax to the teacher's, which is centred and sharpened."""

from collections.abc import Callable

import jax
from jax import Array, lax
from jax import numpy as jnp

from jaxssl import collectives
from jaxssl.losses.objective import Objective, Ranges, Scalar, Terms, factory, make_objective
from jaxssl.losses.pairs import Pairs, partners, promote

RANGES = {
    "student_temperature": "> 0",
    "teacher_temperature": "> 0",
    "center_momentum": "in [0, 1]",
}


def dino_loss(
    pairs: Pairs,
    center: Array | None = None,
    *,
    student_temperature: Scalar = 0.1,
    teacher_temperature: Scalar = 0.04,
) -> Array:
    r"""Compute the cross-entropy of the student's softmax under the centred teacher's softmax.

    .. math:: L_i = -\sum_k \mathrm{softmax}_k\Big(\frac{t_i - c}{\tau_t}\Big)
              \log \mathrm{softmax}_k\Big(\frac{s_i}{\tau_s}\Big)

    Args:
        pairs: anchors are the student's outputs (K logits, not normalised) and keys the teacher's
            outputs, from `pair_towers`. With V views, the teacher's outputs are the V - 1 others.
            The teacher's outputs are constants.
        center: c, [K], a moving average of the teacher's outputs. None is 0.
        student_temperature: tau_s, > 0.
        teacher_temperature: tau_t, > 0. DINO increases it from 0.04 to 0.07 in 30 epochs.

    Objective:
        center_momentum: weight of the past in the centre, in [0, 1].

    Returns:
        [n] float32.

    Raises:
        ValueError: if there is only one view, or the centre has another shape.

    References:
        Caron et al., Emerging Properties in Self-Supervised Vision Transformers, 2021, eq. 1 to 4.
    """
    log_p = jax.nn.log_softmax(below_max(promote(pairs.anchor)) / student_temperature, axis=1)
    outputs = lax.stop_gradient(promote(partners(pairs, "dino")))
    if center is not None:
        check_center(center, outputs.shape[2])
        outputs = outputs - center[None, None, :]
    target = jnp.mean(jax.nn.softmax(below_max(outputs) / teacher_temperature, axis=2), axis=0)
    return -jnp.sum(target * log_p, axis=1)


def below_max(x: Array) -> Array:
    """Subtract the largest entry of each row, so that a softmax of huge logits stays finite.

    A compiled softmax may fuse the division by the temperature with its own subtraction of the
    largest logit. The difference is then rounded differently and may be positive.
    """
    return x - lax.stop_gradient(jnp.max(x, axis=-1, keepdims=True))


def check_center(center: Array, dim: int) -> None:
    """Raise ValueError unless the centre has the shape of one output."""
    if center.shape != (dim,):
        raise ValueError(f"center must have shape [{dim}] like one embedding, got {center.shape}")


def with_center(
    loss_fn: Callable[..., Array], ranges: Ranges, **flags: bool
) -> Callable[..., Objective]:
    r"""Return the factory of an objective that keeps the teacher's centre between steps.

    .. math:: c \leftarrow m c + (1 - m) \bar t

    where t-bar is the mean output of the keys on all devices, and m is ``center_momentum`` in
    [0, 1]. The loss of a step uses the centre before its update.

    Args:
        loss_fn: ``(pairs, center, **hyper) -> [n]``.
        ranges: valid values of the hyper-parameters.
        **flags: fields of `Objective`.
    """

    def init(key, num_examples, dim):
        return {}, jnp.zeros(dim, jnp.float32)

    def compute(pairs, params, center, hyper, key):
        momentum = hyper.pop("center_momentum")
        outputs = jnp.mean(promote(lax.stop_gradient(pairs.partner)), axis=0)
        batch_mean = collectives.mean(outputs, pairs.axis_name)
        per_anchor = loss_fn(pairs, center, **hyper)
        new = momentum * center + (1 - momentum) * batch_mean
        return Terms(per_anchor, new.astype(center.dtype))

    def build(hyper: dict[str, object]) -> Objective:
        return make_objective(compute, hyper, init, **flags)

    return factory(loss_fn, ranges, build, center_momentum=0.9)


objective = with_center(
    dino_loss, RANGES, needs_other_keys=True, takes_labels=False, takes_queue=False
)
