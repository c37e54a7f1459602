"""MMCL with the matrix inverse on CIFAR-100 with a ResNet-50.

Paper: Shah et al., Max-Margin Contrastive Learning, AAAI 2022, Table 8. The settings are the
released code's.
Command: jaxssl train --config cifar100_mmcl_inv
Expected (published, not run here): 68.81 % top-1, linear (Adam 1e-3, batch 512, 100 epochs, best
of every fifth), 400 epochs.
Notes: As in cifar100_mmcl_pgd.
"""

from ml_collections import ConfigDict

from jaxssl.configs import cifar100_mmcl_pgd


def get_config() -> ConfigDict:
    """Return the config of `cifar100_mmcl_pgd` with the settings that this recipe changes."""
    config = cifar100_mmcl_pgd.get_config()
    gamma = config.loss.gamma
    config.loss = ConfigDict({"name": "mmcl", "preset": "paper_inv", "gamma": gamma})
    return config
