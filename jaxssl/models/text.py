"""CLIP's text transformer: causal attention, with the feature at the end-of-text token.

References:
    Radford et al., Learning Transferable Visual Models From Natural Language Supervision, 2021,
    section 2.4. Ilharco et al., OpenCLIP, 2021. Details left open follow the released code.
"""

import flax.linen as nn
from jax import Array
from jax import numpy as jnp

from jaxssl.models._layers import layer_norm, require_choice, require_min
from jaxssl.models._transformer import ACTIVATIONS, Block, Inits

EXAMPLES = "captions"
# CLIP uses this LayerNorm epsilon. It is 2 % of the initial variance of embeddings, 5e-4, so public
# weights need exactly this value.
EPSILON = 1e-5


class TextTransformer(nn.Module):
    """CLIP's text transformer: token and position embeddings, then causal transformer blocks.

    See `net` for the attributes.
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
        """Map texts [n, length] of token ids to features [n, dim].

        Args:
            tokens: integers >= 0, 1 <= length <= context. The end-of-text token is the largest one,
                and tokens after its first occurrence have no effect. A token outside the
                vocabulary makes the features of its text NaN.
            train: not used.
            axis_name: not used.
            keys: not used.

        Returns:
            [n, dim] in the dtype of the parameters: the output at the end-of-text token.

        Raises:
            ValueError: if the texts are longer than the context.
        """
        _, length = tokens.shape
        if length > self.context:
            raise ValueError(
                f"texts must have at most text.context={self.context} tokens, got {length}"
            )
        normal = nn.initializers.normal
        table = self.param("embedding", normal(0.02), (self.vocabulary, self.dim))
        positions = self.param("positions", normal(0.01), (self.context, self.dim))
        x = jnp.take(table, tokens, axis=0) + positions[None, :length]
        # To rematerialise the class would rename the parameters, so the call is rematerialised.
        run = nn.remat(Block.__call__) if self.remat else Block.__call__
        qkv_init, mlp_init = normal(self.dim**-0.5), normal((2 * self.dim) ** -0.5)
        # The released code scales by ``dim`` even where the fan-in is 4 dim. The division by the
        # number of residual branches, 2 layers, keeps the variance of their sum the same at every
        # depth.
        out_init = normal((self.dim * 2 * self.layers) ** -0.5)
        inits = Inits(qkv_init, mlp_init, out_init)
        for _ in range(self.layers):
            block = Block(
                self.heads, inits, activation=self.activation, epsilon=EPSILON, causal=True
            )
            x = run(block, x)
        end = jnp.argmax(tokens, axis=1)
        x = jnp.take_along_axis(x, end[:, None, None], axis=1)[:, 0]
        return layer_norm(x, EPSILON)


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
    """Build a text transformer, by default CLIP's ViT-B/32 text network without its projection.

    It has V d + t d + L (12 d^2 + 13 d) + 2 d parameters, with vocabulary V, context t, dimension d
    and L layers.

    Args:
        vocabulary: number of tokens in the vocabulary, >= 1 (49 408 in CLIP).
        context: largest number of tokens of a text, >= 1 (CLIP: 77). Compute grows with the length
            of the texts passed in, so short texts may be cut to save time.
        dim: dimension of tokens and features, >= 1, a multiple of ``num_heads``; 640 with RN50x4.
        layers: number of blocks, >= 1.
        num_heads: number of attention heads, >= 1. CLIP's heads have dimension 64.
        activation: "quick_gelu", x sigmoid(1.702 x), as in OpenAI's models, "gelu", the exact
            one, as in OpenCLIP, or "gelu_tanh", its approximation, as in SigLIP.
        remat: whether to store only the input of each block and recompute the block in the backward
            pass.

    Raises:
        ValueError: if a setting is out of range.

    References:
        Radford et al., 2021, section 2.4 and table 20. Kernels, embeddings and positions are
        initialised as in the released code. The MLP biases start at 0, where that code draws them.
    """
    require_choice(ACTIVATIONS, "text.", activation=activation)
    sizes = {"vocabulary": vocabulary, "context": context, "dim": dim, "layers": layers}
    require_min(1, "text.", **sizes, num_heads=num_heads)
    if dim % num_heads:
        raise ValueError(f"text.dim must be a multiple of text.num_heads={num_heads}, got {dim}")
    return TextTransformer(vocabulary, context, dim, layers, num_heads, activation, remat)
