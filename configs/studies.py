"""Settings of the studies by scale, without loss and method, which each study sets.

Command: jaxssl study NAME --scale SCALE
For images in a folder or an archive: --config.data.name=folder --config.data.path=PATH.
Notes: tiny, small and medium are our choice and the same for all methods, except the loss and the
settings that a method requires. No setting was chosen by accuracy. "paper" is Table 10 of AUC-CL,
with AdamW, a warm-up and a cosine. "paper_simclr" is Table 1 of DeCL, a ResNet-50 and Adam with a
constant rate from leftthomas/SimCLR. AUC-CL in Tables 9 and 11 has AdamW and another weight decay.
"""

from jaxssl.configs import auc_cl, base, decl, mmcl, tcl, tcl_supervised

SMALL = {
    "data": {"name": "cifar10", "train_split": "train[:20%]", "test_split": "test[:20%]"},
    "batch_size": 64,
    "epochs": 20,
    "augment": {"name": "simclr", "size": 32},
    "net": {"name": "convnet"},
    "head": {"proj_hidden_dim": 256},
    "optim": {"lr": 2e-3},
    "schedule": {"warmup_epochs": 1.0},
    "eval": {"every": 4.0},
}
# Splits of the data sets that --dataset names, where a scale takes the whole training set.
SPLITS = {"stl10": {"data.train_split": "train+unlabelled", "data.bank_split": "train"}}
LOSS = {"loss": {"name": "nt_xent"}}  # a placeholder, because each study sets its losses
TABLE_9 = {
    **auc_cl.SHARED,
    **auc_cl.VARIANTS["cifar10_table_9"],
    **LOSS,
    "eval": {"every": 10.0},
}

VARIANTS = {
    "tiny": {
        "about": "scikit-learn's digits, minutes on two CPU cores",
        "batch_size": 64,
        "epochs": 20,
        "log_every": 5,
        "augment": {"name": "digits"},
        "net": {"name": "convnet"},
        "head": {"proj_hidden_dim": 256},
        "optim": {"lr": 3e-3},
        "schedule": {"warmup_epochs": 1.0},
        "eval": {"every": 2.0},
    },
    "small": {**SMALL, "about": "a fifth of CIFAR-10, a small network, minutes a run"},
    "medium": {
        **SMALL,
        "about": "all of CIFAR-10, the settings of small, minutes a run",
        "data": {"name": "cifar10"},
        "log_every": 200,
    },
    "paper": {
        **auc_cl.SHARED,
        **auc_cl.VARIANTS["cifar10_table_10"],
        **LOSS,
        "about": "auc_cl:cifar10_table_10",
        "eval": {"every": 10.0},
    },
    "paper_alpha": {**TABLE_9, "about": "auc_cl:cifar10_table_9, 250 epochs", "epochs": 250},
    "paper_convergence": {  # Appendix A.3.3; Table 9 is there too
        **TABLE_9,
        "about": "auc_cl:cifar10_table_9, ResNet-18",
        "net": {"name": "resnet", "depth": 18, "stem": "cifar"},
    },
    "paper_simclr": {
        **decl.SHARED,
        **LOSS,
        "about": "decl:cifar10, batch size 128, 200 epochs",
        "batch_size": 128,
        "epochs": 200,
        "eval": {"every": 10.0},
    },
    # With --dataset cifar100, the studies of MMCL use the paper's schedule of gamma.
    "paper_mmcl": {**mmcl.VARIANTS["stl10_pgd"], **LOSS, "about": "mmcl:stl10_pgd"},
    "paper_mmcl_knn": {**mmcl.VARIANTS["stl10_table_6"], **LOSS, "about": "mmcl:stl10_table_6"},
    "paper_mmcl_time": {**mmcl.VARIANTS["imagenet_pgd"], **LOSS, "about": "mmcl:imagenet_pgd"},
    "paper_tcl": {  # TCL's Section 5.2, Appendix A.2: 128 views a batch, lr = 0.1, k1 = 5000
        **tcl_supervised.SHARED,
        **tcl_supervised.CIFAR100,
        **LOSS,
        "about": "tcl_supervised:cifar100, batch size 64, learning rate 0.1",
        "batch_size": 64,
        "optim": {**tcl_supervised.SHARED["optim"], "lr": 0.1},
    },
    "paper_tcl_views": {  # settings of Section 5.3 and Appendix A.3 of the TCL paper
        **tcl.SHARED,
        **tcl.VARIANTS["cifar10"],
        **LOSS,
        "about": "tcl:cifar10, two views",
        "views": 2,
    },
}

get_config = base.make_get_config(VARIANTS)
