"""Transformer block and learned position embeddings, for the vision and text transformers."""

import math
from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
from jax import Array
from jax import numpy as jnp

from jaxssl.models._layers import attend, exact_gelu, layer_norm

Initializer = nn.initializers.Initializer
# Activations of an MLP by their name in a config.
ACTIVATIONS = {
    "gelu": exact_gelu,
    "gelu_tanh": jax.nn.gelu,
    "quick_gelu": lambda x: x * nn.sigmoid(1.702 * x),
}


class Inits(NamedTuple):
    """Initialisers of the kernels in a transformer block.

    Attributes:
        qkv: of the kernel that computes queries, keys and values.
        mlp_in: of the first kernel of the MLP.
        out: of the last kernel of the attention, and of the MLP.
    """

    qkv: Initializer
    mlp_in: Initializer
    out: Initializer


class Block(nn.Module):
    """Pre-norm transformer block: self-attention and an MLP, each with a shortcut.

    Attributes:
        heads: number of attention heads; must divide the token dimension.
        inits: initialisers of the kernels.
        mlp_dim: hidden width of the MLP, by default four times the token dimension.
        activation: activation of the MLP, from `ACTIVATIONS`, or "swiglu": silu(a) * b for the
            two halves a and b of the first layer (Shazeer, GLU Variants Improve Transformer, 2020).
        layer_scale: whether both branches are multiplied by a learned vector, which starts at 1e-5
            (LayerScale; Touvron et al., Going Deeper with Image Transformers, 2021).
        epsilon: added to the variance in both LayerNorms.
        causal: whether a token attends only to itself and earlier tokens.
    """

    heads: int
    inits: Inits
    mlp_dim: int | None = None
    activation: str = "gelu"
    layer_scale: bool = False
    epsilon: float = 1e-6
    causal: bool = False

    @nn.compact
    def __call__(
        self, x: Array, scale: Array | None = None, rotation: Array | None = None
    ) -> Array:
        """Apply the transformer block to tokens [n, t, dim], with an unchanged shape.

        Args:
            x: tokens [n, t, dim].
            scale: factors [n, 2] on the attention and MLP branches (stochastic depth), or None.
            rotation: angles of queries and keys for `rotate`, or None.
        """
        n, t, dim = x.shape
        y = layer_norm(x, self.epsilon)
        qkv = nn.Dense(3 * dim, kernel_init=self.inits.qkv, name="qkv")(y)
        q, k, v = jnp.moveaxis(qkv.reshape(n, t, 3, self.heads, dim // self.heads), 2, 0)
        if rotation is not None:
            q, k = rotate(q, rotation), rotate(k, rotation)
        y = attend(q, k, v, causal=self.causal).reshape(n, t, dim)
        y = nn.Dense(dim, kernel_init=self.inits.out, name="attention_out")(y)
        x = x + self._scaled("attention_scale", y, None if scale is None else scale[:, :1, None])
        y = layer_norm(x, self.epsilon)
        width = self.mlp_dim or 4 * dim
        y = mlp(y, width, self.activation, self.inits.mlp_in, self.inits.out)
        return x + self._scaled("mlp_scale", y, None if scale is None else scale[:, 1:, None])

    def _scaled(self, name: str, y: Array, scale: Array | None) -> Array:
        """Multiply a branch by the learned vector ``name`` and by ``scale`` [n, 1, 1], if any."""
        if self.layer_scale:
            y = y * self.param(name, nn.initializers.constant(1e-5), y.shape[-1:])[None, None]
        return y if scale is None else y * scale


def mlp(
    x: Array,
    width: int,
    activation: str,
    in_init: Initializer,
    out_init: Initializer,
    norm: Callable[[Array], Array] | None = None,
) -> Array:
    """Apply an MLP with one hidden layer, whose parameters belong to the calling module.

    Args:
        x: [..., dim].
        width: of the hidden layer.
        activation: of the hidden layer, see `Block`.
        in_init: initialiser of the first kernel.
        out_init: initialiser of the last kernel.
        norm: applied to the hidden layer after its activation, or None.

    Returns:
        [..., dim].
    """
    gated = activation == "swiglu"
    y = nn.Dense(2 * width if gated else width, kernel_init=in_init, name="mlp_in")(x)
    if gated:
        gate, y = jnp.split(y, 2, axis=-1)
        y = nn.silu(gate) * y
    else:
        y = ACTIVATIONS[activation](y)
    y = y if norm is None else norm(y)
    return nn.Dense(x.shape[-1], kernel_init=out_init, name="mlp_out")(y)


def rotate(x: Array, angles: Array) -> Array:
    """Rotate the channels of the last tokens by angles (RoPE, Su et al., RoFormer, 2021).

    Args:
        x: queries or keys [n, t, h, d].
        angles: [p, d / 2] of the last p tokens. Channel i is rotated together with i + d / 2.

    Returns:
        Array like ``x``. The first t - p tokens are unchanged.
    """
    first, last = jnp.split(x, [x.shape[1] - len(angles)], axis=1)
    cos = jnp.cos(angles).astype(x.dtype)[None, :, None]
    sin = jnp.sin(angles).astype(x.dtype)[None, :, None]
    a, b = jnp.split(last, 2, axis=-1)
    rotated = jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
    return jnp.concatenate([first, rotated], axis=1)


def learned_positions(
    module: nn.Module, rows: int, columns: int, dim: int, init: Initializer, tokens: int = 1
) -> Array:
    """Create position embeddings as the parameter "positions" of a module, or return them.

    Args:
        module: the calling module, in an `nn.compact` method.
        rows: rows of the grid of patches.
        columns: columns of the grid of patches.
        dim: dimension of an embedding.
        init: initialiser of the parameter.
        tokens: number of class tokens, whose positions come first.

    Returns:
        [tokens + rows * columns, dim].

    Raises:
        ValueError: if the grid is not square, or not the one that the parameter was made for.
    """
    count = rows * columns
    if module.has_variable("params", "positions"):
        count = module.get_variable("params", "positions").shape[0] - tokens
    side = math.isqrt(count)
    # The parameter stores the number of patches only. That number determines the grid only if the
    # grid is square.
    if (rows, columns) != (side, side):
        raise ValueError(
            f"learned positions need a square grid, expected {side} x {side} patches, got {rows} x "
            f"{columns}; use square images of the size that the network was initialised with"
        )
    return module.param("positions", init, (tokens + count, dim))
