"""AUC-CL as its ImageNet code was released: DINO's teacher and student, scored by the AUC loss."""

import jax
from jax import Array, lax
from jax import numpy as jnp

from jaxssl import collectives
from jaxssl.losses.dino import with_center
from jaxssl.losses.objective import Number, Objective, require_not_negative, require_positive
from jaxssl.losses.pairs import Pairs, dot, negatives, positives, wide


def auc_dino_loss(
    pairs: Pairs,
    center: Array | None = None,
    *,
    a: Number = 10.0,
    b: Number = 0.0,
    alpha: Number = 1.0,
    negative_weight: Number = 32.0,
    student_temperature: Number = 0.1,
    teacher_temperature: Number = 0.04,
) -> Array:
    r"""AUC loss of a linear score: the student's logits averaged by the teacher's softmax.

    .. math::
        s_{ij} = \frac12 \Big(1 + \mathrm{softmax}\Big(\frac{t_j - c}{\tau_t}\Big)
                 \cdot \frac{z_i}{\tau_s}\Big) \\
        L_i = (p_i - a)^2 - 2 \alpha p_i
              + \frac{w}{B} \sum_{j \in N_i} \big((s_{ij} - b)^2 + 2 \alpha s_{ij}\big) + \alpha

    where p is the positive's score (the terms of several are averaged) and B the number of examples
    in the batch of all devices, whatever the number of negatives. The constant is alpha because
    that is the released code's + 1 at its alpha = 1; it moves no gradient.

    The student's logits have no softmax, so the loss grows with their square: they have to be
    bounded, as the cosines of DINO's head are. Logits over the temperature above about 1e18
    overflow float32.

    Args:
        pairs: n anchors are the student's outputs z (K logits, not normalised), m candidates the
            teacher's t, from `pair_towers`. Of `pair_views`, every view is both. The candidates are
            constants here.
        center: c, [K]: a moving average of the teacher's outputs; None is 0.
        a: the positives' target.
        b: the negatives' target.
        alpha: weight of the margin term, >= 0.
        negative_weight: w, >= 0.
        student_temperature: tau_s, > 0.
        teacher_temperature: tau_t, > 0; the released code warms it up from 0.04 to 0.07.

    Returns:
        [n] float32; 0 for an anchor without a positive.

    Raises:
        ValueError: on a hyper-parameter out of its range, or a centre of another size.

    References:
        Sharma et al., AUC-CL, ICLR 2024, its released ImageNet code; no equation of the paper.
        Caron et al., Emerging Properties in Self-Supervised Vision Transformers, 2021, eq. 1 to 4.

    Differs from the released code: the negatives, and B, are those of all devices; there each GPU
    takes its own. There the rows of the negatives' sum are the teacher's, here the student's: the
    mean over anchors is the same.
    """
    require_positive(
        student_temperature=student_temperature, teacher_temperature=teacher_temperature
    )
    require_not_negative(alpha=alpha, negative_weight=negative_weight)
    dim = pairs.anchor.shape[1]
    if center is not None and center.shape != (dim,):
        raise ValueError(f"center must have shape [{dim}], got {center.shape}")
    teacher = lax.stop_gradient(wide(pairs.candidate))
    teacher = teacher if center is None else teacher - center[None, :]
    target = jax.nn.softmax(teacher / teacher_temperature, axis=1)
    s = (1 + dot(wide(pairs.anchor) / student_temperature, target)) / 2

    pos, neg = positives(pairs), negatives(pairs)
    num_pos = jnp.sum(pos, axis=1, dtype=s.dtype)
    positive = jnp.sum(jnp.where(pos, (s - a) ** 2 - 2 * alpha * s, 0), axis=1)
    negative = jnp.sum(jnp.where(neg, (s - b) ** 2 + 2 * alpha * s, 0), axis=1)
    local = pairs.anchor.shape[0] // max(pairs.num_views, 1)
    weight = negative_weight / (local * collectives.device_count(pairs.axis_name))
    loss = positive / jnp.maximum(num_pos, 1) + weight * negative + alpha
    return jnp.where(num_pos > 0, loss, 0)


def objective(
    *,
    a: Number = 10.0,
    b: Number = 0.0,
    alpha: Number = 1.0,
    negative_weight: Number = 32.0,
    student_temperature: Number = 0.1,
    teacher_temperature: Number = 0.04,
    center_momentum: Number = 0.9,
) -> Objective:
    """The loss with DINO's centre, the moving average of the teacher's outputs on all devices."""
    fixed = {"a": a, "b": b, "alpha": alpha, "negative_weight": negative_weight}
    fixed |= {"student_temperature": student_temperature}
    fixed |= {"teacher_temperature": teacher_temperature}
    objective = with_center(auc_dino_loss, center_momentum, fixed)
    return objective._replace(needs_other_keys=True)
