"""TCL without labels on three views. All but loss and learning rate is as in solo-learn's SimCLR.

Paper: Animesh and Chandraker, Tuned Contrastive Learning, 2023, Table 5.2.
Command: jaxssl train --config tcl:VARIANT
Published, not run here: the results of the variants are top-1 accuracies of a linear classifier.
Notes: The paper does not state the temperature (0.2, solo-learn's for SimCLR), the warm-up (10
epochs, solo-learn's) and the third view (augmented like the first two).
"""

from jaxssl.configs import base

SHARED = {
    "batch_size": 256,
    "views": 3,
    "augment": {"name": "simclr", "size": 32, "blur": 0.5}
    | {"brightness": 0.8, "contrast": 0.8, "saturation": 0.8, "hue": 0.2},
    "net": {"name": "resnet", "depth": 18, "stem": "cifar"},
    "head": {"name": "mlp", "proj_hidden_dim": 2048, "proj_output_dim": 256, "proj_norm": "none"},
    "loss": {"name": "tcl", "preset": "self_supervised"},
    "optim": {"name": "larc", "lr": 0.5, "lr_scaling": "linear", "weight_decay": 1e-4}
    | {"trust_coefficient": 0.02, "lars_clip": True},
    "schedule": {"warmup_epochs": 10.0},
    "eval": {"every": 25.0, "protocols": ("linear:tcl_views", "linear", "knn")},
}

VARIANTS = {
    "cifar10": {"about": "91.8 %", "data": {"name": "cifar10"}, "epochs": 1000},
    "cifar100": {"about": "67.2 %", "data": {"name": "cifar100"}, "epochs": 1000},
    "imagenet100": {
        "about": "78.4 %",
        "data": {"name": "imagenet100", "test_split": "validation"},
        "epochs": 400,
        "augment": {"size": 224},
        "net": {"stem": "imagenet"},
        "head": {"proj_hidden_dim": 4096},
    },
}

get_config = base.make_get_config(VARIANTS, SHARED)
