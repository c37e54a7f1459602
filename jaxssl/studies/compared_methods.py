"""Config settings of each method that the studies compare."""

from jaxssl.studies.cells import Cell

PREDICTING = {"method.name": "momentum", "predictor.name": "mlp", "predictor.pred_hidden_dim": 512}
# Settings of the compared methods. All other settings come from the scale's config. The settings
# are the papers', except for AUC-CL, where the paper leaves constants open, and for the tuned
# SimCLR.
METHODS: dict[str, Cell] = {
    "simclr": {"loss.name": "nt_xent", "loss.temperature": 0.5},
    "simclr_tuned": {"loss.name": "nt_xent", "loss.temperature": 0.05},
    "dcl": {"loss.name": "dcl", "loss.temperature": 0.1},
    "sogclr": {"loss.name": "sogclr", "loss.temperature": 0.1},
    "moco_v3": {"method.name": "momentum", "predictor.name": "mlp", "loss.name": "info_nce"}
    | {"loss.temperature": 0.2},  # solo-learn's for CIFAR
    "auc_cl": {"loss.name": "auc_cl", "loss.preset": "recommended"},
    "auc_cl_sum": {"loss.name": "auc_cl", "loss.preset": "paper"},
    "decl": {"loss.name": "decl", "loss.preset": "simclr"},
    "mmcl": {"loss.name": "mmcl", "loss.preset": "stl10"},
    "mmcl_inv": {"loss.name": "mmcl", "loss.preset": "stl10", "loss.solver": "inv"},
    "tcl": {"loss.name": "tcl", "loss.preset": "self_supervised", "views": 3},
    # SimCLR with the embeddings of past batches as further negatives
    "xbm": {"loss.name": "nt_xent", "loss.temperature": 0.5, "method.queue_size": 4096},
    "nnclr": {**PREDICTING, "method.preset": "nnclr", "loss.name": "nnclr"},
    "byol": {**PREDICTING, "method.preset": "byol", "loss.name": "byol"},
    "simsiam": {**PREDICTING, "method.preset": "simsiam", "loss.name": "simsiam"}
    | {"head.proj_last_norm": "bn_fixed"},
    "barlow_twins": {"loss.name": "barlow_twins"},
    "vicreg": {"loss.name": "vicreg"},
    "lejepa": {"loss.name": "lejepa"},
    "dino": {"method.name": "momentum", "method.preset": "dino", "loss.name": "dino"}
    | {"head.name": "dino", "head.proj_hidden_dim": 512, "head.proj_output_dim": 4096},
    "sup_con": {"loss.name": "sup_con", "loss.temperature": 0.1, "method.labels": True},
    "tcl_labels": {"loss.name": "tcl", "loss.preset": "supervised_cifar10", "method.labels": True},
}
LABELLED = ("sup_con", "tcl_labels")
# Studies of all methods leave these out, unless --methods names them.
ON_REQUEST = (
    *("auc_cl_sum", "mmcl_inv", "xbm", "nnclr", "byol", "simsiam", "barlow_twins", "vicreg"),
    *("lejepa", "dino"),
)
