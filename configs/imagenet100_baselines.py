"""Baselines on ImageNet-100 with a ResNet-18, with solo-learn's published settings.

Command: jaxssl train --config imagenet100_baselines:VARIANT
Published, not run here: top-1 accuracy of solo-learn's online linear classifier (its README), after
400 epochs at batch size 256, if a variant names no other source.
Notes: The 100 classes are CMC's. Solo-learn does not state which classes it used. Here the linear
probe is fitted on frozen features. The published classifier was trained along with the encoder.
"""

from jaxssl.configs import base

# SimCLR's settings, which the variants change.
SHARED = {
    "data": {"name": "imagenet100", "test_split": "validation"},
    "batch_size": 256,
    "epochs": 400,
    "augment": {
        "name": "simclr",
        "size": 224,
        "blur": 0.5,
        "brightness": 0.8,
        "contrast": 0.8,
        "saturation": 0.8,
        "hue": 0.2,
    },
    "net": {"name": "resnet", "depth": 18, "stem": "imagenet"},
    # SimCLR's published projector has no BatchNorm.
    "head": {"name": "mlp", "proj_hidden_dim": 4096, "proj_output_dim": 512},
    "loss": {"name": "nt_xent", "temperature": 0.2},
    "optim": {"name": "larc", "lr": 0.3, "lr_scaling": "linear", "weight_decay": 1e-4}
    | {"trust_coefficient": 0.02, "lars_clip": True},  # solo-learn's LARS
    "schedule": {"warmup_epochs": 10.0},
    "eval": {"every": 25.0, "protocols": ("knn", "linear")},  # our choice
}
BYOL = {
    "augment": {"name": "simclr", "size": 224, "saturation": 0.2, "blur": 1.0},
    "second_view": {"blur": 0.1, "solarize": 0.2},
    "head": {"name": "mlp", "proj_hidden_dim": 4096, "proj_output_dim": 256},
    "predictor": {"name": "mlp", "pred_hidden_dim": 8192},
    "method": {
        "name": "momentum",
        "preset": "byol",
        "momentum": {"schedule": "cosine", "start": 0.99, "end": 1.0},
    },
}

VARIANTS = {
    "simclr": {"about": "77.64 %. Chen et al., SimCLR, 2020"},
    "byol": {
        **BYOL,
        "about": "80.16 %. Grill et al., Bootstrap Your Own Latent, 2020",
        "loss": {"name": "byol"},
        "optim": {"lr": 0.5, "weight_decay": 1e-6},
    },
    "moco_v3": {
        **BYOL,
        "about": "80.36 %. Chen, Xie and He, MoCo-v3, 2021",
        "head": {**BYOL["head"], "proj_last_norm": "bn_fixed"},
        "predictor": {"name": "mlp", "pred_hidden_dim": 4096},
        "method": {**BYOL["method"], "preset": "moco_v3"},
        "loss": {"name": "info_nce", "temperature": 0.2},
        "optim": {"lr": 0.3, "weight_decay": 1e-6},
    },
    "sogclr": {  # Yuan et al., SogCLR, 2022. The projector has no last norm (our choice).
        "about": "78.7 % linear, ResNet-50 (AUC-CL, Table 5; 71.8 at 100 epochs, 76.3 at 200)",
        "net": {"depth": 50},
        "head": {"proj_hidden_dim": 2048, "proj_output_dim": 128},
        "loss": {"name": "sogclr", "temperature": 0.1, "gamma": 0.9},
        "optim": {"name": "lars", "lr": 0.075, "lr_scaling": "sqrt", "weight_decay": 1e-6}
        | {"trust_coefficient": 1e-3, "lars_clip": False},
    },
}

get_config = base.make_get_config(VARIANTS, SHARED)
