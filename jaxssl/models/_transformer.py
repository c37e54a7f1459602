"""Transformer block and learned position embeddings, for the vision and text transformers."""

import math
from collections.abc import Callable

import flax.linen as nn
from jax import Array
from jax import numpy as jnp

from jaxssl.models._attention import attend
from jaxssl.models._layers import exact_gelu
from jaxssl.models._norms import layer_norm

Initializer = nn.initializers.Initializer


class Block(nn.Module):
    """Pre-norm transformer block: self-attention and a two-layer MLP, each with a shortcut.

    Attributes:
        heads: number of attention heads; must divide the token dimension.
        qkv_init: initialiser of the kernel that computes queries, keys and values.
        out_init: initialiser of the last kernel of the attention and of the MLP.
        mlp_init: initialiser of the MLP's first kernel.
        mlp_ratio: hidden width of the MLP, as a multiple of the token dimension.
        activation: activation function of the MLP.
        epsilon: added to the variance in both LayerNorms.
        causal: whether a token attends only to itself and earlier tokens.
    """

    heads: int
    qkv_init: Initializer
    out_init: Initializer
    mlp_init: Initializer
    mlp_ratio: int = 4
    activation: Callable[[Array], Array] = exact_gelu
    epsilon: float = 1e-6
    causal: bool = False

    @nn.compact
    def __call__(self, x: Array, scale: Array | None = None) -> Array:
        """Apply the transformer block to tokens [n, t, dim], with an unchanged shape.

        Args:
            x: tokens [n, t, dim].
            scale: factors [n, 2] on the attention and MLP branches (stochastic depth), or None.
        """
        n, t, dim = x.shape
        y = layer_norm(x, self.epsilon)
        qkv = nn.Dense(3 * dim, kernel_init=self.qkv_init, name="qkv")(y)
        q, k, v = jnp.moveaxis(qkv.reshape(n, t, 3, self.heads, dim // self.heads), 2, 0)
        y = attend(q, k, v, causal=self.causal).reshape(n, t, dim)
        y = nn.Dense(dim, kernel_init=self.out_init, name="attention_out")(y)
        x = x + (y if scale is None else y * scale[:, :1, None])
        y = layer_norm(x, self.epsilon)
        y = nn.Dense(self.mlp_ratio * dim, kernel_init=self.mlp_init, name="mlp_in")(y)
        y = nn.Dense(dim, kernel_init=self.out_init, name="mlp_out")(self.activation(y))
        return x + (y if scale is None else y * scale[:, 1:, None])


def learned_positions(
    module: nn.Module, rows: int, columns: int, dim: int, init: Initializer
) -> Array:
    """Create the position embeddings [1 + rows * columns, dim] as a trained parameter.

    The first row belongs to the class token. The parameter gets its size from the first images.

    Raises:
        ValueError: if the grid is not square, or not the one that the parameter was made for.
    """
    count = rows * columns
    if module.has_variable("params", "positions"):
        count = module.get_variable("params", "positions").shape[0] - 1
    side = math.isqrt(count)
    # The parameter stores the number of patches only. That number determines the grid only if the
    # grid is square.
    if (rows, columns) != (side, side):
        raise ValueError(
            f"learned positions need a square grid, expected {side} x {side} patches, got {rows} x "
            f"{columns}; use square images of the size that the network was initialised with"
        )
    return module.param("positions", init, (1 + count, dim))
