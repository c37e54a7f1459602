"""MoCo-v3 on ImageNet with its released settings, and with the losses of DeCL and AUC-CL.

Papers: Chen, Xie and He, An Empirical Study of Training Self-Supervised Vision Transformers, 2021;
DeCL: Chen et al., Why do We Need Large Batchsizes in Contrastive Learning?, NeurIPS 2022, Table 2;
Sharma et al., AUC-CL, ICLR 2024, Table 7.
Command: jaxssl train --config imagenet_moco_v3:VARIANT
Published, not run here: the results of the variants are top-1 accuracies (linear: SGD, batch 1024,
90 epochs, rate 0.1 x B/256 for ResNets and AUC-CL, 3 x B/256 for other ViTs; DeCL's k-NN: k = 10,
20, 100).
Notes: All of DeCL but the batch size and the loss is MoCo-v3's. The paper does not state the
temperature (MoCo-v3's: 1 for ResNet-50, 0.2 for ViT), whether the loss has MoCo-v3's factor 2 tau
(here it has not) and the epochs of ViT (MoCo-v3's: 300. AUC-CL prints the same baseline, 62.3, for
100).
"""

from jaxssl.configs import base, imagenet_baselines

SHARED = {
    "data": {"name": "imagenet2012", "test_split": "validation"},
    "batch_size": 4096,
    "augment": {"name": "simclr", "size": 224, "saturation": 0.2, "blur": 1.0},
    "second_view": {"blur": 0.1, "solarize": 0.2},
    "head": {"name": "mlp", "proj_hidden_dim": 4096, "proj_output_dim": 256}
    | {"proj_last_norm": "bn_fixed"},
    "predictor": {"name": "mlp"},
    "method": {"name": "momentum", "preset": "moco_v3"},
    "eval": imagenet_baselines.SHARED["eval"],
}
R50 = {
    "epochs": 100,
    "augment": {**SHARED["augment"], "crop_scale": (0.2, 1.0)},
    "net": {"name": "resnet", "depth": 50, "stem": "imagenet", "zero_init_residual": True},
    "loss": {"name": "info_nce", "preset": "moco_v3_resnet"},
    "optim": {"name": "lars", "lr": 0.6, "lr_scaling": "linear", "weight_decay": 1e-6},
    "schedule": {"warmup_epochs": 10.0},
}
VIT = {
    "epochs": 300,
    "augment": {**SHARED["augment"], "crop_scale": (0.08, 1.0)},
    "net": {"name": "vit", "size": "small", "patch_size": 16},
    "head": {"proj_layers": 3},
    "predictor": {"pred_last_norm": "bn_fixed"},
    "loss": {"name": "info_nce", "preset": "moco_v3_vit"},
    "optim": {"name": "adamw", "lr": 1.5e-4, "lr_scaling": "linear", "weight_decay": 0.1}
    | {"decay_all": True},
    "schedule": {"warmup_epochs": 40.0},
    "eval": {"protocols": ("linear:moco_v3_vit", "linear", "knn:moco_v3_20")},
}
KNN = ("knn:moco_v3_10", "knn:moco_v3_20", "knn:moco_v3_100")
KNN_AND_LINEAR = {"protocols": ("linear:paper_imagenet", *KNN, "linear")}
VIT_KNN_AND_LINEAR = {"protocols": ("linear:moco_v3_vit", *KNN, "linear")}
DECL = {
    "batch_size": 256,
    # DeCL's Gamma rates come from momentum embeddings. The weight of its loss L^1 is 1.
    "loss": {"name": "decl", "preset": "moco_v3"},
    "eval": KNN_AND_LINEAR,
}
AUC_CL = {  # Table 7 of AUC-CL replaces the loss alone, with 100 epochs at batch size 128.
    "batch_size": 128,
    "epochs": 100,
    "loss": {"name": "auc_cl", "preset": "recommended"},
    "eval": KNN_AND_LINEAR,
}

VARIANTS = {
    "r50": {**R50, "about": "68.9 % linear"},
    "vit_s": {**VIT, "about": "73.2 % linear"},
    "decl_r50": {
        **R50,
        **DECL,
        "about": "64.2 % linear, k-NN 48.8/49.3/47.6 (67.7 linear at batch 512)",
        "loss": {**DECL["loss"], "temperature": 1.0},
    },
    "decl_vit_s": {
        **VIT,
        **DECL,
        "about": "63.4 % linear, k-NN 52.0/52.5/50.7 (66.4 linear at batch 512)",
        "eval": VIT_KNN_AND_LINEAR,
    },
    "decl_vit_b": {
        **VIT,
        **DECL,
        "about": "69.1 % linear, k-NN 60.7/61.1/59.4 (76.8 linear at batch 2304)",
        "net": {**VIT["net"], "size": "base"},
        "eval": VIT_KNN_AND_LINEAR,
    },
    "auc_cl_vit_s": {
        **VIT,
        **AUC_CL,
        "about": "AUC-CL, Table 7: 67.9 % linear, k-NN 54.1/54.0/51.4 (MoCo-v3: 62.3)",
    },
    "auc_cl_imagenet100_vit_s": {
        **VIT,
        **AUC_CL,
        "about": "AUC-CL, Table 7: 82.5 % linear, k-NN 77.0/77.6/76.9 (MoCo-v3: 77.6)",
        "data": {"name": "imagenet100", "test_split": "validation"},
    },
}

get_config = base.make_get_config(VARIANTS, SHARED)
