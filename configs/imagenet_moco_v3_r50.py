"""MoCo-v3 on ImageNet with a ResNet-50.

Paper: Chen, Xie and He, An Empirical Study of Training Self-Supervised Vision Transformers, 2021.
The released code.
Command: jaxssl train --config imagenet_moco_v3_r50
Expected (published, not run here): 68.9 % top-1, linear (SGD 0.1, batch 1024, 90 epochs), batch
4096, 100 epochs.
Notes: No known differences.
"""

from ml_collections import ConfigDict

from jaxssl.configs import imagenet_simclr


def get_config() -> ConfigDict:
    """Return the config of `imagenet_simclr` with the settings that this recipe changes."""
    config = imagenet_simclr.get_config()
    config.augment = ConfigDict({"name": "simclr", "size": 224, "crop_scale": (0.2, 1.0)})
    config.augment.update(saturation=0.2, blur=1.0)
    config.second_view = ConfigDict({"blur": 0.1, "solarize": 0.2})
    config.net.zero_init_residual = True
    config.head.update(proj_hidden_dim=4096, proj_output_dim=256, proj_last_norm="bn_fixed")
    config.predictor = ConfigDict({"name": "mlp"})
    config.method = ConfigDict({"name": "momentum", "preset": "moco_v3"})
    config.loss = ConfigDict({"name": "info_nce", "preset": "moco_v3_resnet"})
    config.optim.lr = 0.6
    return config
