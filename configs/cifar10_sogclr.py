"""SogCLR on CIFAR-10 with a ResNet-18.

Paper: Yuan et al., Provable Stochastic Optimization for Global Contrastive Learning, 2022; the
settings are those of LibAUC's tutorial on CIFAR-100.
Command: jaxssl train --config cifar10_sogclr
Expected (published, not run here): none known to us for CIFAR-10 in this setting.
Notes: The data set and the augmentation (SimCLR's for CIFAR) are our choice.
"""

from ml_collections import ConfigDict

from jaxssl.configs import cifar10_simclr


def get_config() -> ConfigDict:
    """Return the config of `cifar10_simclr` with the settings that this recipe changes."""
    config = cifar10_simclr.get_config()
    config.epochs = 200
    config.augment = ConfigDict({"name": "simclr", "size": 32})  # We chose this augmentation.
    config.head.proj_last_norm = "bn_fixed"
    config.loss = ConfigDict({"name": "sogclr", "temperature": 0.5, "gamma": 0.9})
    config.optim.update(name="lars", lr=0.075, lr_scaling="sqrt", weight_decay=1e-6)
    config.optim.update(trust_coefficient=1e-3, lars_clip=False)
    return config
