"""Zero-shot classification with image-text networks: ImageNet, as in DeCL's Table 5, and CIFAR.

Papers: Radford et al., Learning Transferable Visual Models From Natural Language Supervision, 2021;
DeCL: Chen et al., Why do We Need Large Batchsizes in Contrastive Learning?, NeurIPS 2022, Table 5.
Command: jaxssl eval --suite zeroshot --workdir runs/A,runs/B
Each class has the prompt "a photo of a NAME." DeCL does not state its prompts.
"""

from typing import Any


def get_suite() -> dict[str, Any]:
    """Return the suite: a protocol with its preset, and the data sets to evaluate on."""
    return {
        "protocol": "zeroshot:photo",
        "metric": "zeroshot_top1",
        "datasets": {
            "ImageNet": {"name": "imagenet2012", "test_split": "validation"},
            "CIFAR-10": {"name": "cifar10"},
            "CIFAR-100": {"name": "cifar100"},
        },
    }
