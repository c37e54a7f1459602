"""AUC-CL on your own pictures, for a laptop without a GPU.

Paper: Sharma et al., AUC-CL, ICLR 2024. The settings are ours.
Command: jaxssl train --config pictures --config.data.path=FOLDER
Notes: views of 64 x 64 pixels and a small network. 20 % of the pictures are set aside as the
split "test". To train on all of them: --config.data.test_fraction=0 --config.data.test_split=train.
With a GPU: --config.net.name=resnet --config.net.depth=18 --config.net.stem=imagenet
--config.augment.size=128.
"""

from ml_collections import ConfigDict

from jaxssl.configs import base


def get_config() -> ConfigDict:
    """Return the config of `base` with the settings that this config changes."""
    config = base.get_config()
    config.data.name = "folder"
    config.batch_size = 64
    config.epochs = 100
    config.augment = ConfigDict({"name": "simclr", "size": 64})
    config.net = ConfigDict(
        {"name": "convnet", "widths": (32, 64, 128, 256), "strides": (2, 2, 2, 2)}
    )
    config.head.proj_hidden_dim = 256
    config.loss = ConfigDict({"name": "auc_cl", "preset": "recommended"})
    config.optim.lr = 2e-3
    config.schedule.warmup_epochs = 5.0
    return config
