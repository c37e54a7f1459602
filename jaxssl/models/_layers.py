"""Convolution, norms and attention, which several networks use, and checks of settings.

Norms compute their statistics in float32 and return the common dtype of input and parameters. A
norm of a bfloat16 input mixes both dtypes, which `jax.numpy_dtype_promotion` refuses in strict
mode. The norms here therefore switch to standard promotion.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import flax.linen as nn
import jax
from jax import Array, lax
from jax import numpy as jnp
from jax.typing import DTypeLike

from jaxssl import collectives

# PyTorch initialises Conv2d and Linear like this by default: uniform with variance 1 / (3 fan_in).
TORCH_KERNEL_INIT = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")

MOMENTUM = 0.9  # weight of the old running statistics of BatchNorm in an update
EPSILON = 1e-5  # added to BatchNorm's variance, as in Flax

exact_gelu = partial(jax.nn.gelu, approximate=False)


def sum_dtype(x: Array) -> DTypeLike:
    """Return the dtype of sums over many values. In bfloat16, 256 + 1 would be 256."""
    return jnp.float32 if x.dtype == jnp.bfloat16 else x.dtype


def require_min(minimum: int, prefix: str = "net.", **settings: int) -> None:
    """Raise ValueError for the first setting below a minimum. ``prefix`` precedes its name."""
    for name, value in settings.items():
        if value < minimum:
            raise ValueError(f"{prefix}{name} must be >= {minimum}, got {value}")


def require_choice(choices: Iterable[object], prefix: str = "net.", **settings: object) -> None:
    """Raise ValueError for the first setting that is none of the choices."""
    choices = tuple(choices)
    for name, value in settings.items():
        if value not in choices:
            raise ValueError(f"{prefix}{name} must be one of {choices}, got {value!r}")


def square_conv(
    width: int,
    side: int,
    stride: int = 1,
    padding: int | None = None,
    *,
    kernel_init: nn.initializers.Initializer,
    groups: int = 1,
    dilation: int = 1,
) -> nn.Conv:
    """Return a bias-free convolution with equal padding on all sides, as in PyTorch.

    The padding is ``dilation * (side // 2)`` by default. "SAME" would pad a strided convolution on
    one side only.
    """
    return nn.Conv(
        width,
        (side, side),
        strides=stride,
        padding=dilation * (side // 2) if padding is None else padding,
        kernel_dilation=dilation,
        use_bias=False,
        kernel_init=kernel_init,
        feature_group_count=groups,
    )


def batch_norm(x: Array, *, train: bool, axis_name: str | None, **options: Any) -> Array:
    """Normalise an array over all axes but the last (BatchNorm, Ioffe and Szegedy, 2015).

    Args:
        x: [..., c].
        train: True normalises by the batch's statistics and updates the running ones. False
            normalises by the running ones.
        axis_name: name of the mapped axis over which training averages the statistics, or None.
        **options: arguments of `flax.linen.BatchNorm`, such as ``use_bias``.

    Returns:
        Array like ``x``. The momentum of the running statistics is 0.9. The running variance is the
        biased estimate.
    """
    # Rows [n, c] belong to heads. Embeddings near collapse have a mean far above their deviation,
    # where E[x^2] - E[x]^2 cancels. Images keep that form, which needs one pass and one sum.
    fast = x.ndim > 2
    norm = nn.BatchNorm(
        not train, axis_name=axis_name, momentum=MOMENTUM, use_fast_variance=fast, **options
    )
    with jax.numpy_dtype_promotion("standard"):
        return norm(x)


def batch_norm_groups(size: int, axis_name: str | None) -> AbstractContextManager[None]:
    """Return a context in which BatchNorms of Linen modules average over groups of devices.

    Args:
        size: number of consecutive devices in a group, a divisor of their number. 0, or a number
            not below theirs, means one group of all.
        axis_name: the mapped axis, or None.
    """
    devices = collectives.device_count(axis_name)
    if not 0 < size < devices:
        return nullcontext()
    groups = [list(range(first, first + size)) for first in range(0, devices, size)]

    def intercept(call: Callable, args: tuple, kwargs: dict, context: Any) -> Any:
        if isinstance(context.module, nn.BatchNorm | MaskedBatchNorm):
            # Networks do not pass groups on, and Flax forbids a plain assignment.
            object.__setattr__(context.module, "axis_index_groups", groups)
        return call(*args, **kwargs)

    return nn.intercept_methods(intercept)


class MaskedBatchNorm(nn.Module):
    """BatchNorm over unmasked rows, with devices weighted by their number of unmasked rows.

    The attributes are as in `flax.linen.BatchNorm`.
    """

    use_running_average: bool
    axis_name: str | None = None
    axis_index_groups: list[list[int]] | None = None

    @nn.compact
    def __call__(self, x: Array, mask: Array) -> Array:
        """Normalise rows [n, c]. Only rows where ``mask`` [n] is True enter the statistics.

        At least one row of all devices must be unmasked.
        """
        c = x.shape[1]
        running_mean = self.variable("batch_stats", "mean", lambda: jnp.zeros(c, jnp.float32))
        running_var = self.variable("batch_stats", "var", lambda: jnp.ones(c, jnp.float32))
        scale = self.param("scale", nn.initializers.ones, (c,))
        bias = self.param("bias", nn.initializers.zeros, (c,))
        x32 = x.astype(jnp.float32)
        if self.use_running_average:
            mean, var = running_mean.value, running_var.value
        else:
            weight = mask.astype(jnp.float32)[:, None]
            add = partial(collectives.sum, axis_name=self.axis_name, groups=self.axis_index_groups)
            count, total = add((jnp.sum(weight), jnp.sum(x32 * weight, 0)))
            mean = total / jnp.maximum(count, 1)
            square = jnp.sum((x32 - mean[None]) ** 2 * weight, 0)
            var = add(square) / jnp.maximum(count, 1)
            if not self.is_initializing():
                m = MOMENTUM
                running_mean.value = m * running_mean.value + (1 - m) * mean
                running_var.value = m * running_var.value + (1 - m) * var
        factor = scale.astype(jnp.float32) * lax.rsqrt(var + EPSILON)
        y = (x32 - mean[None]) * factor[None] + bias.astype(jnp.float32)[None]
        return y.astype(x.dtype)


def layer_norm(x: Array, epsilon: float = 1e-6, name: str | None = None) -> Array:
    """Normalise an array [..., c] over the last axis (LayerNorm, Ba et al., 2016)."""
    norm = nn.LayerNorm(epsilon=epsilon, name=name)
    with jax.numpy_dtype_promotion("standard"):
        return norm(x)


def keep_sums(primitive: Any, *_: object, **__: object) -> bool:
    """Return True for a sum over devices: a rematerialisation policy of `nn.remat`.

    Saved are the BatchNorm statistics. Computing them again would communicate twice.
    """
    return primitive.name.startswith("psum")


def attend(q: Array, k: Array, v: Array, *, causal: bool = False) -> Array:
    """Compute scaled dot-product attention, softmax(q k^T / sqrt(d)) v.

    Args:
        q: queries [n, t, h, d] of h heads.
        k: keys [n, s, h, d].
        v: values [n, s, h, d].
        causal: whether query i attends to keys 0 ... i only. Requires s = t.

    Returns:
        Array [n, t, h, d] in the dtype of ``v``. The softmax is computed in float32.

    References:
        Vaswani et al., Attention Is All You Need, 2017, eq. 1.
    """
    logits = jnp.einsum("nqhd,nkhd->nhqk", q * q.shape[-1] ** -0.5, k)
    if causal:
        visible = jnp.tri(q.shape[1], dtype=bool)[None, None]
        logits = jnp.where(visible, logits, -jnp.inf)
    return jnp.einsum("nhqk,nkhd->nqhd", _softmax(logits), v)


@jax.custom_vjp
def _softmax(logits: Array) -> Array:
    """Compute a softmax in float32. It has no forward-mode derivative.

    Only the rounded weights are kept for the backward pass.
    """
    weights = nn.softmax(logits.astype(jnp.float32)).astype(logits.dtype)
    # Without this barrier XLA stores the float32 exponentials for the backward pass. A ViT's
    # training step would then need a fifth more memory.
    return lax.optimization_barrier(weights)


def _softmax_forward(logits: Array) -> tuple[Array, Array]:
    weights = _softmax(logits)
    return weights, weights


def _softmax_backward(weights: Array, g: Array) -> tuple[Array]:
    weights32, g = weights.astype(jnp.float32), g.astype(jnp.float32)
    inner = jnp.sum(weights32 * g, axis=-1, keepdims=True)
    return ((weights32 * (g - inner)).astype(weights.dtype),)


_softmax.defvjp(_softmax_forward, _softmax_backward)
