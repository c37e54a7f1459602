"""TCL without labels on CIFAR-100 with a ResNet-18: three views.

Paper: Animesh and Chandraker, Tuned Contrastive Learning, 2023, Table 5.2.
Command: jaxssl train --config cifar100_tcl
Expected (published, not run here): 67.2 % top-1, linear, batch 256, 1000 epochs.
Notes: As in cifar10_tcl.
"""

from ml_collections import ConfigDict

from jaxssl.configs import cifar10_tcl


def get_config() -> ConfigDict:
    """Return the config of `cifar10_tcl` with the settings that this recipe changes."""
    config = cifar10_tcl.get_config()
    config.data.name = "cifar100"
    return config
