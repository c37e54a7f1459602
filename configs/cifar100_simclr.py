"""SimCLR on CIFAR-100 with a ResNet-18.

Paper: Chen et al., SimCLR, 2020. The settings are solo-learn's published ones for this data set.
Command: jaxssl train --config cifar100_simclr
Expected (published, not run here): 65.78 % top-1, online linear classifier, 1000 epochs, batch 256
(solo-learn's README).
Notes: As in cifar10_simclr.
"""

from ml_collections import ConfigDict

from jaxssl.configs import cifar10_simclr


def get_config() -> ConfigDict:
    """Return the config of `cifar10_simclr` with the settings that this recipe changes."""
    config = cifar10_simclr.get_config()
    config.data.name = "cifar100"
    return config
