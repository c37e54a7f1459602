"""Decoupled contrastive learning on CIFAR-10 with a ResNet-18.

Paper: Yeh et al., Decoupled Contrastive Learning, 2022, the row DCL of Table 10 of AUC-CL.
Command: jaxssl train --config cifar10_dcl
Expected (published, not run here): 85.3 % top-1, linear, 200 epochs, batch 256 (Table 10 of
AUC-CL; 85.7 at 128, 84.7 at 512).
Notes: The optimiser, temperature and augmentation of cifar10_simclr are our choice.
"""

from ml_collections import ConfigDict

from jaxssl.configs import cifar10_simclr


def get_config() -> ConfigDict:
    """Return the config of `cifar10_simclr` with the settings that this recipe changes."""
    config = cifar10_simclr.get_config()
    config.epochs = 200
    config.loss = ConfigDict({"name": "dcl", "temperature": 0.2})  # We chose this temperature.
    return config
