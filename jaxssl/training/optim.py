"""Optimisers by name, with the usual exclusions from weight decay and layer-wise scaling."""

from typing import Any

import jax
import optax
from jax import Array
from jax import numpy as jnp
from jax.tree_util import KeyPath

from jaxssl.models.transfer import ALL_TRAINED, Transfer
from jaxssl.training.config.schedules import Schedule

# Names of parameters with several axes that do not decay.
OTHERS = ("positions", "bias")


def effective_lr(lr: float, scaling: str, batch_size: int) -> float:
    """Return the peak learning rate, scaled by the global batch size.

    Args:
        lr: base learning rate.
        scaling: "linear" lr * B / 256, "sqrt" lr * sqrt(B), "none" lr.
        batch_size: B, over all devices.

    Raises:
        ValueError: on an unknown scaling.
    """
    factors = {"linear": batch_size / 256, "sqrt": batch_size**0.5, "none": 1.0}
    if scaling not in factors:
        raise ValueError(f"optim.lr_scaling must be one of {tuple(factors)}, got {scaling!r}")
    return lr * factors[scaling]


def optimiser(
    name: str,
    lr: float | Schedule,
    *,
    weight_decay: float | Schedule = 0.0,
    momentum: float = 0.9,
    clip_norm: float = 0.0,
    nesterov: bool = False,
    trust_coefficient: float = 0.001,
    lars_clip: bool = False,
    decay_all: bool = False,
    transfer: Transfer = ALL_TRAINED,
) -> optax.GradientTransformation:
    r"""Return the gradient transformation of a named optimiser.

    .. math::
        v \leftarrow m v + q (g + w p), \quad p \leftarrow p - \eta_t v, \quad q_{sgd} = 1, \quad
        q_{lars} = \frac{c |p|}{|g + w p|}, \quad q_{larc} = \frac{c |p|}{|g| + w |p| + 10^{-8}}

    with gradient g and parameter p. With `lars_clip`, larc uses min(q_larc / eta, 1). If a norm is
    0, q is 1, and larc does not decay. Parameters with ndim <= 1 (biases, norms, scalars) and a
    transformer's learned positions have q = 1. They do not decay either, unless `decay_all`. Frozen
    modules are not updated, have no optimiser state, and do not count in the global norm.

    Args:
        name: "adamw" (decoupled decay: MoCo-v3 and DINO on ViT, AUC-CL), "adam" (L2 in the
            gradient: MMCL, SimCLR on CIFAR), "sgd" (L2: MoCo-v2, TCL with labels), "lars" (Barlow
            Twins, MoCo-v3 on ResNet, MMCL on ImageNet), "larc" (called LARS by solo-learn, where
            it is often used with `lars_clip` and trust 0.02).
        lr: eta, the learning rate, or a function of the step.
        weight_decay: w >= 0, or a function of the step.
        momentum: m of sgd, lars and larc, in [0, 1).
        clip_norm: largest global norm of the gradient, applied before the decay; 0 does not clip.
        nesterov: sgd, lars and larc move by q (g + w p) + m v instead of v.
        trust_coefficient: c of lars and larc, > 0.
        lars_clip: cap larc's ratio, so that no matrix moves faster than with sgd. The factors of
            `transfer` scale the capped step, while solo-learn and apex cap the scaled one.
        decay_all: decay all trained parameters, as PyTorch's adam, adamw and sgd do by default.
        transfer: which modules are frozen, and factors on the learning rates of the others.
            Modules whose names begin with "frozen_" are always frozen.

    Raises:
        ValueError: on an unknown name, `lars_clip` without larc, or `decay_all` with lars or larc.

    References:
        Kingma and Ba, 2015 (Adam); Loshchilov and Hutter, 2019 (AdamW); You, Gitman and Ginsburg,
        2017, eq. 6 (q_larc; there, and in SimCLR's code, the momentum contains the learning rate).
    """
    decay = optax.add_decayed_weights(weight_decay, mask=None if decay_all else _is_matrix)
    trust = optax.scale_by_trust_ratio(trust_coefficient=trust_coefficient)
    larc = _larc(lr, weight_decay, trust_coefficient, lars_clip)
    trace = optax.trace(momentum, nesterov)
    chains = {
        "adamw": (_adam(), decay),
        "adam": (decay, _adam()),
        "sgd": (decay, trace),
        "lars": (decay, optax.masked(trust, _is_matrix), trace),
        "larc": (optax.masked(larc, _is_matrix), trace),
    }
    if name not in chains:
        raise ValueError(f"optim.name must be one of {sorted(chains)}, got {name!r}")
    if lars_clip and name != "larc":
        raise ValueError(f'optim.lars_clip needs optim.name "larc", got {name!r}')
    if decay_all and name in ("lars", "larc"):
        raise ValueError(f'optim.decay_all needs optim.name "adam", "adamw" or "sgd", got {name!r}')
    clip = optax.clip_by_global_norm(clip_norm) if clip_norm > 0 else optax.identity()
    trained = optax.chain(clip, *chains[name], optax.scale_by_learning_rate(lr))

    def labels(params: Any) -> object:
        return jax.tree.map(lambda f: "frozen" if f else "trained", transfer.frozen(params))

    def init(params: Any) -> optax.OptState:
        transfer.rates(params)  # raises an error if the network does not suit them
        return optax.EmptyState()

    def scale(
        updates: optax.Updates, state: optax.OptState, params: Any = None
    ) -> tuple[optax.Updates, optax.OptState]:
        return jax.tree.map(lambda u, rate: u * rate, updates, transfer.rates(params)), state

    partition = optax.partition({"trained": trained, "frozen": optax.set_to_zero()}, labels)
    if (transfer.backbone_lr, transfer.layer_decay) == (1, 1):
        return partition
    return optax.chain(partition, optax.GradientTransformation(init, scale))


