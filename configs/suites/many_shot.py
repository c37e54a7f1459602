"""Many-shot transfer: SSL-transfer's fine-tuning, as MMCL's Table 1 reports it.

Papers: Ericsson et al., How Well Do Self-Supervised Models Transfer?, CVPR 2021; Shah et al.,
MMCL, AAAI 2022, Table 1. Aircraft, Flowers, Pets and Caltech-101 report mean per-class accuracy,
which also selects their learning rate and weight decay.
Command: jaxssl eval --suite many_shot --weights A.safetensors,B.pth
Differs from the released code, which uses the validation sets of Aircraft, DTD and Flowers (here a
fifth of the training images is drawn), decays all parameters (here only matrices), and keeps the
whole short side of test images (here 87.5 % of it if images have many sizes).
FGVC-Aircraft is not in TFDS. It is the folder `fgvc_aircraft`, with train/CLASS/*.jpg and
test/CLASS/*.jpg.
"""

from typing import Any


def get_suite() -> dict[str, Any]:
    """Return the suite: a protocol with its preset, and the data sets to evaluate on."""
    train_and_validation = {"train_split": "train+validation"}
    per_class = {
        "protocol": "finetune:ssl_transfer_per_class",
        "metric": "finetune_mean_per_class",
    }
    return {
        "protocol": "finetune:ssl_transfer",
        "metric": "finetune_top1",
        "datasets": {
            "Aircraft": {"name": "folder", "path": "fgvc_aircraft", **per_class},
            "Caltech-101": {"name": "caltech101", **per_class},
            "Cars": {"name": "cars196"},
            "CIFAR-10": {"name": "cifar10"},
            "CIFAR-100": {"name": "cifar100"},
            "DTD": {"name": "dtd", **train_and_validation},
            "Flowers": {"name": "oxford_flowers102", **train_and_validation, **per_class},
            "Food": {"name": "food101", "test_split": "validation"},
            "Pets": {"name": "oxford_iiit_pet", **per_class},
        },
    }
