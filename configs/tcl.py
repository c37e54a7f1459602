"""TCL without labels on three views. All but loss and learning rate is as in solo-learn's SimCLR.

Paper: Animesh and Chandraker, Tuned Contrastive Learning, 2023, Table 5.2.
Command: jaxssl train --config tcl:VARIANT
Published, not run here: the results of the variants are top-1 accuracies of a linear classifier.
Notes: The paper does not state the temperature (0.2, solo-learn's for SimCLR), the warm-up (10
epochs, solo-learn's) and the third view (augmented like the first two).
"""

from jaxssl.configs import base, cifar10_baselines

SHARED = {
    **cifar10_baselines.SHARED,
    "views": 3,
    "head": {**cifar10_baselines.SHARED["head"], "proj_norm": "none"},
    "loss": {"name": "tcl", "preset": "self_supervised"},
    "optim": {**cifar10_baselines.SHARED["optim"], "lr": 0.5},
    "eval": {"every": 25.0, "protocols": ("linear:tcl_views", "linear", "knn")},
}

VARIANTS = {
    "cifar10": {"about": "91.8 %"},
    "cifar100": {"about": "67.2 %", "data": {"name": "cifar100"}},
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
