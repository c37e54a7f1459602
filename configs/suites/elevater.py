"""ELEVATER's linear probe with five labels a class, on those of its 20 data sets that TFDS has.

Papers: Li et al., ELEVATER, NeurIPS 2022; AUC-CL, Table 4, and DeCL, Table 4, report it.
Command: jaxssl eval --suite elevater --workdir runs/A,runs/B
Mean and deviation over three seeds; Caltech-101, Flowers and Pets are mean per-class accuracies.
EuroSAT and RESISC45 are 80/20 parts of TFDS's only split; ELEVATER trains, validates and tests on
5000/5000/5000 and 3150/3150/25200 images. Not in TFDS: country211, fer2013, fgvc_aircraft, gtsrb,
hateful memes, KITTI distance, rendered SST-2; VOC 2007 has many labels an image.
"""

from typing import Any


def get_suite() -> dict[str, Any]:
    """Return the suite: a protocol with its preset, and the data sets to evaluate on."""
    train_and_validation = {"train_split": "train+validation"}
    per_class = {"metric": "fewshot_5shot_mean_per_class"}
    split_80_20 = {"train_split": "train[:80%]", "test_split": "train[80%:]"}
    return {
        "protocol": "fewshot:elevater",
        "metric": "fewshot_5shot_top1",
        "datasets": {
            "Caltech-101": {"name": "caltech101", **per_class},
            "Cars": {"name": "cars196"},
            "CIFAR-10": {"name": "cifar10"},
            "CIFAR-100": {"name": "cifar100"},
            "DTD": {"name": "dtd", **train_and_validation},
            "EuroSAT": {"name": "eurosat", **split_80_20},
            "Flowers": {"name": "oxford_flowers102", **train_and_validation, **per_class},
            "Food": {"name": "food101", "test_split": "validation"},
            "MNIST": {"name": "mnist"},
            "Pets": {"name": "oxford_iiit_pet", **per_class},
            "PatchCamelyon": {"name": "patch_camelyon"},
            "RESISC45": {"name": "resisc45", **split_80_20},
        },
    }
