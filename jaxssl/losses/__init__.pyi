"""Signatures of `jaxssl.losses`, written by tests/losses/stub.py from the losses."""

from jax import Array

from jaxssl.losses.accumulate import accumulate as accumulate
from jaxssl.losses.arb import arb_loss as arb_loss
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
from jaxssl.losses.fastclip import fastclip_loss as fastclip_loss
from jaxssl.losses.gradients import global_value_and_grad as global_value_and_grad
from jaxssl.losses.graphcl import graphcl_loss as graphcl_loss
from jaxssl.losses.hcl import hcl_loss as hcl_loss
from jaxssl.losses.info_nce import info_nce_loss as info_nce_loss
from jaxssl.losses.lejepa import lejepa_loss as lejepa_loss
from jaxssl.losses.mmcl import MMCLInfo as MMCLInfo
from jaxssl.losses.mmcl import mmcl_info as mmcl_info
from jaxssl.losses.mmcl import mmcl_loss as mmcl_loss
from jaxssl.losses.mochi import mochi_loss as mochi_loss
from jaxssl.losses.nnclr import nnclr_loss as nnclr_loss
from jaxssl.losses.nt_xent import nt_xent_loss as nt_xent_loss
from jaxssl.losses.objective import Objective as Objective
from jaxssl.losses.objective import mean_over_anchors as mean_over_anchors
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

VIEWS: tuple[str, ...]
TOWERS: tuple[str, ...]

