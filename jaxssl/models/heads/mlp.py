"""MLP heads: projectors on top of a backbone, predictors on top of a projector."""

import flax.linen as nn
from jax import Array

from jaxssl.models._layers import batch_norm, exact_gelu, require_choice, require_min

NORMS = ("bn", "none")
# Maps proj_last_norm to BatchNorm options of the last layer. None means no BatchNorm.
LAST_NORMS: dict[str, dict[str, object] | None] = {
    "none": None,
    "bn": {},
    "bn_scale": {"use_bias": False},
    "bn_fixed": {"use_bias": False, "use_scale": False},
}
ACTIVATIONS = {"relu": nn.relu, "gelu": exact_gelu}


class MLP(nn.Module):
    """MLP head: (layers - 1) times Dense, norm and activation, then Dense and a last norm.

    Dense layers before a BatchNorm have no bias, because the norm would remove it.

    See `head` for the attributes, which have the prefix ``proj_`` there. An ``output_dim`` of 0
    stands for the input dimension.
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
        """Map features [n, f] to embeddings [n, d]."""
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
    """Build an MLP projector, by default with SimCLR's two layers and BatchNorm between them.

    Settings of published methods:

    ====================  ======  ======  ======  ====  =========
    method                hidden  output  layers  norm  last norm
    ====================  ======  ======  ======  ====  =========
    SwAV                  2048    128     2       bn    none
    SimCLR (its code)     2048    128     2       bn    bn_scale
    BYOL                  4096    256     2       bn    none
    MoCo-v3 (ViT)         4096    256     3       bn    bn_fixed
    SimSiam               2048    2048    3       bn    bn_fixed
    Barlow Twins, VICReg  8192    8192    3       bn    none
    TCL (ResNet-18)       512     128     2       none  none
    MMCL (ImageNet)       2048    128     2       bn    bn_scale
    ====================  ======  ======  ======  ====  =========

    SimCLR's paper has no BatchNorm in the projector.

    Args:
        proj_hidden_dim: width of the hidden layers, >= 1.
        proj_output_dim: d, embedding dimension, >= 1.
        proj_layers: number of Dense layers, >= 0. With 0, the embeddings are the features and
            have no norm.
        proj_norm: norm of the hidden layers, "bn" or "none".
        proj_last_norm: norm of the output: "none", "bn", "bn_scale" (without shift) or "bn_fixed"
            (without scale and shift).
        proj_last_bias: whether the last Dense layer has a bias, if no norm follows it.
        proj_activation: "relu" or "gelu".

    Raises:
        ValueError: if a setting is out of range.

    References:
        Chen et al., A Simple Framework for Contrastive Learning of Visual Representations, 2020.
    """
    require_min(1, "head.proj_", output_dim=proj_output_dim)
    sizes = (proj_hidden_dim, proj_output_dim, proj_layers)
    module = MLP(*sizes, proj_norm, proj_last_norm, proj_last_bias, proj_activation)
    _check(module, "head.proj_")
    return module


def predictor(
    *,
    pred_hidden_dim: int = 4096,
    pred_layers: int = 2,
    pred_norm: str = "bn",
    pred_last_norm: str = "none",
) -> nn.Module:
    """Build an MLP predictor, by default BYOL's, with as many outputs as inputs.

    MoCo-v3 uses ``pred_last_norm="bn_fixed"``, SimSiam ``pred_hidden_dim=512``.

    Args:
        pred_hidden_dim: width of the hidden layers, >= 1.
        pred_layers: number of Dense layers, >= 0. With 0, the predictions are the projections,
            without a norm.
        pred_norm: norm of the hidden layers, "bn" or "none".
        pred_last_norm: norm of the output: "none", "bn", "bn_scale" or "bn_fixed", as in `head`.

    Raises:
        ValueError: if a setting is out of range.

    References:
        Grill et al., Bootstrap Your Own Latent, 2020.
    """
    module = MLP(pred_hidden_dim, 0, pred_layers, pred_norm, pred_last_norm)
    _check(module, "predictor.pred_")
    return module


def _check(module: MLP, prefix: str) -> None:
    """Raise ValueError for an invalid setting. ``prefix`` precedes its name in the message."""
    require_min(1, prefix, hidden_dim=module.hidden_dim)
    require_min(0, prefix, layers=module.layers)
    require_choice(NORMS, prefix, norm=module.norm)
    require_choice(LAST_NORMS, prefix, last_norm=module.last_norm)
    require_choice(ACTIVATIONS, prefix, activation=module.activation)
