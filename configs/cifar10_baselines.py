"""Baselines on CIFAR-10 with a ResNet-18, with solo-learn's published settings.

Command: jaxssl train --config cifar10_baselines:VARIANT
Published, not run here: top-1 accuracy of solo-learn's online linear classifier (its README), after
1000 epochs at batch size 256, if a variant names no other source.
Notes: Here the linear probe is fitted on frozen features. The published classifier was trained
along with the encoder.
"""

from jaxssl.configs import base, imagenet_moco_v3

# SimCLR's settings, which the variants change.
SHARED = {
    "data": {"name": "cifar10"},
    "batch_size": 256,
    "epochs": 1000,
    "augment": {"name": "simclr", "size": 32, "blur": 0.5, **base.STRONG_JITTER},
    "net": {"name": "resnet", "depth": 18, "stem": "cifar"},
    "head": {"name": "mlp", "proj_hidden_dim": 2048, "proj_output_dim": 256},
    "loss": {"name": "nt_xent", "temperature": 0.2},
    "optim": {"name": "larc", "lr": 0.4, "lr_scaling": "linear", "weight_decay": 1e-4}
    | {"trust_coefficient": 0.02, "lars_clip": True},  # solo-learn's LARS
    "schedule": {"warmup_epochs": 10.0},
    "eval": {"every": 25.0, "protocols": ("linear:cifar_sgd", "linear", "knn")},  # our choice
}
ASYMMETRIC = {
    "augment": {"name": "simclr", "size": 32, "saturation": 0.2},
    "second_view": {"solarize": 0.2},
}
RISING = {"schedule": "cosine", "start": 0.99, "end": 1.0}
BYOL = {
    **ASYMMETRIC,
    "head": {"name": "mlp", "proj_hidden_dim": 4096, "proj_output_dim": 256},
    "predictor": {"name": "mlp", "pred_hidden_dim": 4096},
    "method": {"name": "momentum", "preset": "byol", "momentum": RISING},
    "loss": {"name": "byol"},
}
SGD = {"name": "sgd", "lars_clip": False, "decay_all": True}
ADAM = {"name": "adam", "weight_decay": 1e-6, "lars_clip": False, "decay_all": True}
# Optimiser and augmentation are our choice. The temperature is that of public codes.
DCL = {"epochs": 200, "loss": {"name": "dcl", "temperature": 0.1}}
HCL_CODE = {  # HCL's released code, where debiased contrastive learning is the case beta = 0
    "epochs": 400,
    "augment": {"name": "simclr", "size": 32, "blur": 0.5, "blur_kernel": 3},
    "net": {"name": "resnet", "depth": 50, "stem": "cifar"},
    "head": {"proj_hidden_dim": 512, "proj_output_dim": 128},
    "optim": {**ADAM, "lr": 1e-3, "lr_scaling": "none"},
    "schedule": {"name": "constant", "warmup_epochs": 0.0},
    "eval": {"protocols": ("linear:hcl_quirks", "linear", "knn")},
}
MOCO_V3 = {
    **BYOL,
    "head": {**BYOL["head"], "proj_last_norm": "bn_fixed"},
    "method": {**BYOL["method"], "preset": "moco_v3"},
    "loss": {"name": "info_nce", "temperature": 0.2},
    "optim": {"lr": 0.3, "weight_decay": 1e-6},
}

