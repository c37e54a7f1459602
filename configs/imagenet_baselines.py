"""Baselines on ImageNet with a ResNet-50. MoCo-v3 and DINO have files of their own.

Command: jaxssl train --config imagenet_baselines:VARIANT
Published, not run here: the figures of the variants are top-1 accuracies.
"""

from jaxssl.configs import base

# SimCLR's settings, which the variants change.
SHARED = {
    "data": {"name": "imagenet2012", "test_split": "validation"},
    "batch_size": 4096,
    "epochs": 100,
    "augment": {"name": "simclr", "size": 224, "blur": 0.5}
    | {"brightness": 0.8, "contrast": 0.8, "saturation": 0.8, "hue": 0.2},
    "net": {"name": "resnet", "depth": 50, "stem": "imagenet"},
    # There is no BatchNorm after the last layer (our choice).
    "head": {"name": "mlp", "proj_hidden_dim": 2048, "proj_output_dim": 128},
    "loss": {"name": "nt_xent", "temperature": 0.1},
    "optim": {"name": "lars", "lr": 0.3, "lr_scaling": "linear", "weight_decay": 1e-6},
    "schedule": {"warmup_epochs": 10.0},
    # The k-NN is our choice.
    "eval": {"knn": "moco_v3_20", "protocols": ("knn:moco_v3_20", "linear")},
}

VARIANTS = {
    "simclr": {"about": "66.5 % linear (AUC-CL, Table 1). Chen et al., SimCLR, 2020"},
    # the released code, which shuffles the batch over devices; here BatchNorm sees all of it
    "moco_v2": {
        "about": "67.5 % linear, 200 epochs (71.1 at 800). Chen et al., MoCo-v2, 2020",
        "batch_size": 256,
        "epochs": 200,
        "augment": {"name": "simclr", "size": 224, "crop_scale": (0.2, 1.0), "blur": 0.5},
        "head": {"proj_norm": "none"},
        "method": {"name": "momentum", "preset": "moco_v2"},
        "loss": {"name": "info_nce", "preset": "moco_v2"},
        "optim": {"name": "sgd", "lr": 0.03, "weight_decay": 1e-4},
        "schedule": {"warmup_epochs": 0.0},
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
