"""SwAV on ImageNet with a ResNet-50: multi-crop.

Paper: Caron et al., Unsupervised Learning of Visual Features by Contrasting Cluster Assignments,
2020. The released code.
Command: jaxssl train --config imagenet_swav_r50
Expected (published, not run here): 72.1 % top-1, linear, batch 4096, 2x224 + 6x96, 100 epochs (the
authors' README).
Notes: Prototypes are trained from the start. The released code freezes them for an epoch. As in the
code, small crops are compared with the codes of both large crops, and all pairs have the same
weight.
"""

from ml_collections import ConfigDict

from jaxssl.configs import imagenet_simclr


def get_config() -> ConfigDict:
    """Return the config of `imagenet_simclr` with the settings that this recipe changes."""
    config = imagenet_simclr.get_config()
    config.augment.crop_scale = (0.14, 1.0)
    config.crops = ConfigDict({"number": 6, "size": 96, "crop_scale": (0.05, 0.14)})
    config.loss = ConfigDict({"name": "swav", "num_prototypes": 3000})
    config.schedule.update(
        end_factor=1e-3, warmup_start=0.0625
    )  # The learning rate warms up from 0.3 to 4.8 at batch size 4096.
    return config
