"""Loss of AUC-CL's released ImageNet code: DINO's teacher and student under the AUC loss."""

import jax
from jax import Array, lax
from jax import numpy as jnp

from jaxssl import collectives
from jaxssl.losses.dino import RANGES as DINO_RANGES
from jaxssl.losses.dino import below_max, check_center, with_center
from jaxssl.losses.objective import Scalar
from jaxssl.losses.pairs import Pairs, dot, mean_where, negatives, positives, promote

RANGES = DINO_RANGES | {"alpha": ">= 0", "negative_weight": ">= 0", "a": "finite", "b": "finite"}


def auc_dino_loss(
    pairs: Pairs,
    center: Array | None = None,
    *,
    a: Scalar = 10.0,
    b: Scalar = 0.0,
    alpha: Scalar = 1.0,
    negative_weight: Scalar = 32.0,
    student_temperature: Scalar = 0.1,
    teacher_temperature: Scalar = 0.04,
) -> Array:
    r"""Compute the AUC loss, with student logits averaged under the teacher's softmax as the score.

    .. math::
        s_{ij} = \frac12 \Big(1 + \mathrm{softmax}\Big(\frac{t_j - c}{\tau_t}\Big)
                 \cdot \frac{z_i}{\tau_s}\Big) \\
        L_i = (p_i - a)^2 - 2 \alpha p_i
              + \frac{w}{B} \sum_{j \in N_i} \big((s_{ij} - b)^2 + 2 \alpha s_{ij}\big) + \alpha

    where p is the score of the positive (the terms of several are averaged) and B the number of
    examples in the batch of all devices, whatever the number of negatives. The constant alpha is
    the + 1 of the released code, where alpha = 1. It does not change the gradient.

    The student's logits have no softmax, so the loss grows with their square. They must be bounded,
    as the cosines of DINO's head are. Logits over temperature above about 1e18 overflow float32.

    Args:
        pairs: n anchors are the student's outputs z (K logits, not normalised), m candidates the
            teacher's outputs t, from `pair_towers`. With `pair_views` every view is both. The
            candidates are constants.
        center: c, [K], a moving average of the teacher's outputs. None is 0.
        a: target of the positives.
        b: target of the negatives.
        alpha: weight of the margin term, >= 0.
        negative_weight: w, >= 0.
        student_temperature: tau_s, > 0.
        teacher_temperature: tau_t, > 0. The released code increases it from 0.04 to 0.07 in 30
            epochs.

    Objective:
        center_momentum: weight of the past in the centre, in [0, 1].

    Returns:
        [n] float32, 0 for an anchor without a positive.

    Raises:
        ValueError: if a hyper-parameter is out of range, or the centre has the wrong shape.

    References:
        Sharma et al., AUC-CL, ICLR 2024, released ImageNet code. The paper has no such equation.
        Caron et al., Emerging Properties in Self-Supervised Vision Transformers, 2021, eq. 1 to 4.

    Differs from the released code: negatives and B are taken over all devices. There each GPU uses
    its own batch. There the sum over negatives runs over the students of a teacher, here over the
    teachers of a student, with the same mean over anchors.
    """
    if center is not None:
        check_center(center, pairs.anchor.shape[1])
    teacher = lax.stop_gradient(promote(pairs.candidate))
    teacher = teacher if center is None else teacher - center[None, :]
    target = jax.nn.softmax(below_max(teacher) / teacher_temperature, axis=1)
    s = (1 + dot(promote(pairs.anchor) / student_temperature, target)) / 2

    pos, neg = positives(pairs), negatives(pairs)
    positive = mean_where((s - a) ** 2 - 2 * alpha * s, pos)
    negative = jnp.sum(jnp.where(neg, (s - b) ** 2 + 2 * alpha * s, 0), axis=1)
    local = pairs.anchor.shape[0] // max(pairs.num_views, 1)
    batch = local * collectives.device_count(pairs.axis_name)
    weight = negative_weight / max(batch, 1)
    loss = positive + weight * negative + alpha
    return jnp.where(jnp.any(pos, axis=1), loss, 0)


# The rows of a queue are normalised, and logits are not.
objective = with_center(auc_dino_loss, RANGES, needs_other_keys=True, takes_queue=False)
