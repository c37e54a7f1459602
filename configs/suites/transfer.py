"""Transfer by fine-tuning all weights: the columns of MoCo-v3's and AUC-CL's tables (T8).

Papers: Chen, Xie and He, MoCo v3, 2021, Table 6; Sharma et al., AUC-CL, ICLR 2024, Table 8.
Command: python eval.py --suite configs/suites/transfer.py --workdir runs/A,runs/B
The choice of the weight decay takes two trainings a data set and one more with the best.
"""

from typing import Any


def get_suite() -> dict[str, Any]:
    """The protocol and its data sets."""
    both = {"train_split": "train+validation"}
    per_class = {"metric": "finetune_mean_per_class"}
    return {
        "protocol": "finetune:moco_v3",
        "metric": "finetune_top1",
        "datasets": {
            "CIFAR-10": {"name": "cifar10"},
            "CIFAR-100": {"name": "cifar100"},
            "Flowers": {"name": "oxford_flowers102", **both, **per_class},
            "Pets": {"name": "oxford_iiit_pet", **per_class},
        },
    }
