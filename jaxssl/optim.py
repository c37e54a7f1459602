"""Optimisers by name, with the field's exclusions and learning-rate scaling."""

from typing import Any

import jax
import optax

from jaxssl.schedules import Schedule

LR_SCALING = ("linear", "sqrt", "none")


def effective_lr(lr: float, scaling: str, batch_size: int) -> float:
    """The peak learning rate of a global batch.

    Args:
        lr: the base rate.
        scaling: "linear" lr * B / 256, "sqrt" lr * sqrt(B), "none" lr.
        batch_size: B, over all devices.

    Raises:
        ValueError: on an unknown scaling.
    """
    if scaling not in LR_SCALING:
        raise ValueError(f"optim.lr_scaling must be one of {LR_SCALING}, got {scaling!r}")
    return lr * {"linear": batch_size / 256, "sqrt": batch_size**0.5, "none": 1.0}[scaling]


def optimiser(
    name: str, lr: Schedule, *, weight_decay: float, momentum: float, clip_norm: float
) -> optax.GradientTransformation:
    """The gradient transformation.

    Weight decay and LARS' trust ratio leave out biases, norms' parameters and trained scalars.

    Args:
        name: "adamw" (decoupled decay), "adam" (L2 in the gradient), "sgd" (likewise), "lars" (as
            in its paper, with the rate inside the momentum; some codes have it outside).
        lr: the rate as a function of the step.
        weight_decay: >= 0.
        momentum: of sgd and lars.
        clip_norm: largest global norm of the gradient; 0 does not clip.

    Raises:
        ValueError: on an unknown name.
    """
    decay = optax.add_decayed_weights(weight_decay, mask=_matrices)
    makers = {
        "adamw": lambda: optax.adamw(lr, weight_decay=weight_decay, mask=_matrices),
        "adam": lambda: optax.chain(decay, optax.adam(lr)),
        "sgd": lambda: optax.chain(decay, optax.sgd(lr, momentum=momentum)),
        "lars": lambda: optax.lars(
            lr,
            weight_decay=weight_decay,
            weight_decay_mask=_matrices,
            trust_ratio_mask=_matrices,
            momentum=momentum,
        ),
    }
    if name not in makers:
        raise ValueError(f"optim.name must be one of {sorted(makers)}, got {name!r}")
    transform = makers[name]()
    if clip_norm > 0:
        transform = optax.chain(optax.clip_by_global_norm(clip_norm), transform)
    return transform


def _matrices(params: Any) -> Any:
    return jax.tree.map(lambda p: p.ndim > 1, params)
