"""Config of MMCL's studies at scale "paper": STL-10, ResNet-50, Adam, 400 epochs.

Command: jaxssl study NAME --scale paper
Paper: Shah et al., Max-Margin Contrastive Learning, AAAI 2022. Its k-NN figures are at 200
epochs: --config.epochs=200. With --dataset cifar100, gamma has the schedule of CIFAR-100.
"""

from ml_collections import ConfigDict

from jaxssl.configs import base, stl10_mmcl_pgd


def get_config() -> ConfigDict:
    """Return the config of `stl10_mmcl_pgd` with changes. The studies set the loss."""
    config = stl10_mmcl_pgd.get_config()
    config.loss = base.get_config().loss
    return config
