"""Baselines on CIFAR-100 with a ResNet-18: solo-learn has the same settings as for CIFAR-10.

Command: jaxssl train --config cifar100_baselines:VARIANT
Published, not run here: as in cifar10_baselines.
"""

from ml_collections import ConfigDict

from jaxssl.configs import cifar10_baselines

VARIANTS = {
    "simclr": {"about": "65.78 %. Chen et al., SimCLR, 2020"},
    "moco_v3": {"about": "68.83 %. Chen, Xie and He, MoCo-v3, 2021"},
}


def get_config(variant: str) -> ConfigDict:
    """Return the config of a variant of `cifar10_baselines` with other data."""
    config = cifar10_baselines.get_config(variant)
    config.data.name = "cifar100"
    return config
