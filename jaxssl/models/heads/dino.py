"""DINO's head: a perceptron, and inner products with prototypes."""

import flax.linen as nn
from jax import Array, lax
from jax import numpy as jnp

from jaxssl.models.heads._checks import require_at_least


class DinoHead(nn.Module):
    """A perceptron to a unit vector, and its inner products with weight-normalised prototypes.

    Attributes:
        hidden_dim: width of the hidden layers.
        bottleneck_dim: size of the unit vector.
        output_dim: d, how many prototypes.
        layers: how many Dense layers before the prototypes, >= 1.
        norm_last_layer: whether prototypes have length 1, or a length that is trained.
    """

    hidden_dim: int
    bottleneck_dim: int
    output_dim: int
    layers: int
    norm_last_layer: bool

    @nn.compact
    def __call__(self, x: Array, *, train: bool, axis_name: str | None = None) -> Array:
        """Features [n, f] to scores [n, d]."""
        del train, axis_name
        # The released code truncates at 2, which is 100 standard deviations.
        init = nn.initializers.normal(0.02)
        for _ in range(self.layers - 1):
            x = nn.gelu(nn.Dense(self.hidden_dim, kernel_init=init)(x), approximate=False)
        x = nn.Dense(self.bottleneck_dim, kernel_init=init)(x)
        # PyTorch's default. Only directions count, but the start's length sets how fast they turn.
        uniform = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")
        kernel = self.param("prototypes", uniform, (self.bottleneck_dim, self.output_dim))
        scores = _unit(x, axis=1) @ _unit(kernel, axis=0)
        if self.norm_last_layer:
            return scores
        length = self.param("prototype_length", nn.initializers.ones, (self.output_dim,))
        return scores * length[None]


def head(
    *,
    proj_hidden_dim: int = 2048,
    proj_bottleneck_dim: int = 256,
    proj_output_dim: int = 65536,
    proj_layers: int = 3,
    norm_last_layer: bool = True,
) -> nn.Module:
    """DINO's projector: GELU, no BatchNorm; scores are inner products with prototypes.

    Args:
        proj_hidden_dim: width of the hidden layers, >= 1.
        proj_bottleneck_dim: size of the unit vector that meets the prototypes, >= 1.
        proj_output_dim: d, how many prototypes, >= 1.
        proj_layers: Dense layers before the prototypes, >= 1.
        norm_last_layer: whether prototypes have length 1, so that scores are cosines; else each
            has a length that is trained, from 1.

    Raises:
        ValueError: on a value out of its range.

    References:
        Caron et al., Emerging Properties in Self-Supervised Vision Transformers, 2021.
    """
    require_at_least(1, "proj_hidden_dim", proj_hidden_dim)
    require_at_least(1, "proj_bottleneck_dim", proj_bottleneck_dim)
    require_at_least(1, "proj_output_dim", proj_output_dim)
    require_at_least(1, "proj_layers", proj_layers)
    return DinoHead(
        proj_hidden_dim, proj_bottleneck_dim, proj_output_dim, proj_layers, norm_last_layer
    )


def _unit(x: Array, *, axis: int) -> Array:
    """`x` at length 1 along an axis, computed in float32; zeros stay zeros and get no gradient."""
    wide = x.astype(jnp.float32)
    square = jnp.sum(wide * wide, axis=axis, keepdims=True)
    nonzero = square > 1e-24
    inverse = jnp.where(nonzero, lax.rsqrt(jnp.where(nonzero, square, 1)), 0)
    return (wide * inverse).astype(x.dtype)
