"""DINO on ImageNet with a ViT-S: multi-crop.

Paper: Caron et al., Emerging Properties in Self-Supervised Vision Transformers, 2021. The released
code's plain run.
Command: jaxssl train --config imagenet_dino_vit_s
Expected (published, not run here): 69.3 % top-1, k-NN (k=20, T=0.07), 74.0 % linear, batch 512,
100 epochs (the authors' README).
Notes: Prototypes are trained from the start. The released code freezes them for an epoch. Positions
are fixed, not trained. The last learning rate is 0, not 1e-6. The gradient is clipped by its global
norm. The code clips parameter by parameter.
"""

from ml_collections import ConfigDict

from jaxssl.configs import base


def get_config() -> ConfigDict:
    """Return the config of `base` with the settings that this recipe changes."""
    config = base.get_config()
    config.data.update(name="imagenet2012", test_split="validation")
    config.batch_size = 512
    config.epochs = 100
    config.augment = ConfigDict({"name": "simclr", "size": 224, "crop_scale": (0.4, 1.0)})
    config.augment.update(saturation=0.2, blur=1.0)
    config.second_view = ConfigDict({"blur": 0.1, "solarize": 0.2})
    config.crops = ConfigDict({"number": 8, "size": 96, "crop_scale": (0.05, 0.4), "blur": 0.5})
    config.net = ConfigDict({"name": "vit", "size": "small", "patch_size": 16, "num_heads": 6})
    config.net.update(frozen_patches=False, drop_path=0.1)
    config.head = ConfigDict({"name": "dino"})
    config.method = ConfigDict({"name": "momentum", "preset": "dino"})
    config.loss = ConfigDict({"name": "dino"})
    config.optim.update(name="adamw", lr=5e-4, lr_scaling="linear", clip_norm=3.0)
    with config.optim.ignore_type():
        config.optim.weight_decay = {"schedule": "cosine", "start": 0.04, "end": 0.4}
    config.schedule.warmup_epochs = 10.0
    config.eval.knn = "moco_v3_20"
    config.eval.protocols = ("knn:moco_v3_20", "linear")
    return config
