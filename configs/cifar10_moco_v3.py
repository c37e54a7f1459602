"""MoCo-v3 on CIFAR-10 with a ResNet-18.

Paper: Chen, Xie and He, MoCo-v3, 2021. The settings are solo-learn's published ones for this data
set.
Command: jaxssl train --config cifar10_moco_v3
Expected (published, not run here): 93.10 % top-1, online linear classifier, 1000 epochs, batch 256
(solo-learn's README).
Notes: Here the linear probe is fitted on frozen features. The published classifier was trained
along with the encoder.
"""

from ml_collections import ConfigDict

from jaxssl.configs import cifar10_byol


def get_config() -> ConfigDict:
    """Return the config of `cifar10_byol` with the settings that this recipe changes."""
    config = cifar10_byol.get_config()
    config.head.proj_last_norm = "bn_fixed"
    config.method.preset = "moco_v3"
    config.loss = ConfigDict({"name": "info_nce", "temperature": 0.2})
    config.optim.update(lr=0.3, weight_decay=1e-6)
    return config