VARIANTS = {
    "simclr": {"about": "90.74 %. Chen et al., SimCLR, 2020", "head": {"proj_norm": "none"}},
    "byol": {
        **BYOL,
        "about": "92.58 %. Grill et al., Bootstrap Your Own Latent, 2020",
        "optim": {"lr": 1.0, "weight_decay": 1e-5},
    },
    "moco_v3": {**MOCO_V3, "about": "93.10 %. Chen, Xie and He, MoCo-v3, 2021"},
    "moco_v3_auc_cl": {  # replaces the loss of MoCo-v3
        **MOCO_V3,
        "about": "93.6 % linear, k-NN 87.6/87.2/86.1 (AUC-CL, Table 7; MoCo-v3 91.4)",
        "batch_size": 128,
        "epochs": 100,
        "loss": {"name": "auc_cl", "preset": "recommended"},
        "eval": imagenet_moco_v3.KNN_AND_LINEAR,
    },
    "moco_v2": {
        "about": "92.94 %. Chen et al., MoCo-v2, 2020, solo-learn's MoCo V2+: both directions",
        "augment": {"name": "simclr", "size": 32, "blur": 0.5},
        "head": {"proj_norm": "none"},
        "method": {"name": "momentum", "preset": "moco_v2", "symmetric": True, "average": True}
        | {"momentum": {"schedule": "cosine", "start": 0.99, "end": 0.999}}
        | {"queue_size": 32768},  # for both views; the published run has two queues of this length
        "loss": {"name": "info_nce", "preset": "moco_v2"},
        "optim": {**SGD, "lr": 0.3},
    },
    "simsiam": {
        "about": "90.51 %. Chen and He, SimSiam, 2021",
        "augment": {"name": "simclr", "size": 32, "blur": 0.5},
        "head": {"proj_output_dim": 2048, "proj_layers": 3, "proj_last_norm": "bn_fixed"},
        "predictor": {"name": "mlp", "pred_hidden_dim": 512},
        "method": {"name": "momentum", "preset": "simsiam"},
        "loss": {"name": "simsiam"},
        # The predictor's learning rate decays too. The published run may keep it constant.
        "optim": {**SGD, "lr": 0.5, "weight_decay": 1e-5},
    },
    "barlow_twins": {
        **ASYMMETRIC,
        "about": "92.10 %. Zbontar et al., Barlow Twins, 2021",
        "head": {"proj_output_dim": 2048, "proj_layers": 3},
        "loss": {"name": "barlow_twins", "preset": "solo_learn", "scale": 0.1},
        "optim": {"lr": 0.3},
    },
    # Rate and schedule match ARB's released code, which has batch size 32, 256 outputs, some blur
    # and a lower rate of biases and norms. 2048 outputs match TCL's thesis, Table 5.2.
    "arb": {
        **ASYMMETRIC,
        "about": "92.19 % (the authors' README). Zhang et al., ARB, 2022",
        "net": {"zero_init_residual": True},
        "head": {"proj_output_dim": 2048, "proj_layers": 3},
        "loss": {"name": "arb"},
        "optim": {"name": "lars", "lr": 0.3, "lars_clip": False},
        "schedule": {"end_factor": 1e-3},
    },
    "vicreg": {
        "about": "92.07 %. Bardes et al., VICReg, 2022",
        "augment": {**ASYMMETRIC["augment"], "crop_scale": (0.2, 1.0), "solarize": 0.1},
        "head": {"proj_output_dim": 2048, "proj_layers": 3},
        "loss": {"name": "vicreg", "preset": "solo_learn"},
        "optim": {"lr": 0.3},
    },
    "swav": {
        "about": "89.17 %. Caron et al., SwAV, 2020",
        "head": {"proj_output_dim": 128},
        # The published run has a queue of 3840 from epoch 50, and freezes prototypes for 2 epochs.
        "loss": {"name": "swav", "num_prototypes": 3000, "temperature": 0.1},
        "optim": {"lr": 0.6, "weight_decay": 1e-6},
    },
    "dino": {
        **ASYMMETRIC,
        "about": "89.52 %. Caron et al., DINO, 2021. We evaluate the teacher",
        # Prototypes are trained from the start. The published run freezes them for an epoch.
        "head": {"name": "dino", "proj_hidden_dim": 2048, "proj_output_dim": 4096},
        "method": {"name": "momentum", "preset": "dino", "momentum": {**RISING, "start": 0.9995}},
        "loss": {"name": "dino", "teacher_temperature": 0.07},
        "optim": {"lr": 0.3, "weight_decay": 1e-6},
    },
    "nnclr": {
        **ASYMMETRIC,
        "about": "91.88 %. Dwibedi et al., With a Little Help from My Friends, 2021",
        "head": {"proj_layers": 3, "proj_last_norm": "bn"},
        "predictor": {"name": "mlp", "pred_hidden_dim": 4096},
        "method": {"name": "momentum", "preset": "nnclr"},
        "loss": {"name": "nnclr", "temperature": 0.2, "support_size": 65536},
        "optim": {"weight_decay": 1e-5},
    },
    "ressl": {
        "about": "90.63 %. Zheng et al., ReSSL, 2021: strong views against weak ones",
        "augment": {**ASYMMETRIC["augment"], "blur": 0.5},
        "second_view": {"jitter": 0.0, "grayscale": 0.0, "blur": 0.0},
        "head": {"proj_hidden_dim": 4096, "proj_norm": "none"},
        "method": {**BYOL["method"], "preset": "ressl", "queue_size": 65536},
        "loss": {"name": "ressl"},
        "optim": {**SGD, "lr": 0.05},
    },
    "w_mse": {
        "about": "88.67 %. Ermolov et al., Whitening for Self-Supervised Learning, 2021",
        "augment": {"crop_scale": (0.2, 1.0), "blur": 0.0},
        "head": {"proj_hidden_dim": 1024, "proj_output_dim": 64},
        # The published run whitens random groups of 128 images, epsilon 0. Ours whitens the batch.
        "loss": {"name": "w_mse", "epsilon": 1e-3},  # our choice
        "optim": {**ADAM, "lr": 2e-3},
    },
    "dcl": {**DCL, "about": "85.3 % linear (AUC-CL, Table 10; 85.7 at batch 128)"},
    "dclw": {
        **DCL,
        "about": "No published result is known. Yeh et al., DCL, 2022, weighted positives",
        "loss": {"name": "dclw", "temperature": 0.1},
    },
    "debiased": {**HCL_CODE, "about": "No published result is known. Chuang et al., 2020"}
    | {"loss": {"name": "debiased", "temperature": 0.5}},
    "hcl": {**HCL_CODE, "about": "No published result is known. Robinson et al., HCL, 2021"}
    | {"loss": {"name": "hcl", "temperature": 0.5}},
    "spectral": {  # All settings but the loss are SimCLR's here.
        "about": "No published result is known. HaoChen et al., Spectral Contrastive Loss, 2021",
        "head": {"proj_norm": "none"},
        "loss": {"name": "spectral"},
    },
    "xbm": {  # All settings but the queue are SimCLR's here.
        "about": "No published result is known. Wang et al., Cross-Batch Memory, 2020",
        "head": {"proj_norm": "none"},
        "method": {"name": "siamese", "queue_size": 4096},
    },
    "sogclr": {  # LibAUC's tutorial on CIFAR-100. Data set and augmentation are our choice.
        "about": "No published result is known. Yuan et al., SogCLR, 2022",
        "epochs": 200,
        "augment": {"name": "simclr", "size": 32},
        "head": {"proj_last_norm": "bn_fixed"},
        "loss": {"name": "sogclr", "temperature": 0.5, "gamma": 0.9},
        "optim": {"name": "lars", "lr": 0.075, "lr_scaling": "sqrt", "weight_decay": 1e-6}
        | {"trust_coefficient": 1e-3, "lars_clip": False},
    },
}

get_config = base.make_get_config(VARIANTS, SHARED)
