"""Config of the studies at scale "tiny": scikit-learn's digits, minutes on two CPU cores.

Command: jaxssl study NAME --scale tiny
The settings are our choice and the same for all methods, except the loss and the settings that a
method requires. No setting was chosen by accuracy.
"""

from ml_collections import ConfigDict

from jaxssl.configs import base


def get_config() -> ConfigDict:
    """Return the config of `base` with the settings that this recipe changes."""
    config = base.get_config()
    config.batch_size = 64
    config.epochs = 20
    config.log_every = 5
    config.augment = ConfigDict({"name": "digits"})
    config.net = ConfigDict({"name": "convnet"})
    config.head.proj_hidden_dim = 256
    config.optim.lr = 3e-3
    config.schedule.warmup_epochs = 1.0
    config.eval.every = 2.0
    return config
