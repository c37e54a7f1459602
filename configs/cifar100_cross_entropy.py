"""Cross-entropy on CIFAR-100 with a ResNet-50: the supervised baseline.

Paper: Animesh and Chandraker, Tuned Contrastive Learning, 2023, Table 5.1.
Command: jaxssl train --config cifar100_cross_entropy
Expected (published, not run here): 75.3 % top-1.
Notes: As in cifar10_cross_entropy.
"""

from ml_collections import ConfigDict

from jaxssl.configs import cifar10_cross_entropy


def get_config() -> ConfigDict:
    """Return the config of `cifar10_cross_entropy` with the settings that this recipe changes."""
    config = cifar10_cross_entropy.get_config()
    config.data.name = "cifar100"
    config.loss.num_classes = 100
    return config
