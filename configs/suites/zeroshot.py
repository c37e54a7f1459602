"""Zero-shot classification with image-text networks on CIFAR.

Papers: Radford et al., Learning Transferable Visual Models From Natural Language Supervision, 2021;
DeCL: Chen et al., Why do We Need Large Batchsizes in Contrastive Learning?, NeurIPS 2022, Table 5.
Command: jaxssl eval --suite zeroshot --workdir runs/A,runs/B
Each class has the prompt "a photo of a NAME." DeCL does not state its prompts. Its Table 5 has
ImageNet, whose classes TFDS names by WordNet ids. A file for data.classes lists each id, a tab and
its words:
    jaxssl eval --workdir runs/A --protocols zeroshot --dataset imagenet2012
        --config.data.test_split=validation --config.data.classes=FILE
"""

from typing import Any


def get_suite() -> dict[str, Any]:
    """Return the suite: a protocol with its preset, and the data sets to evaluate on."""
    return {
        "protocol": "zeroshot:photo",
        "metric": "zeroshot_top1",
        "datasets": {
            "CIFAR-10": {"name": "cifar10"},
            "CIFAR-100": {"name": "cifar100"},
        },
    }
