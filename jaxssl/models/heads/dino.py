"""DINO's projector: an MLP followed by inner products with prototypes."""

import flax.linen as nn
from jax import Array

from jaxssl.losses.pairs import unit
from jaxssl.models._layers import TORCH_KERNEL_INIT, exact_gelu, require_min


class DinoHead(nn.Module):
    """DINO's projector: an MLP with normalised output, scored against unit-length prototypes.

    See `head` for the attributes. All but ``norm_last_layer`` have the prefix ``proj_`` there.
    """

    hidden_dim: int
    bottleneck_dim: int
    output_dim: int
    layers: int
    norm_last_layer: bool

    @nn.compact
    def __call__(self, x: Array, *, train: bool, axis_name: str | None = None) -> Array:
        """Map features [n, f] to prototype scores [n, d]. Training and evaluation do not differ."""
        # The released code truncates this normal at 2, which is 100 standard deviations.
        init = nn.initializers.normal(0.02)
        for _ in range(self.layers - 1):
            x = exact_gelu(nn.Dense(self.hidden_dim, kernel_init=init)(x))
        x = nn.Dense(self.bottleneck_dim, kernel_init=init)(x)
        # Prototypes start as PyTorch's default, as in the released code. Their length does not
        # change the scores, but longer prototypes turn more slowly in training.
        shape = (self.bottleneck_dim, self.output_dim)
        kernel = self.param("prototypes", TORCH_KERNEL_INIT, shape)
        scores = unit(x).astype(x.dtype) @ unit(kernel.T).astype(kernel.dtype).T
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
    """Build DINO's projector: GELU activations, no BatchNorm, scores for prototypes.

    Args:
        proj_hidden_dim: width of the hidden layers, >= 1.
        proj_bottleneck_dim: dimension of the normalised vector before the prototypes, >= 1.
        proj_output_dim: d, number of prototypes, >= 1.
        proj_layers: Dense layers before the prototypes, >= 1.
        norm_last_layer: whether prototypes have length 1, so that scores are cosines; otherwise
            each prototype has a trained length, initialised with 1.

    Raises:
        ValueError: if a setting is out of range.

    References:
        Caron et al., Emerging Properties in Self-Supervised Vision Transformers, 2021.
    """
    require_min(1, "head.proj_", hidden_dim=proj_hidden_dim, output_dim=proj_output_dim)
    require_min(1, "head.proj_", bottleneck_dim=proj_bottleneck_dim, layers=proj_layers)
    return DinoHead(
        proj_hidden_dim, proj_bottleneck_dim, proj_output_dim, proj_layers, norm_last_layer
    )
