"""MoCo-v2 on ImageNet with a ResNet-50: a queue, one direction.

Paper: Chen et al., Improved Baselines with Momentum Contrastive Learning, 2020. The released code.
Command: jaxssl train --config imagenet_moco_v2
Expected (published, not run here): 67.5 % top-1, linear, batch 256, 200 epochs (71.1 at 800).
Notes: The released code shuffles the batch over devices. Here BatchNorm sees the global batch.
"""

from ml_collections import ConfigDict

from jaxssl.configs import imagenet_simclr


def get_config() -> ConfigDict:
    """Return the config of `imagenet_simclr` with the settings that this recipe changes."""
    config = imagenet_simclr.get_config()
    config.batch_size = 256
    config.epochs = 200
    config.augment = ConfigDict({"name": "simclr", "size": 224, "crop_scale": (0.2, 1.0)})
    config.augment.blur = 0.5
    config.head.proj_norm = "none"
    config.method = ConfigDict({"name": "momentum", "preset": "moco_v2"})
    config.loss = ConfigDict({"name": "info_nce", "preset": "moco_v2"})
    config.optim.update(name="sgd", lr=0.03, weight_decay=1e-4)
    config.schedule.warmup_epochs = 0.0
    return config
