"""MoCo-v3 on ImageNet-100 with a ResNet-18.

Paper: Chen, Xie and He, MoCo-v3, 2021. The settings are solo-learn's published ones for this data
set.
Command: jaxssl train --config imagenet100_moco_v3
Expected (published, not run here): 80.36 % top-1, online linear classifier, 400 epochs
(solo-learn's README).
Notes: The 100 classes are CMC's. Solo-learn does not state which classes it used.
"""

from ml_collections import ConfigDict

from jaxssl.configs import cifar10_moco_v3


def get_config() -> ConfigDict:
    """Return the config of `cifar10_moco_v3` with the settings that this recipe changes."""
    config = cifar10_moco_v3.get_config()
    config.data.update(name="imagenet100", test_split="validation")
    config.epochs = 400
    config.augment.update(size=224, blur=1.0)
    config.second_view.blur = 0.1
    config.net.stem = "imagenet"
    return config
