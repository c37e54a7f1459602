"""Config of the studies at scale "medium": all of CIFAR-10, a small network, minutes a run.

Command: jaxssl study NAME --scale medium
For images in a folder or an archive: --config.data.name=folder --config.data.path=PATH.
The settings are those of "small", with all images.
"""

from ml_collections import ConfigDict

from jaxssl.configs.studies import small


def get_config() -> ConfigDict:
    """Return the config of `small` with the settings that this recipe changes."""
    config = small.get_config()
    config.data.train_split = "train"
    config.data.test_split = "test"
    config.log_every = 200
    return config
