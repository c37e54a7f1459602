"""TCL with labels on Fashion-MNIST with a ResNet-50, then a linear classifier.

Paper: Animesh and Chandraker, Tuned Contrastive Learning, 2023, Table 5.1.
Command: jaxssl train --config fashion_mnist_tcl_supervised
Expected (published, not run here): 95.7 % top-1, linear, 100 + 50 epochs.
Notes: As in cifar10_tcl_supervised.
"""

from ml_collections import ConfigDict

from jaxssl.configs import cifar10_tcl_supervised


def get_config() -> ConfigDict:
    """Return the config of `cifar10_tcl_supervised` with the settings that this recipe changes."""
    config = cifar10_tcl_supervised.get_config()
    config.data.name = "fashion_mnist"
    config.augment.update(size=28, policy="none")
    config.optim.lr = 0.09
    return config