def _adam() -> optax.GradientTransformation:
    """Return `optax.scale_by_adam` for any rule of promotion.

    It raises a float to its integer step count, which JAX's strict promotion refuses.
    """
    adam = optax.scale_by_adam()

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        with jax.numpy_dtype_promotion("standard"):
            return adam.update(updates, state, params)

    return optax.GradientTransformation(adam.init, update)


def _larc(
    lr: float | Schedule, weight_decay: float | Schedule, trust_coefficient: float, lars_clip: bool
) -> optax.GradientTransformation:
    """Add the weight decay, and scale by LARC's ratio of the norms of parameter and gradient."""

    def init(params: optax.Params) -> optax.OptState:
        return optax.ScaleByScheduleState(jnp.zeros((), jnp.int32))

    def update(
        updates: optax.Updates, state: Any, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        count = state.count
        rate = lr(count) if callable(lr) else lr
        decay = weight_decay(count) if callable(weight_decay) else weight_decay

        def scale(g: Array, p: Array) -> Array:
            w = jnp.asarray(decay, p.dtype)
            p_norm, g_norm = jnp.linalg.norm(p), jnp.linalg.norm(g)
            ratio = trust_coefficient * p_norm / (g_norm + w * p_norm + 1e-8)
            if lars_clip:  # A learning rate of 0 makes the quotient infinite; min gives 1.
                ratio = jnp.minimum(ratio / jnp.asarray(rate, p.dtype), 1)
            return jnp.where((p_norm > 0) & (g_norm > 0), ratio * (g + w * p), g)

        scaled = jax.tree.map(scale, updates, params)
        return scaled, optax.ScaleByScheduleState(optax.safe_increment(count))

    return optax.GradientTransformation(init, update)


def _is_matrix(params: optax.Params) -> object:
    """Mark matrices and kernels, which decay and have a trust ratio.

    Learned positions are none, and neither are biases with several axes, as those of attention.
    """

    def is_matrix(path: KeyPath, p: Array) -> bool:
        return p.ndim > 1 and jax.tree_util.keystr(path[-1:], simple=True) not in OTHERS

    return jax.tree_util.tree_map_with_path(is_matrix, params)
