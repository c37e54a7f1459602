"""Config of the studies at scale "small": a fifth of CIFAR-10, a small network, 1 to 2 hours.

Command: jaxssl study NAME --scale small
For images in a folder or an archive: --config.data.name=folder --config.data.path=PATH.
The settings are our choice and the same for all methods.
"""

from ml_collections import ConfigDict

from jaxssl.configs import base


def get_config() -> ConfigDict:
    """Return the config of `base` with the settings that this recipe changes."""
    config = base.get_config()
    config.data.name = "cifar10"
    config.data.train_split = "train[:20%]"
    config.data.test_split = "test[:20%]"
    config.batch_size = 64
    config.epochs = 20
    config.augment = ConfigDict({"name": "simclr", "size": 32})
    config.net = ConfigDict({"name": "convnet"})
    config.head.proj_hidden_dim = 256
    config.optim.lr = 2e-3
    config.schedule.warmup_epochs = 1.0
    config.eval.every = 4.0
    return config
