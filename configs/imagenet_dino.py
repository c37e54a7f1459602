"""DINO on ImageNet with a ViT-S and multi-crop, and the released ImageNet code of AUC-CL.

Papers: Caron et al., Emerging Properties in Self-Supervised Vision Transformers, 2021, the released
code's plain run; Sharma et al., AUC-CL, ICLR 2024, rohan1561/AUC-CL.
Command: jaxssl train --config imagenet_dino:VARIANT
Published, not run here: the results of the variants are top-1 accuracies.
Notes: Prototypes are trained from the start. The released code freezes them for an epoch. Positions
are fixed, not trained. Small crops have the positions of the upper left corner. The code resizes
its table. The network starts from MoCo-v3's distributions. The last learning rate is 0, not 1e-6.
The gradient is clipped by its global norm. The code clips parameter by parameter. Its linear result
is of the last four blocks, at a rate of 0.001. Ours takes the last block, at 0.1.
AUC-CL's code is DINO's with another loss, which is not the paper's method. Its result is the last
line of the repository's only log, whose name says ResNet-50 and 650 epochs. The settings are the
code's defaults. Here the large crops have no RandAugment (n=2, m=10), a box is erased with one
value (code: noise), negatives come from the global batch (code: from each GPU), and the teacher's
temperature rises with every step (code: every epoch).
"""

from jaxssl.configs import base

SHARED = {
    "data": {"name": "imagenet2012", "test_split": "validation"},
    "batch_size": 512,
    "augment": {"name": "simclr", "size": 224, "crop_scale": (0.4, 1.0)}
    | {"saturation": 0.2, "blur": 1.0},
    "second_view": {"blur": 0.1, "solarize": 0.2},
    "crops": {"number": 8, "size": 96, "crop_scale": (0.05, 0.4), "blur": 0.5},
    "net": {"name": "vit", "size": "small", "patch_size": 16, "num_heads": 6}
    | {"frozen_patches": False, "drop_path": 0.1},
    "head": {"name": "dino"},
    "method": {"name": "momentum", "preset": "dino"},
    "optim": {"lr": 5e-4, "lr_scaling": "linear", "clip_norm": 3.0}
    | {"weight_decay": {"schedule": "cosine", "start": 0.04, "end": 0.4}},
    "schedule": {"warmup_epochs": 10.0},
    "eval": {"knn": "moco_v3_20"}
    | {"protocols": ("knn:moco_v3_20", "linear:paper_imagenet", "linear")},
}
TEMPERATURE = {"schedule": "linear", "start": 0.04, "end": 0.07, "until": 30, "unit": "epochs"}

VARIANTS = {
    "vit_s": {
        "about": "69.3 % k-NN (k=20, T=0.07), 74.0 % linear, 100 epochs (the authors' README)",
        "epochs": 100,
        "loss": {"name": "dino"},
    },
    "auc_cl_released": {
        "about": "75.04 % linear (SGD 0.02, 100 epochs); network and epochs are not certain",
        "epochs": 820,
        "augment": {"erasing": 0.2},  # applies to the first large crop only
        "second_view": {"erasing": 0.0},
        "crops": {"erasing": 0.0},
        "net": {"patch_size": 8},  # side of a patch in pixels
        "head": {"norm_last_layer": False},
        "loss": {"name": "auc_dino", "teacher_temperature": TEMPERATURE},
    },
}

get_config = base.make_get_config(VARIANTS, SHARED)
