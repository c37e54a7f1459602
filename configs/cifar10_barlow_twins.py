"""Barlow Twins on CIFAR-10 with a ResNet-18.

Paper: Zbontar et al., Barlow Twins, 2021. The settings are solo-learn's published ones for this
data set.
Command: jaxssl train --config cifar10_barlow_twins
Expected (published, not run here): 92.10 % top-1, online linear classifier, 1000 epochs, batch 256
(solo-learn's README).
Notes: Here the linear probe is fitted on frozen features. The published classifier was trained
along with the encoder.
"""

from ml_collections import ConfigDict

from jaxssl.configs import cifar10_simclr


def get_config() -> ConfigDict:
    """Return the config of `cifar10_simclr` with the settings that this recipe changes."""
    config = cifar10_simclr.get_config()
    config.augment = ConfigDict({"name": "simclr", "size": 32, "saturation": 0.2})
    config.second_view = ConfigDict({"solarize": 0.2})
    config.head.update(proj_output_dim=2048, proj_layers=3)
    config.loss = ConfigDict({"name": "barlow_twins", "preset": "solo_learn", "scale": 0.1})
    config.optim.lr = 0.3
    return config
