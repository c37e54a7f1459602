"""BatchNorm and LayerNorm with float32 statistics, for a compact method of a Flax module.

The result has the dtype of the input and the parameters. Mixing it with float32 statistics needs
standard dtype promotion, which is enabled here even if the caller asks for strict promotion.
"""

from typing import Any

import flax.linen as nn
import jax
from jax import Array
from jax import numpy as jnp

from jaxssl import collectives


def batch_norm(x: Array, *, train: bool, axis_name: str | None, **options: Any) -> Array:
    """Normalise an array over all axes but the last (BatchNorm, Ioffe and Szegedy, 2015).

    Args:
        x: [..., c].
        train: whether to use the batch statistics and update the running ones, or use the latter.
        axis_name: name of the mapped axis over which training averages the statistics, or None.
        **options: arguments of `flax.linen.BatchNorm`, such as ``use_bias``.

    Returns:
        Array like ``x``. The momentum of the running statistics is 0.9. The running variance is the
        biased estimate.
    """
    norm = nn.BatchNorm(
        use_running_average=not train,
        momentum=0.9,
        axis_name=axis_name if train else None,
        **options,
    )
    with jax.numpy_dtype_promotion("standard"):
        return norm(x)


class MaskedBatchNorm(nn.Module):
    """BatchNorm over unmasked rows, with devices weighted by their number of unmasked rows.

    Attributes:
        momentum: weight of the old running statistics in an update.
        epsilon: added to the variance.
    """

    momentum: float = 0.9
    epsilon: float = 1e-5

    @nn.compact
    def __call__(self, x: Array, mask: Array, *, train: bool, axis_name: str | None) -> Array:
        """Normalise rows [n, c]. Only rows where ``mask`` [n] is True enter the statistics."""
        c = x.shape[1]
        running_mean = self.variable("batch_stats", "mean", lambda: jnp.zeros(c, jnp.float32))
        running_var = self.variable("batch_stats", "var", lambda: jnp.ones(c, jnp.float32))
        scale = self.param("scale", nn.initializers.ones, (c,))
        bias = self.param("bias", nn.initializers.zeros, (c,))
        x32 = x.astype(jnp.float32)
        if train:
            weight = mask.astype(jnp.float32)[:, None]
            count, total = collectives.sum((jnp.sum(weight), jnp.sum(x32 * weight, 0)), axis_name)
            mean = total / jnp.maximum(count, 1)
            square = jnp.sum((x32 - mean[None]) ** 2 * weight, 0)
            var = collectives.sum(square, axis_name) / jnp.maximum(count, 1)
            if not self.is_initializing():
                old, new = self.momentum, 1 - self.momentum
                running_mean.value = old * running_mean.value + new * mean
                running_var.value = old * running_var.value + new * var
        else:
            mean, var = running_mean.value, running_var.value
        factor = scale.astype(jnp.float32) * jax.lax.rsqrt(var + self.epsilon)
        y = (x32 - mean[None]) * factor[None] + bias.astype(jnp.float32)[None]
        return y.astype(x.dtype)


def layer_norm(x: Array, epsilon: float = 1e-6, name: str | None = None) -> Array:
    """Normalise an array [..., c] over the last axis (LayerNorm, Ba et al., 2016)."""
    norm = nn.LayerNorm(epsilon=epsilon, name=name)
    with jax.numpy_dtype_promotion("standard"):
        return norm(x)


def keep_sums_over_devices(primitive: Any, *_: Any, **__: Any) -> bool:
    """Rematerialisation policy for `nn.remat` that saves only results of sums over devices.

    These are the BatchNorm statistics. Recomputing them would send them a second time.
    """
    return primitive.name.startswith("psum")
