"""CLIP's text transformer: causal attention over byte-pair tokens, read at the end of the text.

References:
    Radford et al., Learning Transferable Visual Models From Natural Language Supervision, 2021,
    section 2.4; Ilharco et al., OpenCLIP, 2021. What the paper leaves open is the released code's.
"""

from functools import partial

import flax.linen as nn
from jax import Array
from jax import numpy as jnp

from jaxssl.models import _norms as norms
from jaxssl.models._attention import attend

EXAMPLES = "text"
# CLIP's epsilon is 1e-5. Tokens start with a variance of 5e-4, of which it is 2 %: public weights
# need their own.
layer_norm = partial(norms.layer_norm, epsilon=1e-5)
ACTIVATIONS = {
    "quick_gelu": lambda x: x * nn.sigmoid(1.702 * x),
    "gelu": lambda x: nn.gelu(x, approximate=False),
}


class Block(nn.Module):
    """Causal self-attention and a perceptron, each after a LayerNorm and added to its input.

    Attributes:
        heads: of the attention; they divide the size of a token.
        layers: how many blocks the network has; the more, the less each adds at the start.
        activation: of the perceptron, one of `ACTIVATIONS`.
    """

    heads: int
    layers: int
    activation: str

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Tokens [n, t, dim] to tokens, each of which sees itself and those before it."""
        n, t, dim = x.shape
        usual = nn.initializers.normal(dim**-0.5)
        # As in the released code, by the width even where the fan-in is four times as wide; the
        # layers' number keeps the sum of the 2 L halves that add to a token at one size.
        adds = nn.initializers.normal((dim * 2 * self.layers) ** -0.5)
        widens = nn.initializers.normal((2 * dim) ** -0.5)
        qkv = nn.Dense(3 * dim, kernel_init=usual, name="qkv")(layer_norm(x))
        q, k, v = jnp.moveaxis(qkv.reshape(n, t, 3, self.heads, dim // self.heads), 2, 0)
        y = attend(q, k, v, causal=True).reshape(n, t, dim)
        x = x + nn.Dense(dim, kernel_init=adds, name="attention_out")(y)
        y = nn.Dense(4 * dim, kernel_init=widens, name="mlp_in")(layer_norm(x))
        y = ACTIVATIONS[self.activation](y)
        return x + nn.Dense(dim, kernel_init=adds, name="mlp_out")(y)


class TextTransformer(nn.Module):
    """Embedded tokens and learned positions through blocks of causal self-attention.

    Attributes:
        vocabulary: how many tokens there are.
        context: how many tokens a text may have.
        dim: size of a token's embedding and of the features.
        layers: how many blocks.
        heads: of each block's attention.
        activation: of the perceptrons, one of `ACTIVATIONS`.
        remat: whether the backward pass computes each block anew from its input.
    """

    vocabulary: int
    context: int
    dim: int
    layers: int
    heads: int
    activation: str = "quick_gelu"
    remat: bool = False

    @nn.compact
    def __call__(
        self, tokens: Array, *, train: bool, axis_name: str | None = None, keys: Array | None = None
    ) -> Array:
        """Texts [n, length] to features [n, dim], of the first of each text's largest tokens.

        Args:
            tokens: integers in [0, vocabulary), 1 <= length <= context. The end-of-text token is
                the largest; what comes after it changes nothing. A larger one makes its text's
                feature NaN.
            train: not used, as ``axis_name`` and ``keys``: nothing is normalised over the batch or
                dropped.
            axis_name: not used.
            keys: not used.

        Returns:
            [n, dim] in the parameters' dtype.

        Raises:
            ValueError: if the texts are longer than the context.
        """
        del train, axis_name, keys
        _, length = tokens.shape
        if length > self.context:
            raise ValueError(
                f"texts have at most {self.context} tokens (text.context), got {length}"
            )
        table = self.param("embedding", nn.initializers.normal(0.02), (self.vocabulary, self.dim))
        positions = self.param("positions", nn.initializers.normal(0.01), (self.context, self.dim))
        x = jnp.take(table, tokens, axis=0) + positions[None, :length]
        # Of the call, not of the class: a class would give the parameters another name.
        run = nn.remat(Block.__call__) if self.remat else Block.__call__
        for _ in range(self.layers):
            x = run(Block(self.heads, self.layers, self.activation), x)
        end = jnp.argmax(tokens, axis=1)
        return layer_norm(jnp.take_along_axis(x, end[:, None, None], axis=1)[:, 0])


def net(
    *,
    vocabulary: int = 49408,
    context: int = 77,
    dim: int = 512,
    layers: int = 12,
    num_heads: int = 8,
    activation: str = "quick_gelu",
    remat: bool = False,
) -> nn.Module:
    """A `TextTransformer`; the defaults are the text half of CLIP's ViT-B/32 without projection.

    Parameters: V d + t d + L (12 d^2 + 13 d) + 2 d, for a vocabulary V, context t, dim d and L
    layers.

    Args:
        vocabulary: how many tokens there are, >= 1; 49 408 in CLIP.
        context: the most tokens that a text may have, >= 1; 77 in CLIP. The network's work grows
            with the texts' own length, so short texts may be cut.
        dim: of tokens and features, >= 1, a multiple of the heads; 640 beside RN50x4.
        layers: how many blocks, >= 1.
        num_heads: of the attention; CLIP's have 64 entries each.
        activation: of the perceptrons: "quick_gelu", x sigmoid(1.702 x), OpenAI's, or "gelu", the
            exact one, OpenCLIP's.
        remat: keep of each block only its input, and compute the block once more in the backward
            pass, as for a ViT. Parameters, values and gradients are the same.

    Raises:
        ValueError: on a value out of its range.

    References:
        Radford et al., 2021, section 2.4 and table 20. Kernels, embeddings and positions start as
        in the released code; the perceptrons' biases start at 0, there uniform as PyTorch's.
    """
    if activation not in ACTIVATIONS:
        raise ValueError(f"net.activation must be one of {tuple(ACTIVATIONS)}, got {activation!r}")
    given = {"vocabulary": vocabulary, "context": context, "dim": dim, "layers": layers}
    for name, value in (given | {"num_heads": num_heads}).items():
        if value < 1:
            raise ValueError(f"net.{name} must be >= 1, got {value}")
    if dim % num_heads:
        raise ValueError(f"text.dim must be a multiple of text.num_heads {num_heads}, got {dim}")
    return TextTransformer(vocabulary, context, dim, layers, num_heads, activation, remat)
