"""MoCo-v3 on ImageNet with a ViT-S.

Paper: Chen, Xie and He, An Empirical Study of Training Self-Supervised Vision Transformers, 2021.
The released code.
Command: jaxssl train --config imagenet_moco_v3_vit_s
Expected (published, not run here): 73.2 % top-1, linear (SGD, batch 1024, 90 epochs), batch 4096,
300 epochs.
Notes: No known differences.
"""

from ml_collections import ConfigDict

from jaxssl.configs import imagenet_moco_v3_r50


def get_config() -> ConfigDict:
    """Return the config of `imagenet_moco_v3_r50` with the settings that this recipe changes."""
    config = imagenet_moco_v3_r50.get_config()
    config.epochs = 300
    config.augment.crop_scale = (0.08, 1.0)
    config.net = ConfigDict({"name": "vit", "size": "small", "patch_size": 16})
    config.head.proj_layers = 3
    config.predictor.pred_last_norm = "bn_fixed"
    config.loss = ConfigDict({"name": "info_nce", "preset": "moco_v3_vit"})
    config.optim.update(name="adamw", lr=1.5e-4, weight_decay=0.1)
    config.schedule.warmup_epochs = 40.0
    return config
