"""Contrastive and non-contrastive losses, one per file.

`foo(z1, z2, *, labels=None, axis_name=None, **hyper) -> scalar` takes two [b, d] arrays, and
`foo_loss(pairs, **hyper) -> [n]` takes `Pairs` and returns one number per anchor:

    from jaxssl import losses

    loss = losses.nt_xent(z1, z2, temperature=0.5)
    loss = losses.tcl(z1, z2, labels=y, temperature=0.1, k1=4000.0, k2=1.0)

    loss = losses.nt_xent_loss(losses.pair_views([z1, z2, z3]), temperature=0.5).mean()

Each file also defines `objective`, which returns an `Objective` for a trainer. PRESETS holds the
settings of papers and released code: `from jaxssl.losses.tcl import PRESETS`. as PRESETS`.
"""

from jaxssl.losses.accumulate import accumulate as accumulate
from jaxssl.losses.auc_cl import auc_cl_loss as auc_cl_loss
from jaxssl.losses.auc_dino import auc_dino_loss as auc_dino_loss
from jaxssl.losses.barlow_twins import barlow_twins_loss as barlow_twins_loss
from jaxssl.losses.byol import byol_loss as byol_loss
from jaxssl.losses.clip import clip_loss as clip_loss
from jaxssl.losses.cross_entropy import cross_entropy_loss as cross_entropy_loss
from jaxssl.losses.dcl import dcl_loss as dcl_loss
from jaxssl.losses.dclw import dclw_loss as dclw_loss
from jaxssl.losses.debiased import debiased_loss as debiased_loss
from jaxssl.losses.decl import decl_loss as decl_loss
from jaxssl.losses.dino import dino_loss as dino_loss
from jaxssl.losses.graphcl import graphcl_loss as graphcl_loss
from jaxssl.losses.hcl import hcl_loss as hcl_loss
from jaxssl.losses.info_nce import info_nce_loss as info_nce_loss
from jaxssl.losses.mmcl import MMCLInfo as MMCLInfo
from jaxssl.losses.mmcl import mmcl_info as mmcl_info
from jaxssl.losses.mmcl import mmcl_loss as mmcl_loss
from jaxssl.losses.nnclr import nnclr_loss as nnclr_loss
from jaxssl.losses.nt_xent import nt_xent_loss as nt_xent_loss
from jaxssl.losses.objective import Objective as Objective
from jaxssl.losses.objective import on_arrays
from jaxssl.losses.pairs import Pairs as Pairs
from jaxssl.losses.pairs import pair_towers as pair_towers
from jaxssl.losses.pairs import pair_views as pair_views
from jaxssl.losses.ressl import ressl_loss as ressl_loss
from jaxssl.losses.siglip import siglip_loss as siglip_loss
from jaxssl.losses.simsiam import simsiam_loss as simsiam_loss
from jaxssl.losses.sogclr import sogclr_loss as sogclr_loss
from jaxssl.losses.spectral import spectral_loss as spectral_loss
from jaxssl.losses.sup_con import sup_con_loss as sup_con_loss
from jaxssl.losses.swav import sinkhorn as sinkhorn
from jaxssl.losses.swav import swav_loss as swav_loss
from jaxssl.losses.tcl import tcl_gradients as tcl_gradients
from jaxssl.losses.tcl import tcl_loss as tcl_loss
from jaxssl.losses.vicreg import vicreg_loss as vicreg_loss
from jaxssl.losses.w_mse import w_mse_loss as w_mse_loss

# These losses are made for small batches.
# the squared AUC surrogate of AUC-CL with a trained target b
auc_cl = on_arrays(auc_cl_loss, pair_views)
mmcl = on_arrays(mmcl_loss, pair_views)  # MMCL: an SVM for every anchor, solved inside the loss
# DeCL: the log of a sum over negatives becomes a sum, by Gamma variables
decl = on_arrays(decl_loss, pair_views)
tcl = on_arrays(tcl_loss, pair_views)  # TCL: SupCon with tuned gradients

# These losses are softmax cross-entropies over candidates.
nt_xent = on_arrays(nt_xent_loss, pair_views)  # SimCLR's loss
sup_con = on_arrays(sup_con_loss, pair_views)  # SupCon: SimCLR's loss with class labels
info_nce = on_arrays(info_nce_loss, pair_towers)  # the loss of MoCo-v2 and MoCo-v3
# CLIP: image to caption and caption to image, with a learned scale
clip = on_arrays(clip_loss, pair_towers)
nnclr = on_arrays(nnclr_loss, pair_towers)  # NNCLR: nearest neighbours replace the positives
ressl = on_arrays(ressl_loss, pair_towers)  # ReSSL: match the similarities to other examples

# These losses drop the positive from the denominator, or correct the negatives.
dcl = on_arrays(dcl_loss, pair_views)
dclw = on_arrays(dclw_loss, pair_views)
graphcl = on_arrays(graphcl_loss, pair_towers)
debiased = on_arrays(debiased_loss, pair_views)
hcl = on_arrays(hcl_loss, pair_views)
# SogCLR and iSogCLR: a moving average of the denominator for every example
sogclr = on_arrays(sogclr_loss, pair_views)

# These losses sum one term per pair of embeddings.
siglip = on_arrays(siglip_loss, pair_towers)
spectral = on_arrays(spectral_loss, pair_towers)

# These losses use no negatives.
byol = on_arrays(byol_loss, pair_towers)
simsiam = on_arrays(simsiam_loss, pair_towers)
barlow_twins = on_arrays(barlow_twins_loss, pair_towers)
vicreg = on_arrays(vicreg_loss, pair_towers)
w_mse = on_arrays(w_mse_loss, pair_towers)

# These losses compare probabilities over prototypes or teacher outputs.
swav = on_arrays(swav_loss, pair_views)
dino = on_arrays(dino_loss, pair_towers)
auc_dino = on_arrays(auc_dino_loss, pair_towers)  # the loss of AUC-CL's released ImageNet code
