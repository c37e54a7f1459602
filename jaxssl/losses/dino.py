"""DINO: self-distillation between softmaxes, kept from collapse by centring and sharpening."""

from collections.abc import Callable

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
    require_share,
)
from jaxssl.losses.pairs import Pairs, partners, wide


def dino_loss(
    pairs: Pairs,
    center: Array | None = None,
    *,
    student_temperature: Number = 0.1,
    teacher_temperature: Number = 0.04,
) -> Array:
    r"""Cross-entropy of the student's softmax to the teacher's.

    .. math:: L_i = -\sum_k \mathrm{softmax}_k\Big(\frac{t_i - c}{\tau_t}\Big)
              \log \mathrm{softmax}_k\Big(\frac{s_i}{\tau_s}\Big)

    Args:
        pairs: anchors are the student's outputs (K logits, not normalised), keys the teacher's,
            from `pair_towers`. Of V views, the teacher's are the V - 1 others. Constants here.
        center: c, [K]: a moving average of the teacher's outputs; None is 0.
        student_temperature: tau_s, > 0.
        teacher_temperature: tau_t, > 0; DINO warms it up from 0.04 to 0.07.

    Returns:
        [n] float32.

    Raises:
        ValueError: if there is a single view.

    References:
        Caron et al., Emerging Properties in Self-Supervised Vision Transformers, 2021, eq. 1 to 4.
    """
    require_positive(
        student_temperature=student_temperature, teacher_temperature=teacher_temperature
    )
    log_p = jax.nn.log_softmax(wide(pairs.anchor) / student_temperature, axis=1)
    outputs = [lax.stop_gradient(wide(t)) for t in partners(pairs, "dino")]
    if center is not None:
        outputs = [t - center[None, :] for t in outputs]
    targets = [jax.nn.softmax(t / teacher_temperature, axis=1) for t in outputs]
    return -jnp.sum(sum(targets) / len(targets) * log_p, axis=1)


def objective(
    *,
    student_temperature: Number = 0.1,
    teacher_temperature: Number = 0.04,
    center_momentum: Number = 0.9,
) -> Objective:
    """DINO's loss with its centre, the moving average of the teacher's outputs on all devices."""
    fixed = {"student_temperature": student_temperature, "teacher_temperature": teacher_temperature}
    objective = with_center(dino_loss, center_momentum, fixed)
    return objective._replace(needs_other_keys=True, takes_labels=False, takes_queue=False)


def with_center(
    loss_fn: Callable[..., Array], center_momentum: Number, fixed: dict[str, Number]
) -> Objective:
    r"""The objective of ``loss_fn(pairs, center, **fixed)``, which remembers the centre.

    .. math:: c \leftarrow m c + (1 - m) \bar t

    with t the keys' outputs on all devices.

    Args:
        loss_fn: ``(pairs, center, **hyper) -> [n]``.
        center_momentum: m, in [0, 1].
        fixed: the hyper-parameters of ``loss_fn``.
    """
    require_share(center_momentum=0.0 if callable(center_momentum) else center_momentum)

    def init(key: Array, num_examples: int, dim: int) -> tuple[dict, Array]:
        del key, num_examples
        return {}, jnp.zeros(dim)

    def loss(pairs, params, memory, *, step, key) -> tuple[Array, Array, Metrics]:
        del params, key
        momentum = at_step({"momentum": center_momentum}, step)["momentum"]
        value, alone = mean_over_anchors(loss_fn(pairs, memory, **at_step(fixed, step)), pairs)
        outputs = jnp.mean(wide(lax.stop_gradient(pairs.partner)), axis=0)
        batch = collectives.mean(outputs, pairs.axis_name)
        memory = momentum * memory + (1 - momentum) * batch
        return value, memory, {"anchors_without_positive": alone}

    return Objective(init, loss)
