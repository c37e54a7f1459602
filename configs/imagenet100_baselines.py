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
    "head": {"name": "mlp", "proj_hidden_dim": 4096, "proj_output_dim": 512},
    "loss": {"name": "nt_xent", "temperature": 0.2},
    "optim": {"name": "larc", "lr": 0.3, "lr_scaling": "linear", "weight_decay": 1e-4}
    | {"trust_coefficient": 0.02, "lars_clip": True},  # solo-learn's LARS
    "schedule": {"warmup_epochs": 10.0},
    # The preset cifar_sgd has solo-learn's settings.
    "eval": {"every": 25.0, "protocols": ("linear:cifar_sgd", "linear", "knn")},
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

HEAD = {"name": "mlp", "proj_hidden_dim": 2048, "proj_output_dim": 2048, "proj_layers": 3}
WEAK = {"augment": {"name": "simclr", "size": 224, "blur": 0.5}}
SOGCLR = {  # AUC-CL, Table 5. The projector does not end with a norm (our choice).
    "net": {"depth": 50},
    "head": {"proj_hidden_dim": 2048, "proj_output_dim": 128},
    "eval": {"protocols": ("linear:paper_imagenet", "linear", "knn")},
}

VARIANTS = {
    "simclr": {
        "about": "77.64 %. Chen et al., SimCLR, 2020",
        "head": {"proj_norm": "none"},
    },
    "simclr_r50": {
        **SOGCLR,
        "about": "76.1 % linear, ResNet-50 (AUC-CL, Table 5; 69.7 at 100 epochs, 73.6 at 200)",
        "loss": {"name": "nt_xent", "temperature": 0.1},
        "optim": {"name": "lars", "lr": 0.075, "lr_scaling": "sqrt", "weight_decay": 1e-6}
        | {"trust_coefficient": 1e-3, "lars_clip": False},
    },
    "moco_v2": {
        **WEAK,
        "about": "78.20 %. Chen et al., MoCo-v2, 2020, solo-learn's MoCo V2+: both directions",
        "head": {"proj_hidden_dim": 2048, "proj_output_dim": 256, "proj_norm": "none"},
        "method": {
            "name": "momentum",
            "preset": "moco_v2",
            "symmetric": True,
            "average": True,
            "queue_size": 65536,  # for both views; the published run has two queues of this length
            "momentum": {"schedule": "cosine", "start": 0.99, "end": 0.999},
        },
        "loss": {"name": "info_nce", "preset": "moco_v2"},
        "optim": {"name": "sgd", "lr": 0.3, "lars_clip": False, "decay_all": True},
    },
    "simsiam": {  # The published config names symmetric and asymmetric views. Ours are symmetric.
        **WEAK,
        "about": "74.54 % (78.72 offline). Chen and He, SimSiam, 2021",
        "head": {**HEAD, "proj_last_norm": "bn_fixed"},
        "predictor": {"name": "mlp", "pred_hidden_dim": 512},
        "method": {"name": "momentum", "preset": "simsiam"},
        "loss": {"name": "simsiam"},
        "optim": {"name": "sgd", "lr": 0.5, "weight_decay": 1e-5, "lars_clip": False}
        | {"decay_all": True},
    },
    "barlow_twins": {
        "about": "80.38 %. Zbontar et al., Barlow Twins, 2021",
        "augment": BYOL["augment"],
        "second_view": BYOL["second_view"],
        "head": HEAD,
        "loss": {"name": "barlow_twins", "preset": "solo_learn", "scale": 0.1},
    },
    "arb": {
        "about": "79.48 % (the authors' README). Zhang et al., ARB, 2022",
        "augment": BYOL["augment"],
        "second_view": BYOL["second_view"],
        "head": HEAD,
        "loss": {"name": "arb"},
        "optim": {"name": "lars", "trust_coefficient": 1e-3, "lars_clip": False},
        "schedule": {"end_factor": 1e-3},
    },
    "mochi": {  # Optimiser, head and the start of mixing are our choice, after MoCo-v2.
        "about": "79.0 % linear, ResNet-50 (MMCL, Table 2). Kalantidis et al., MoCHi, 2020",
        "epochs": 200,
        "augment": {"name": "simclr", "size": 224, "crop_scale": (0.2, 1.0), "blur": 0.5},
        "net": {"depth": 50},
        "head": {"proj_hidden_dim": 2048, "proj_output_dim": 128, "proj_norm": "none"},
        "method": {"name": "momentum", "preset": "moco_v2", "queue_size": 16384},
        "loss": {
            "name": "mochi",
            "weight": {"schedule": "steps", "values": {"0": 0.0, "10": 1.0}, "unit": "epochs"},
        },
        "optim": {"name": "sgd", "lr": 0.03, "lars_clip": False, "decay_all": True},
        "eval": {"protocols": ("linear:paper_imagenet", "linear", "knn")},
    },
    "vicreg": {
        "about": "79.22 %. Bardes et al., VICReg, 2022",
        "augment": {"name": "simclr", "size": 224, "crop_scale": (0.2, 1.0)}
        | {"saturation": 0.2, "blur": 0.5, "solarize": 0.1},
        "head": HEAD,
        "loss": {"name": "vicreg", "preset": "solo_learn"},
    },
    "nnclr": {
        "about": "79.80 %. Dwibedi et al., With a Little Help from My Friends, 2021",
        "augment": BYOL["augment"],
        "second_view": BYOL["second_view"],
        "head": {**HEAD, "proj_output_dim": 256, "proj_last_norm": "bn"},
        "predictor": {"name": "mlp", "pred_hidden_dim": 4096},
        "method": {"name": "momentum", "preset": "nnclr"},
        "loss": {"name": "nnclr", "temperature": 0.2, "support_size": 65536},
        "optim": {"lr": 0.4, "weight_decay": 1e-5},
    },
    "ressl": {
        "about": "76.92 %. Zheng et al., ReSSL, 2021: strong views against weak ones",
        "augment": {"name": "simclr", "size": 224, "saturation": 0.2, "blur": 0.5},
        "second_view": {"jitter": 0.0, "grayscale": 0.0, "blur": 0.0},
        "head": {"proj_output_dim": 256, "proj_norm": "none"},
        "method": {**BYOL["method"], "preset": "ressl", "queue_size": 65536},
        "loss": {"name": "ressl"},
        "optim": {"name": "sgd", "lr": 0.3, "lars_clip": False, "decay_all": True},
    },
    "w_mse": {  # The published run has six small crops beside the two large ones.
        "about": "67.60 %. Ermolov et al., Whitening for Self-Supervised Learning, 2021",
        "augment": {"crop_scale": (0.2, 1.0), "blur": 0.2},
        "head": {"proj_hidden_dim": 1024, "proj_output_dim": 64},
        # The published run whitens random groups of 128 images, epsilon 0. Ours whitens the batch.
        "loss": {"name": "w_mse", "epsilon": 1e-3},  # our choice
        "optim": {"name": "adam", "lr": 2e-3, "weight_decay": 1e-6, "lars_clip": False}
        | {"decay_all": True},
    },
    "dcl": {  # All settings but the loss are SimCLR's here.
        "about": "No published result is known. Yeh et al., DCL, 2022",
        "loss": {"name": "dcl", "temperature": 0.1},
    },
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
    "sogclr": {  # Yuan et al., SogCLR, 2022
        **SOGCLR,
        "about": "78.7 % linear, ResNet-50 (AUC-CL, Table 5; 71.8 at 100 epochs, 76.3 at 200)",
        "loss": {"name": "sogclr", "temperature": 0.1, "gamma": 0.9},
        "optim": {"name": "lars", "lr": 0.075, "lr_scaling": "sqrt", "weight_decay": 1e-6}
        | {"trust_coefficient": 1e-3, "lars_clip": False},
    },
}

get_config = base.make_get_config(VARIANTS, SHARED)
