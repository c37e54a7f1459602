"""BatchNorm and LayerNorm as all nets use them. Call them inside a module's compact method.

Statistics are float32 whatever the input; the result has the dtype of input and parameters. That
mixes dtypes on purpose, so standard promotion holds here even where the caller asks for strict.
"""

from typing import Any

import flax.linen as nn
import jax
from jax import Array
from jax import numpy as jnp

from jaxssl import collectives


def batch_norm(x: Array, *, train: bool, axis_name: str | None, **options: Any) -> Array:
    """`x` normalised over all axes but the last (Ioffe and Szegedy, 2015).

    Args:
        x: [..., c].
        train: whether to use and update with the batch's statistics, or use the running ones.
        axis_name: the mapped axis over whose devices training takes its statistics, or None.
        **options: of `flax.linen.BatchNorm`, such as ``use_bias``.

    Returns:
        Array like ``x``. The running statistics move by a tenth; their variance is the biased one.
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
    """BatchNorm over the rows there are, of all devices together, though each has another number.

    Attributes:
        momentum: share of the running statistics that a step keeps.
        epsilon: added to the variance.
    """

    momentum: float = 0.9
    epsilon: float = 1e-5

    @nn.compact
    def __call__(self, x: Array, mask: Array, *, train: bool, axis_name: str | None) -> Array:
        """Rows [n, c], of which those with ``mask`` [n] count."""
        c = x.shape[1]
        mean = self.variable("batch_stats", "mean", lambda: jnp.zeros(c, jnp.float32))
        var = self.variable("batch_stats", "var", lambda: jnp.ones(c, jnp.float32))
        scale = self.param("scale", nn.initializers.ones, (c,))
        bias = self.param("bias", nn.initializers.zeros, (c,))
        wide = x.astype(jnp.float32)
        if train:
            weight = mask.astype(jnp.float32)[:, None]
            count, total = collectives.sum((jnp.sum(weight), jnp.sum(wide * weight, 0)), axis_name)
            centre = total / jnp.maximum(count, 1)
            square = jnp.sum((wide - centre[None]) ** 2 * weight, 0)
            spread = collectives.sum(square, axis_name) / jnp.maximum(count, 1)
            if not self.is_initializing():
                kept, new = self.momentum, 1 - self.momentum
                mean.value = kept * mean.value + new * centre
                var.value = kept * var.value + new * spread
        else:
            centre, spread = mean.value, var.value
        factor = scale.astype(jnp.float32) * jax.lax.rsqrt(spread + self.epsilon)
        y = (wide - centre[None]) * factor[None] + bias.astype(jnp.float32)[None]
        return y.astype(x.dtype)


def masked_batch_norm(x: Array, mask: Array, *, train: bool, axis_name: str | None) -> Array:
    """`batch_norm` of rows [n, c] of which only those with ``mask`` [n] are there."""
    return MaskedBatchNorm()(x, mask, train=train, axis_name=axis_name)


def layer_norm(x: Array, epsilon: float = 1e-6) -> Array:
    """`x` [..., c] normalised over the last axis (Ba et al., 2016); epsilon is of the variance."""
    norm = nn.LayerNorm(epsilon=epsilon)
    with jax.numpy_dtype_promotion("standard"):
        return norm(x)


def keep_sums_over_devices(primitive: Any, *_: Any, **__: Any) -> bool:
    """What rematerialisation keeps: BatchNorm's few numbers, else devices would add them twice."""
    return primitive.name.startswith("psum")
