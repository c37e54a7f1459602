"""AUC-CL on CIFAR-100 with a ResNet-18: the paper's setting, the recommended loss.

Paper: Sharma et al., AUC-CL, ICLR 2024, Table 3.
Command: jaxssl train --config cifar100_auc_cl
Expected (published, not run here): 69.7 % top-1, linear, batch 128, 500 epochs; 59.3 at 200 epochs
(Table 10).
Notes: As in cifar10_auc_cl.
"""

from ml_collections import ConfigDict

from jaxssl.configs import cifar10_auc_cl


def get_config() -> ConfigDict:
    """Return the config of `cifar10_auc_cl` with the settings that this recipe changes."""
    config = cifar10_auc_cl.get_config()
    config.data.name = "cifar100"
    return config
