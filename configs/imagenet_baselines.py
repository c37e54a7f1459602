"""Baselines on ImageNet with a ResNet-50. MoCo-v3 and DINO have separate config files.

Command: jaxssl train --config imagenet_baselines:VARIANT
Published, not run here: the results of the variants are top-1 accuracies. The linear protocol is
that of MoCo-v3's code, or MoCo-v2's for its variants. SimCLR's paper has a batch of 4096 and a rate
of 1.6. The codes of SwAV, Barlow Twins and ReSSL have a rate of 0.3, VICReg's has 0.02, and
SimSiam's has LARS.
Notes: LARS has one learning rate here. The codes of Barlow Twins and ARB lower the rate of biases
and norms to 0.0048, and SwAV's scales and decays them like weights. BYOL averages its weights from
step to step with a momentum from 0.996 to 1. SimSiam's predictor keeps its rate, and here
decays like the rest. SogCLR has SimCLR's views. Its PyTorch code jitters less and always blurs.
W-MSE has no config here, because its settings on ImageNet are not known to us.
"""

from jaxssl.configs import base

# SimCLR's settings, which the variants change.
SHARED = {
    "data": {"name": "imagenet2012", "test_split": "validation"},
    "batch_size": 4096,
    "epochs": 100,
    "augment": {"name": "simclr", "size": 224, "blur": 0.5, **base.STRONG_JITTER},
    "net": {"name": "resnet", "depth": 50, "stem": "imagenet"},
    # The projector has no BatchNorm after its last layer (our choice).
    "head": {"name": "mlp", "proj_hidden_dim": 2048, "proj_output_dim": 128},
    "loss": {"name": "nt_xent", "temperature": 0.1},
    "optim": {"name": "lars", "lr": 0.3, "lr_scaling": "linear", "weight_decay": 1e-6},
    "schedule": {"warmup_epochs": 10.0},
    "eval": {  # the k-NN is our choice
        "knn": "moco_v3_20",
        "protocols": ("linear:paper_imagenet", "linear", "knn:moco_v3_20"),
    },
}
MOCO_VIEWS = {"name": "simclr", "size": 224, "crop_scale": (0.2, 1.0), "blur": 0.5}
BYOL_VIEWS = {
    "augment": {"name": "simclr", "size": 224, "saturation": 0.2, "blur": 1.0},
    "second_view": {"blur": 0.1, "solarize": 0.2},
}
MOCO_V2 = {
    "batch_size": 256,
    "augment": MOCO_VIEWS,
    "head": {"proj_norm": "none"},
    "method": {"name": "momentum", "preset": "moco_v2"},
    "loss": {"name": "info_nce", "preset": "moco_v2"},
    "optim": {"name": "sgd", "lr": 0.03, "weight_decay": 1e-4, "decay_all": True},
    "schedule": {"warmup_epochs": 0.0},
    "eval": {"protocols": ("linear:moco_v2", "linear", "knn:moco_v3_20")},
}
ZERO_INIT = {"zero_init_residual": True}
BARLOW_CODE = {  # also VICReg's
    "net": ZERO_INIT,
    "optim": {"lr": 0.2},
    "schedule": {"end_factor": 1e-3},
}
WIDE_HEAD = {"proj_hidden_dim": 8192, "proj_output_dim": 8192, "proj_layers": 3}

