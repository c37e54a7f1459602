"""VICReg on CIFAR-10 with a ResNet-18.

Paper: Bardes et al., VICReg, 2022. The settings are solo-learn's published ones for this data set.
Command: jaxssl train --config cifar10_vicreg
Expected (published, not run here): 92.07 % top-1, online linear classifier, 1000 epochs, batch 256
(solo-learn's README).
Notes: Here the linear probe is fitted on frozen features. The published classifier was trained
along with the encoder.
"""

from ml_collections import ConfigDict

from jaxssl.configs import cifar10_barlow_twins


def get_config() -> ConfigDict:
    """Return the config of `cifar10_barlow_twins` with the settings that this recipe changes."""
    config = cifar10_barlow_twins.get_config()
    config.augment.update(crop_scale=(0.2, 1.0), solarize=0.1)
    config.second_view = ConfigDict()
    config.loss = ConfigDict({"name": "vicreg", "preset": "solo_learn"})
    return config
