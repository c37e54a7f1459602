"""Transfer by fine-tuning all weights: the data sets of AUC-CL's Table 8 and MoCo-v3's Table 6.

Papers: Chen, Xie and He, MoCo v3, 2021, Table 6; Sharma et al., AUC-CL, ICLR 2024, Table 8.
Command: jaxssl eval --suite transfer --workdir runs/A,runs/B
Flowers and Pets have the mean over classes. The papers report top-1, which results.json has too.
Each data set has MoCo-v3's weight decay and mixing. The stochastic depth is the network's; MoCo-v3
uses 0.1 (Pets: 0).
"""

from typing import Any


def get_suite() -> dict[str, Any]:
    """Return the suite: a protocol with its preset, and the data sets to evaluate on."""
    train_and_validation = {"train_split": "train+validation"}
    per_class = {"metric": "finetune_mean_per_class"}
    return {
        "protocol": "finetune:moco_v3_cifar10",
        "metric": "finetune_top1",
        "datasets": {
            "CIFAR-10": {"name": "cifar10"},
            "CIFAR-100": {"name": "cifar100", "protocol": "finetune:moco_v3_cifar100"},
            "Flowers": {"name": "oxford_flowers102", **train_and_validation, **per_class}
            | {"protocol": "finetune:moco_v3_flowers"},
            "Pets": {"name": "oxford_iiit_pet", "protocol": "finetune:moco_v3_pets", **per_class},
        },
    }
