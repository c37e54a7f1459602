"""The losses, one file each: `foo_loss(pairs, *, hyper-parameters) -> [n]`, float32, unreduced.

    from jaxssl.losses import nt_xent_loss
    from jaxssl.pairs import pair_views

    loss = nt_xent_loss(pair_views([z1, z2]), temperature=0.5).mean()

Each file also has its `objective`, what a trainer needs of the loss (`jaxssl.objective`).
"""

from jaxssl.losses.auc_cl import auc_cl_loss
from jaxssl.losses.nt_xent import nt_xent_loss

__all__ = [
    "auc_cl_loss",  # squared AUC surrogate with a trained negative target
    "nt_xent_loss",  # SimCLR's softmax loss; SupCon's L_out with labels
]
