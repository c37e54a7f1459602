"""The config settings of each method that the studies compare."""

from jaxssl.studies.cells import Cell

MOMENTUM = {"method.name": "momentum", "predictor.name": "mlp"}
DECL = {"loss.name": "decl", "loss.preset": "simclr"}
TCL = {"loss.name": "tcl", "loss.preset": "self_supervised", "views": 3}
VICREG = {"loss.name": "vicreg"}
DINO_HEAD = {"head.name": "dino", "head.proj_hidden_dim": 512, "head.proj_output_dim": 4096}


def _predicting(name: str) -> Cell:
    """Return the settings of a method with a predictor. Its preset and its loss have its name."""
    width = {"predictor.pred_hidden_dim": 512}
    return {**MOMENTUM, **width, "method.preset": name, "loss.name": name}


# The settings are the papers', except for AUC-CL, whose paper leaves constants open, and for names
# with "tuned", whose constants the study `tuning` chose. All others come from the scale's config.
METHODS: dict[str, Cell] = {
    "simclr": {"loss.name": "nt_xent", "loss.temperature": 0.5},
    "simclr_tuned": {"loss.name": "nt_xent", "loss.temperature": 0.05},
    "simclr_t01": {"loss.name": "nt_xent", "loss.temperature": 0.1},
    "dcl": {"loss.name": "dcl", "loss.temperature": 0.1},
    "sogclr": {"loss.name": "sogclr", "loss.temperature": 0.1},
    # The temperature is solo-learn's for CIFAR.
    "moco_v3": {**MOMENTUM, "loss.name": "info_nce", "loss.temperature": 0.2},
    "auc_cl": {"loss.name": "auc_cl", "loss.preset": "recommended"},
    "auc_cl_sum": {"loss.name": "auc_cl", "loss.preset": "paper"},
    "decl": DECL,
    "decl_tuned": {**DECL, "loss.temperature": 0.2, "loss.weight": 1.0, "loss.u": "mean"},
    "mmcl": {"loss.name": "mmcl", "loss.preset": "stl10"},
    "mmcl_inv": {"loss.name": "mmcl", "loss.preset": "stl10", "loss.solver": "inv"},
    "tcl": TCL,
    "tcl_tuned": {**TCL, "loss.temperature": 0.1},
    # SimCLR with the embeddings of past batches as further negatives
    "xbm": {"loss.name": "nt_xent", "loss.temperature": 0.5, "method.queue_size": 4096},
    "nnclr": _predicting("nnclr"),
    "byol": _predicting("byol"),
    "simsiam": {**_predicting("simsiam"), "head.proj_last_norm": "bn_fixed"},
    "byol_tuned": {**_predicting("byol"), "method.momentum": 0.9, "predictor.pred_hidden_dim": 256},
    "barlow_twins": {"loss.name": "barlow_twins"},
    "barlow_twins_tuned": {"loss.name": "barlow_twins", "loss.off_diagonal_weight": 0.02},
    "vicreg": VICREG,
    "vicreg_tuned": {**VICREG, "loss.invariance_weight": 10.0, "loss.covariance_weight": 0.1},
    "lejepa": {"loss.name": "lejepa"},
    "dino": {**DINO_HEAD, "method.name": "momentum", "method.preset": "dino", "loss.name": "dino"},
    "sup_con": {"loss.name": "sup_con", "loss.temperature": 0.1, "method.labels": True},
    "tcl_labels": {"loss.name": "tcl", "loss.preset": "supervised_cifar10", "method.labels": True},
}
LABELLED = ("sup_con", "tcl_labels")
# Studies of all methods leave these out, unless --methods names them.
ON_REQUEST = tuple(
    "simclr_t01 auc_cl_sum decl_tuned mmcl_inv tcl_tuned xbm nnclr byol byol_tuned simsiam"
    " barlow_twins barlow_twins_tuned vicreg vicreg_tuned lejepa dino".split()
)
