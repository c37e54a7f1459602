"""BatchNorm and LayerNorm as all nets use them. Call them inside a module's compact method.

Statistics are float32 whatever the input; the result has the dtype of input and parameters. That
mixes dtypes on purpose, so standard promotion holds here even where the caller asks for strict.
"""

from typing import Any

import flax.linen as nn
import jax
from jax import Array


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


def layer_norm(x: Array) -> Array:
    """`x` [..., c] normalised over the last axis (Ba et al., 2016), epsilon 1e-6."""
    norm = nn.LayerNorm(epsilon=1e-6)
    with jax.numpy_dtype_promotion("standard"):
        return norm(x)
