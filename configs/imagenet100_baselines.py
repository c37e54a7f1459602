"""Baselines on ImageNet-100 with a ResNet-18, with solo-learn's published settings.

Command: jaxssl train --config imagenet100_baselines:VARIANT
Published, not run here: top-1 accuracy of solo-learn's online linear classifier (its README), after
400 epochs at batch size 256, if a variant names no other source.
Notes: CIFAR10 below stands for the variants of cifar10_baselines. The 100 classes are CMC's.
Solo-learn does not state which classes it used. Here the linear probe is fitted on frozen features.
The published classifier was trained along with the encoder.
"""

from jaxssl.configs import base, cifar10_baselines

CIFAR10 = cifar10_baselines.VARIANTS
# SimCLR's settings, which the variants change.
SHARED = {
    **cifar10_baselines.SHARED,
    "data": {"name": "imagenet100", "test_split": "validation"},
    "epochs": 400,
    "augment": {**cifar10_baselines.SHARED["augment"], "size": 224},
    "net": {"name": "resnet", "depth": 18, "stem": "imagenet"},
    "head": {"name": "mlp", "proj_hidden_dim": 4096, "proj_output_dim": 512},
    "optim": {**cifar10_baselines.SHARED["optim"], "lr": 0.3},
}
ASYMMETRIC = {
    "augment": {"name": "simclr", "size": 224, "saturation": 0.2, "blur": 1.0},
    "second_view": {"blur": 0.1, "solarize": 0.2},
}
HEAD = {"name": "mlp", "proj_hidden_dim": 2048, "proj_output_dim": 2048, "proj_layers": 3}
WEAK = {"augment": {"name": "simclr", "size": 224, "blur": 0.5}}
SOGCLR = {  # AUC-CL, Table 5. The projector does not end with a norm (our choice).
    "net": {"depth": 50},
    "head": {"proj_hidden_dim": 2048, "proj_output_dim": 128},
    "optim": CIFAR10["sogclr"]["optim"],
    "eval": {"protocols": ("linear:paper_imagenet", "linear", "knn")},
}

VARIANTS = {
    "simclr": {"about": "77.64 %. Chen et al., SimCLR, 2020", "head": {"proj_norm": "none"}},
    "simclr_r50": {
        **SOGCLR,
        "about": "76.1 % linear, ResNet-50 (AUC-CL, Table 5; 69.7 at 100 epochs, 73.6 at 200)",
        "loss": {"name": "nt_xent", "temperature": 0.1},
    },
    "moco_v2": {
        **CIFAR10["moco_v2"],
        **WEAK,
        "about": "78.20 %. Chen et al., MoCo-v2, 2020, solo-learn's MoCo V2+: both directions",
        "head": {"proj_hidden_dim": 2048, "proj_output_dim": 256, "proj_norm": "none"},
        "method": {**CIFAR10["moco_v2"]["method"], "queue_size": 65536},  # two queues, as there
    },
    "simsiam": {  # The published config names symmetric and asymmetric views. Ours are symmetric.
        **CIFAR10["simsiam"],
        **WEAK,
        "about": "74.54 % (78.72 offline). Chen and He, SimSiam, 2021",
        "head": {**HEAD, "proj_last_norm": "bn_fixed"},
    },
    "barlow_twins": {
        **CIFAR10["barlow_twins"],
        **ASYMMETRIC,
        "about": "80.38 %. Zbontar et al., Barlow Twins, 2021",
        "head": HEAD,
    },
    "arb": {
        **CIFAR10["arb"],
        **ASYMMETRIC,
        "about": "79.48 % (the authors' README). Zhang et al., ARB, 2022",
        "head": HEAD,
        "optim": {"name": "lars", "trust_coefficient": 1e-3, "lars_clip": False},
    },
    "mochi": {  # Optimiser, head and the start of mixing are our choice, after MoCo-v2.
        "about": "79.0 % linear, ResNet-50 (MMCL, Table 2). Kalantidis et al., MoCHi, 2020",
        "epochs": 200,
        "augment": {"name": "simclr", "size": 224, "crop_scale": (0.2, 1.0), "blur": 0.5},
        "net": {"depth": 50},
        "head": {"proj_hidden_dim": 2048, "proj_output_dim": 128, "proj_norm": "none"},
        "method": {"name": "momentum", "preset": "moco_v2", "queue_size": 16384},
        "loss": {"name": "mochi"}
        | {"weight": {"schedule": "steps", "values": {"0": 0.0, "10": 1.0}, "unit": "epochs"}},
        "optim": {**cifar10_baselines.SGD, "lr": 0.03},
        "eval": {"protocols": ("linear:paper_imagenet", "linear", "knn")},
    },
    "vicreg": {
        **CIFAR10["vicreg"],
        "about": "79.22 %. Bardes et al., VICReg, 2022",
        "augment": {**CIFAR10["vicreg"]["augment"], "size": 224, "blur": 0.5},
        "head": HEAD,
    },
    "nnclr": {
        **CIFAR10["nnclr"],
        **ASYMMETRIC,
        "about": "79.80 %. Dwibedi et al., With a Little Help from My Friends, 2021",
        "head": {**HEAD, "proj_output_dim": 256, "proj_last_norm": "bn"},
        "optim": {"lr": 0.4, "weight_decay": 1e-5},
    },
    "ressl": {
        **CIFAR10["ressl"],
        "about": "76.92 %. Zheng et al., ReSSL, 2021: strong views against weak ones",
        "augment": {**CIFAR10["ressl"]["augment"], "size": 224},
        "head": {"proj_output_dim": 256, "proj_norm": "none"},
        "optim": {**cifar10_baselines.SGD, "lr": 0.3},
    },
    "w_mse": {  # The published run has six small crops beside the two large ones.
        **CIFAR10["w_mse"],
        "about": "67.60 %. Ermolov et al., Whitening for Self-Supervised Learning, 2021",
        "augment": {"crop_scale": (0.2, 1.0), "blur": 0.2},
    },
    "dcl": {  # All settings but the loss are SimCLR's here.
        "about": "No published result is known. Yeh et al., DCL, 2022",
        "head": {"proj_norm": "none"},
        "loss": {"name": "dcl", "temperature": 0.1},
    },
    "byol": {
        **CIFAR10["byol"],
        **ASYMMETRIC,
        "about": "80.16 %. Grill et al., Bootstrap Your Own Latent, 2020",
        "predictor": {"name": "mlp", "pred_hidden_dim": 8192},
        "optim": {"lr": 0.5, "weight_decay": 1e-6},
    },
    "moco_v3": {
        **CIFAR10["moco_v3"],
        **ASYMMETRIC,
        "about": "80.36 %. Chen, Xie and He, MoCo-v3, 2021",
    },
    "sogclr": {  # Yuan et al., SogCLR, 2022
        **SOGCLR,
        "about": "78.7 % linear, ResNet-50 (AUC-CL, Table 5; 71.8 at 100 epochs, 76.3 at 200)",
        "loss": {"name": "sogclr", "temperature": 0.1, "gamma": 0.9},
    },
}

get_config = base.make_get_config(VARIANTS, SHARED)
