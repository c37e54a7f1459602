"""Perceptrons: projectors on top of a backbone, predictors on top of a projector."""

import flax.linen as nn
from jax import Array

from jaxssl.models._norms import batch_norm
from jaxssl.models.heads._checks import require_at_least

NORMS = ("bn", "none")
# A last norm: the settings of its BatchNorm.
LAST_NORMS = {
    "none": None,
    "bn": {},
    "bn_scale": {"use_bias": False},
    "bn_fixed": {"use_bias": False, "use_scale": False},
}
ACTIVATIONS = {"relu": nn.relu, "gelu": lambda x: nn.gelu(x, approximate=False)}


class MLP(nn.Module):
    """[Dense, norm, activation] x (layers - 1), then Dense and the last norm.

    A Dense layer before a BatchNorm has no bias, which the norm would take away.

    Attributes:
        hidden_dim: width of the hidden layers.
        output_dim: d, the size of an embedding; 0 is that of what comes in.
        layers: how many Dense layers; 0 returns the features.
        norm: of the hidden layers, one of `NORMS`.
        last_norm: of the output, one of `LAST_NORMS`.
        last_bias: whether an output without a norm has a bias.
        activation: one of `ACTIVATIONS`.
    """

    hidden_dim: int
    output_dim: int
    layers: int
    norm: str = "bn"
    last_norm: str = "none"
    last_bias: bool = True
    activation: str = "relu"

    @nn.compact
    def __call__(self, x: Array, *, train: bool, axis_name: str | None = None) -> Array:
        """Features [n, f] to embeddings [n, d]."""
        if self.layers == 0:
            return x
        width = self.output_dim or x.shape[1]
        for _ in range(self.layers - 1):
            x = nn.Dense(self.hidden_dim, use_bias=self.norm == "none")(x)
            if self.norm == "bn":
                x = batch_norm(x, train=train, axis_name=axis_name)
            x = ACTIVATIONS[self.activation](x)
        last = LAST_NORMS[self.last_norm]
        x = nn.Dense(width, use_bias=self.last_bias and last is None)(x)
        return x if last is None else batch_norm(x, train=train, axis_name=axis_name, **last)


def head(
    *,
    proj_hidden_dim: int = 2048,
    proj_output_dim: int = 128,
    proj_layers: int = 2,
    proj_norm: str = "bn",
    proj_last_norm: str = "none",
    proj_last_bias: bool = True,
    proj_activation: str = "relu",
) -> nn.Module:
    """A projector: SimCLR's by default; the settings of others stand below.

    ====================  ======  ======  ======  ====  =========
    method                hidden  output  layers  norm  last norm
    ====================  ======  ======  ======  ====  =========
    SimCLR, SwAV          2048    128     2       bn    none
    BYOL                  4096    256     2       bn    none
    MoCo-v3 (ViT)         4096    256     3       bn    bn_fixed
    SimSiam               2048    2048    3       bn    bn_fixed
    Barlow Twins, VICReg  8192    8192    3       bn    none
    TCL (ResNet-18)       512     128     2       none  none
    MMCL (ImageNet)       2048    128     2       bn    bn_scale
    ====================  ======  ======  ======  ====  =========

    Args:
        proj_hidden_dim: width of the hidden layers, >= 1.
        proj_output_dim: d, the size of an embedding, >= 1.
        proj_layers: Dense layers, >= 0; 0 returns the features themselves.
        proj_norm: of the hidden layers, "bn" or "none".
        proj_last_norm: of the output: "none", "bn", "bn_scale" (no shift) or "bn_fixed" (neither
            scale nor shift).
        proj_last_bias: whether the last Dense layer has a bias, where no norm follows it.
        proj_activation: "relu" or "gelu".

    Raises:
        ValueError: on a value out of its range.

    References:
        Chen et al., A Simple Framework for Contrastive Learning of Visual Representations, 2020.
    """
    require_at_least(1, "proj_output_dim", proj_output_dim)
    sizes = (proj_hidden_dim, proj_output_dim, proj_layers)
    return _mlp("proj", sizes, proj_norm, proj_last_norm, proj_last_bias, proj_activation)


def predictor(
    *,
    pred_hidden_dim: int = 4096,
    pred_layers: int = 2,
    pred_norm: str = "bn",
    pred_last_norm: str = "none",
) -> nn.Module:
    """A predictor, as wide at its end as the embeddings it is given: BYOL's by default.

    MoCo-v3's ends with "bn_fixed"; SimSiam's has a hidden width of 512.

    Args:
        pred_hidden_dim: width of the hidden layers, >= 1.
        pred_layers: Dense layers, >= 0; 0 returns the projections themselves.
        pred_norm: of the hidden layers, "bn" or "none".
        pred_last_norm: of the output: "none", "bn", "bn_scale" or "bn_fixed", as in `head`.

    Raises:
        ValueError: on a value out of its range.

    References:
        Grill et al., Bootstrap Your Own Latent, 2020.
    """
    sizes = (pred_hidden_dim, 0, pred_layers)
    return _mlp("pred", sizes, pred_norm, pred_last_norm, True, "relu")


def _mlp(
    prefix: str,
    sizes: tuple[int, int, int],
    norm: str,
    last_norm: str,
    last_bias: bool,
    activation: str,
) -> MLP:
    hidden_dim, output_dim, layers = sizes
    require_at_least(1, f"{prefix}_hidden_dim", hidden_dim)
    require_at_least(0, f"{prefix}_layers", layers)
    for name, value, known in (
        ("norm", norm, NORMS),
        ("last_norm", last_norm, tuple(LAST_NORMS)),
        ("activation", activation, tuple(ACTIVATIONS)),
    ):
        if value not in known:
            raise ValueError(f"{prefix}_{name} must be one of {known}, got {value!r}")
    return MLP(hidden_dim, output_dim, layers, norm, last_norm, last_bias, activation)
