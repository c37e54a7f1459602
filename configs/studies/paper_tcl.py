"""Config of the supervised studies of TCL at scale "paper": CIFAR-100, ResNet-50, AutoAugment.

Command: jaxssl study NAME --scale paper
Paper: Animesh and Chandraker, Tuned Contrastive Learning, 2023, Section 5.2 and Appendix A.2: 128
views in a batch, 100 epochs, rate 0.1, k1 = 5000.
"""

from ml_collections import ConfigDict

from jaxssl.configs import base, cifar100_tcl_supervised


def get_config() -> ConfigDict:
    """Return the config of `cifar100_tcl_supervised` with changes. The studies set the loss."""
    config = cifar100_tcl_supervised.get_config()
    config.batch_size = 64  # The thesis counts views, 128 in a batch.
    config.optim.lr = 0.1
    config.loss = base.get_config().loss
    return config
