"""DeCL on CIFAR-10 and STL-10 with a ResNet-50, beside SimCLR.

Paper: Chen et al., Why do We Need Large Batchsizes in Contrastive Learning?, NeurIPS 2022, Table 1,
normalised features. For ImageNet see imagenet_moco_v3.
Command: jaxssl train --config decl:VARIANT
Published, not run here: the results of the variants are top-1 accuracies of a k-NN (k=200, T=0.5).
Notes: No code was released. The settings match leftthomas/SimCLR, on which the paper builds. The
paper does not state lambda (we alternate), the temperature (0.5, from the base code), the weight of
the past in the rates (0.9, our choice), and any setting for STL-10: unlabelled images and views of
32 pixels are the HCL code's.
"""

from jaxssl.configs import base

SHARED = {
    "data": {"name": "cifar10"},
    "batch_size": 256,  # Table 1 has batch sizes 64, 128, 256 and 512.
    "epochs": 300,
    "augment": {"name": "simclr", "size": 32},
    "net": {"name": "resnet", "depth": 50, "stem": "cifar"},
    "head": {"name": "mlp", "proj_hidden_dim": 512, "proj_output_dim": 128},
    "loss": {"name": "decl", "preset": "simclr"},
    "optim": {"name": "adam", "lr": 1e-3, "weight_decay": 1e-6, "decay_all": True},
    "schedule": {"name": "constant"},
    "eval": {"every": 25.0, "protocols": ("knn", "linear")},  # The linear probe is our choice.
}
STL10 = {"name": "stl10", "train_split": "train+unlabelled", "bank_split": "train"}

VARIANTS = {
    "cifar10": {"about": "87.6 %, 300 epochs (86.4 at 200)"},
    "stl10": {"about": "78.3 %, 300 epochs (77.6 at 200)", "data": STL10},
    "stl10_simclr": {
        "about": "75.7 %, 300 epochs (75.6 at 200). SimCLR, also in Table 9 of AUC-CL",
        "data": STL10,
        "loss": {"name": "nt_xent", "temperature": 0.5},
    },
}

get_config = base.make_get_config(VARIANTS, SHARED)