VARIANTS = {
    "simclr": {
        "about": "66.5 % linear (AUC-CL, Table 1). Chen et al., SimCLR, 2020",
        "net": ZERO_INIT,
    },
    "dcl": {  # All settings but the loss, the batch size and the length are SimCLR's here.
        "about": "65.9 % linear, 200 epochs (AUC-CL, Table 10; 64.3 at batch 128)",
        "batch_size": 256,
        "epochs": 200,
        "net": ZERO_INIT,
        "loss": {"name": "dcl", "temperature": 0.1},
    },
    "sogclr": {  # LibAUC's settings. Yuan et al., SogCLR, 2022
        "about": "68.7 % linear, 400 epochs (AUC-CL, Table 5; 65.2 at 100, 67.1 at 200)",
        "batch_size": 256,
        "epochs": 400,
        "net": ZERO_INIT,
        "loss": {"name": "sogclr", "temperature": 0.1, "gamma": 0.9},
        "optim": {"lr": 0.075, "lr_scaling": "sqrt"},
    },
    "simsiam": {
        "about": "68.1 % linear, 100 epochs (the authors' README). Chen and He, SimSiam, 2021",
        "batch_size": 512,
        "augment": MOCO_VIEWS,
        "net": ZERO_INIT,
        "head": {"proj_output_dim": 2048, "proj_layers": 3, "proj_last_norm": "bn_fixed"},
        "predictor": {"name": "mlp", "pred_hidden_dim": 512},
        "method": {"name": "momentum", "preset": "simsiam"},
        "loss": {"name": "simsiam"},
        "optim": {"name": "sgd", "lr": 0.05, "weight_decay": 1e-4, "decay_all": True},
        "schedule": {"warmup_epochs": 0.0},
    },
    "byol": {
        **BYOL_VIEWS,
        "about": "74.3 % linear, 1000 epochs. Grill et al., Bootstrap Your Own Latent, 2020",
        "epochs": 1000,
        "net": ZERO_INIT,
        "head": {"proj_hidden_dim": 4096, "proj_output_dim": 256},
        "predictor": {"name": "mlp", "pred_hidden_dim": 4096},
        "method": {"name": "momentum", "preset": "byol"}
        | {"momentum": {"schedule": "cosine", "start": 0.996, "end": 1.0}},
        "loss": {"name": "byol"},
        "optim": {"lr": 0.2, "weight_decay": 1.5e-6},
    },
    "barlow_twins": {
        **BYOL_VIEWS,
        **BARLOW_CODE,
        "about": "73.2 % linear, 1000 epochs. Zbontar et al., Barlow Twins, 2021",
        "batch_size": 2048,
        "epochs": 1000,
        "head": WIDE_HEAD,
        "loss": {"name": "barlow_twins", "preset": "released"},
    },
    "arb": {  # settings of ARB's released code, whose batch size is 2048
        **BYOL_VIEWS,
        "about": "68.2 % linear (AUC-CL, Table 1; 73.1 at 1000 epochs, the authors' README)",
        "batch_size": 512,
        "net": ZERO_INIT,
        "head": WIDE_HEAD,
        "loss": {"name": "arb"},
        "optim": {"weight_decay": 1e-4},
        "schedule": {"end_factor": 1e-3},
    },
    "vicreg": {
        **BYOL_VIEWS,
        **BARLOW_CODE,
        "about": "73.2 % linear, 1000 epochs. Bardes et al., VICReg, 2022",
        "batch_size": 2048,
        "epochs": 1000,
        "head": WIDE_HEAD,
        "loss": {"name": "vicreg"},
    },
    "nnclr": {
        **BYOL_VIEWS,
        "about": "75.4 % linear, 1000 epochs. Dwibedi et al., NNCLR, 2021",
        "epochs": 1000,
        "head": {"proj_output_dim": 256, "proj_layers": 3, "proj_last_norm": "bn"},
        "predictor": {"name": "mlp", "pred_hidden_dim": 4096},
        "method": {"name": "momentum", "preset": "nnclr"},
        "loss": {"name": "nnclr", "temperature": 0.1, "support_size": 98304},
    },
    "ressl": {  # The student sees strong views, the teacher weak ones.
        "about": "69.9 % linear, 200 epochs. Zheng et al., ReSSL, 2021",
        "batch_size": 256,
        "epochs": 200,
        "augment": MOCO_VIEWS,
        "second_view": {"jitter": 0.0, "grayscale": 0.0, "blur": 0.0},
        "head": {"proj_hidden_dim": 4096, "proj_output_dim": 512, "proj_norm": "none"},
        "method": {"name": "momentum", "preset": "ressl", "queue_size": 131072, "momentum": 0.999},
        "loss": {"name": "ressl"},
        "optim": {"name": "sgd", "lr": 0.05, "weight_decay": 1e-4},
        "schedule": {"warmup_epochs": 5.0},
    },
    # the released code, which shuffles the batch over devices; here BatchNorm sees the whole batch
    "moco_v2": {
        **MOCO_V2,
        "about": "67.5 % linear, 200 epochs (71.1 at 800). Chen et al., MoCo-v2, 2020",
        "epochs": 200,
    },
    "mochi": {  # All but the loss is MoCo-v2's here. The start of mixing is our choice.
        **MOCO_V2,
        "about": "63.9 % linear (MMCL, Table 3). Kalantidis et al., MoCHi, 2020",
        "loss": {"name": "mochi"}
        | {"weight": {"schedule": "steps", "values": {"0": 0.0, "15": 1.0}, "unit": "epochs"}},
    },
    # the released code, which freezes prototypes for an epoch; as in the code, small crops are
    # compared with the codes of both large crops, and all pairs have the same weight
    "swav": {
        "about": "72.1 % linear, 2x224 + 6x96 (authors' README). Caron et al., SwAV, 2020",
        "augment": {"crop_scale": (0.14, 1.0)},
        "crops": {"number": 6, "size": 96, "crop_scale": (0.05, 0.14)},
        "loss": {"name": "swav", "num_prototypes": 3000},
        # The learning rate warms up from 0.3 to 4.8 at batch size 4096.
        "schedule": {"end_factor": 1e-3, "warmup_start": 0.0625},
    },
}

get_config = base.make_get_config(VARIANTS, SHARED)
