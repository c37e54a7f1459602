"""Heads: projectors on top of a backbone, and predictors on top of a projector.

`head.name` and `predictor.name` in a config name a file. A projector's file defines
``head(**hyper) -> nn.Module``, a predictor's file ``predictor(**hyper) -> nn.Module``.
"""

from jaxssl.models.heads.dino import DinoHead
from jaxssl.models.heads.dino import head as dino
from jaxssl.models.heads.mlp import MLP, predictor
from jaxssl.models.heads.mlp import head as mlp

__all__ = ["MLP", "DinoHead", "dino", "mlp", "predictor"]
