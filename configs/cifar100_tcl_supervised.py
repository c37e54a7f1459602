"""TCL with labels on CIFAR-100 with a ResNet-50, then a linear classifier.

Paper: Animesh and Chandraker, Tuned Contrastive Learning, 2023, Table 5.1.
Command: jaxssl train --config cifar100_tcl_supervised
Expected (published, not run here): 79.8 % top-1, linear, 100 + 50 epochs.
Notes: As in cifar10_tcl_supervised.
"""

from ml_collections import ConfigDict

from jaxssl.configs import cifar10_tcl_supervised


def get_config() -> ConfigDict:
    """Return the config of `cifar10_tcl_supervised` with the settings that this recipe changes."""
    config = cifar10_tcl_supervised.get_config()
    config.data.name = "cifar100"
    config.batch_size = 128  # The thesis counts views, 256 in a batch.
    config.loss.preset = "supervised_cifar100"
    config.optim.lr = 0.2
    return config
