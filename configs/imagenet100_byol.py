"""BYOL on ImageNet-100 with a ResNet-18.

Paper: Grill et al., Bootstrap Your Own Latent, 2020. The settings are solo-learn's published ones
for this data set.
Command: jaxssl train --config imagenet100_byol
Expected (published, not run here): 80.16 % top-1, online linear classifier, 400 epochs
(solo-learn's README).
Notes: The 100 classes are CMC's. Solo-learn does not state which classes it used.
"""

from ml_collections import ConfigDict

from jaxssl.configs import cifar10_byol


def get_config() -> ConfigDict:
    """Return the config of `cifar10_byol` with the settings that this recipe changes."""
    config = cifar10_byol.get_config()
    config.data.update(name="imagenet100", test_split="validation")
    config.epochs = 400
    config.augment.update(size=224, blur=1.0)
    config.second_view.blur = 0.1
    config.net.stem = "imagenet"
    config.predictor.pred_hidden_dim = 8192
    config.optim.update(lr=0.5, weight_decay=1e-6)
    return config
