"""Heads on top of a backbone: projectors."""

import flax.linen as nn
from jax import Array


class Projector(nn.Module):
    """SimCLR's projector: [Dense, BatchNorm, ReLU] x (layers - 1), then Dense.

    Attributes:
        hidden_dim: width of the hidden layers.
        output_dim: d, the size of an embedding.
        layers: how many Dense layers, >= 1.
    """

    hidden_dim: int
    output_dim: int
    layers: int

    @nn.compact
    def __call__(self, x: Array, *, train: bool, axis_name: str | None = None) -> Array:
        """Features [n, f] to embeddings [n, d]."""
        for _ in range(self.layers - 1):
            x = nn.Dense(self.hidden_dim, use_bias=False)(x)
            x = nn.BatchNorm(
                use_running_average=not train, momentum=0.9, axis_name=axis_name if train else None
            )(x)
            x = nn.relu(x)
        return nn.Dense(self.output_dim)(x)