def arb(
    z1: Array,
    z2: Array,
    *,
    groups: int = 1,
    epsilon: float | Array = 1e-05,
    axis_name: str | None = None,
) -> Array: ...
def auc_cl(
    z1: Array,
    z2: Array,
    b: float | Array = 0.0,
    *,
    a: float | Array = 10.0,
    alpha: float | Array = 0.5,
    negative_weight: float | Array = 64.0,
    negative_reduction: str = "mean",
    similarity: str = "cosine",
    positive_margin: float | Array = 0.0,
    clip_positive: bool = False,
    count_positive_as_negative: bool = False,
    form: str = "auto",
    labels: Array | None = None,
    axis_name: str | None = None,
) -> Array: ...
def auc_dino(
    z1: Array,
    z2: Array,
    center: Array | None = None,
    *,
    a: float | Array = 10.0,
    b: float | Array = 0.0,
    alpha: float | Array = 1.0,
    negative_weight: float | Array = 32.0,
    student_temperature: float | Array = 0.1,
    teacher_temperature: float | Array = 0.04,
    labels: Array | None = None,
    axis_name: str | None = None,
) -> Array: ...
def barlow_twins(
    z1: Array,
    z2: Array,
    *,
    off_diagonal_weight: float | Array = 0.005,
    scale: float | Array = 1.0,
    epsilon: float | Array = 1e-05,
    axis_name: str | None = None,
) -> Array: ...
def byol(z1: Array, z2: Array, *, axis_name: str | None = None) -> Array: ...
def clip(
    z1: Array,
    z2: Array,
    logit_scale: float | Array = 2.659260036932778,
    *,
    max_scale: float | Array = 100.0,
    block_size: int | None = None,
    ring: bool = False,
    labels: Array | None = None,
    axis_name: str | None = None,
) -> Array: ...
def dcl(
    z1: Array,
    z2: Array,
    *,
    temperature: float | Array = 0.1,
    block_size: int | None = None,
    ring: bool = False,
    labels: Array | None = None,
    axis_name: str | None = None,
) -> Array: ...
def dclw(
    z1: Array,
    z2: Array,
    *,
    temperature: float | Array = 0.1,
    sigma: float | Array = 0.5,
    stop_weight_gradient: bool = True,
    block_size: int | None = None,
    ring: bool = False,
    labels: Array | None = None,
    axis_name: str | None = None,
) -> Array: ...
def debiased(
    z1: Array,
    z2: Array,
    *,
    temperature: float | Array = 0.5,
    positive_prior: float | Array = 0.1,
    labels: Array | None = None,
    axis_name: str | None = None,
) -> Array: ...
def decl(
    z1: Array,
    z2: Array,
    rate: Array | None = None,
    *,
    weight: float | Array = 1.0,
    temperature: float | Array = 0.5,
    similarity: str = "cosine",
    include_positive: bool = False,
    labels: Array | None = None,
    axis_name: str | None = None,
) -> Array: ...
def dino(
    z1: Array,
    z2: Array,
    center: Array | None = None,
    *,
    student_temperature: float | Array = 0.1,
    teacher_temperature: float | Array = 0.04,
    axis_name: str | None = None,
) -> Array: ...
def fastclip(
    z1: Array,
    z2: Array,
    log_u: Array | None = None,
    log_v: Array | None = None,
    *,
    temperature: float | Array = 0.03,
    gamma: float | Array = 0.2,
    labels: Array | None = None,
    axis_name: str | None = None,
) -> Array: ...
def graphcl(
    z1: Array,
    z2: Array,
    *,
    temperature: float | Array = 0.2,
    block_size: int | None = None,
    ring: bool = False,
    labels: Array | None = None,
    axis_name: str | None = None,
) -> Array: ...
def hcl(
    z1: Array,
    z2: Array,
    *,
    temperature: float | Array = 0.5,
    beta: float | Array = 1.0,
    positive_prior: float | Array = 0.1,
    labels: Array | None = None,
    axis_name: str | None = None,
) -> Array: ...
def info_nce(
    z1: Array,
    z2: Array,
    *,
    temperature: float | Array = 0.2,
    scale_by_temperature: bool = True,
    block_size: int | None = None,
    ring: bool = False,
    labels: Array | None = None,
    axis_name: str | None = None,
) -> Array: ...
def lejepa(
    z1: Array,
    z2: Array,
    directions: Array | None = None,
    *,
    weight: float | Array = 0.02,
    num_slices: int = 256,
    num_knots: int = 17,
    t_max: float = 3.0,
    axis_name: str | None = None,
) -> Array: ...
def mmcl(
    z1: Array,
    z2: Array,
    *,
    kernel: str = "rbf",
    gamma: float | Array = 0.1,
    eta: float | Array = 0.0,
    C: float | Array = 100.0,
    solver: str = "pgd",
    regularization: float | Array = 0.1,
    num_steps: int = 200,
    tol: float | None = None,
    step: float | Array | str | None = None,
    accelerated: bool = True,
    alpha_init: Array | str | None = None,
    labels: Array | None = None,
    axis_name: str | None = None,
) -> Array: ...
def mochi(
    z1: Array,
    z2: Array,
    draws: Array | None = None,
    *,
    temperature: float | Array = 0.2,
    weight: float | Array = 1.0,
    hardest: int = 1024,
    mixed: int = 512,
    mixed_with_anchor: int = 256,
    labels: Array | None = None,
    axis_name: str | None = None,
) -> Array: ...
def nnclr(
    z1: Array,
    z2: Array,
    support: Array | None = None,
    *,
    temperature: float | Array = 0.1,
    labels: Array | None = None,
    axis_name: str | None = None,
) -> Array: ...
def nt_xent(
    z1: Array,
    z2: Array,
    *,
    temperature: float | Array = 0.5,
    block_size: int | None = None,
    ring: bool = False,
    labels: Array | None = None,
    axis_name: str | None = None,
) -> Array: ...
def objective(name: str, /, **hyper: object) -> Objective: ...
def ressl(
    z1: Array,
    z2: Array,
    *,
    student_temperature: float | Array = 0.1,
    teacher_temperature: float | Array = 0.04,
    labels: Array | None = None,
    axis_name: str | None = None,
) -> Array: ...
def siglip(
    z1: Array,
    z2: Array,
    logit_scale: float | Array = 2.302585092994046,
    bias: float | Array = -10.0,
    *,
    labels: Array | None = None,
    axis_name: str | None = None,
) -> Array: ...
def simsiam(z1: Array, z2: Array, *, axis_name: str | None = None) -> Array: ...
def sogclr(
    z1: Array,
    z2: Array,
    log_u: Array | None = None,
    *,
    temperature: float | Array = 0.1,
    gamma: float | Array = 0.9,
    labels: Array | None = None,
    axis_name: str | None = None,
) -> Array: ...
def spectral(
    z1: Array,
    z2: Array,
    *,
    mu: float | Array = 1.0,
    labels: Array | None = None,
    axis_name: str | None = None,
) -> Array: ...
def sup_con(
    z1: Array,
    z2: Array,
    *,
    temperature: float | Array = 0.1,
    base_temperature: float | Array | None = None,
    block_size: int | None = None,
    ring: bool = False,
    labels: Array | None = None,
    axis_name: str | None = None,
) -> Array: ...
def swav(
    z1: Array,
    z2: Array,
    prototypes: Array,
    *,
    temperature: float | Array = 0.1,
    epsilon: float | Array = 0.05,
    num_iters: int = 3,
    axis_name: str | None = None,
) -> Array: ...
def tcl(
    z1: Array,
    z2: Array,
    *,
    temperature: float | Array = 0.2,
    k1: float | Array = 1.0,
    k2: float | Array = 1.5,
    block_size: int | None = None,
    ring: bool = False,
    labels: Array | None = None,
    axis_name: str | None = None,
) -> Array: ...
def vicreg(
    z1: Array,
    z2: Array,
    *,
    invariance_weight: float | Array = 25.0,
    variance_weight: float | Array = 25.0,
    covariance_weight: float | Array = 1.0,
    epsilon: float | Array = 0.0001,
    axis_name: str | None = None,
) -> Array: ...
def w_mse(
    z1: Array, z2: Array, *, epsilon: float | Array = 0.001, axis_name: str | None = None
) -> Array: ...
