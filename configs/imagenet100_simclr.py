"""SimCLR on ImageNet-100 with a ResNet-18.

Paper: Chen et al., SimCLR, 2020. The settings are solo-learn's published ones for this data set.
Command: jaxssl train --config imagenet100_simclr
Expected (published, not run here): 77.64 % top-1, online linear classifier, 400 epochs
(solo-learn's README).
Notes: The projector has BatchNorm. The published one has none. The 100 classes are CMC's;
solo-learn does not state which classes it used.
"""

from ml_collections import ConfigDict

from jaxssl.configs import cifar10_simclr


def get_config() -> ConfigDict:
    """Return the config of `cifar10_simclr` with the settings that this recipe changes."""
    config = cifar10_simclr.get_config()
    config.data.update(name="imagenet100", test_split="validation")
    config.epochs = 400
    config.augment.size = 224
    config.net.stem = "imagenet"
    config.head.update(proj_hidden_dim=4096, proj_output_dim=512)
    config.optim.lr = 0.3
    return config
