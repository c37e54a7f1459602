"""SupCon on CIFAR-100 with a ResNet-50, then a linear classifier.

Paper: Khosla et al., Supervised Contrastive Learning, 2020, as in Animesh and Chandraker, Tuned
Contrastive Learning, 2023, Table 5.1.
Command: jaxssl train --config cifar100_sup_con
Expected (published, not run here): 79.1 % top-1, linear, 100 + 50 epochs (76.5 in the first
paper).
Notes: As in cifar10_tcl_supervised.
"""

from ml_collections import ConfigDict

from jaxssl.configs import cifar100_tcl_supervised


def get_config() -> ConfigDict:
    """Return the config of `cifar100_tcl_supervised` with the settings that this recipe changes."""
    config = cifar100_tcl_supervised.get_config()
    config.loss = ConfigDict({"name": "sup_con", "temperature": 0.1})
    return config
