"""MoCo-v3 on CIFAR-100 with a ResNet-18.

Paper: Chen, Xie and He, MoCo-v3, 2021. The settings are solo-learn's published ones for this data
set.
Command: jaxssl train --config cifar100_moco_v3
Expected (published, not run here): 68.83 % top-1, online linear classifier, 1000 epochs, batch 256
(solo-learn's README).
Notes: As in cifar10_moco_v3.
"""

from ml_collections import ConfigDict

from jaxssl.configs import cifar10_moco_v3


def get_config() -> ConfigDict:
    """Return the config of `cifar10_moco_v3` with the settings that this recipe changes."""
    config = cifar10_moco_v3.get_config()
    config.data.name = "cifar100"
    return config
