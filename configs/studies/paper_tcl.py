"""TCL's studies with labels at the scale "paper": CIFAR-100, ResNet-50, SGD, AutoAugment.

Command: jaxssl study NAME --scale paper
Paper: Animesh and Chandraker, Tuned Contrastive Learning, 2023, Section 5.2 and Appendix A.2: 128
views in a batch, 100 epochs, rate 0.1, k1 = 5000.
"""

from ml_collections import ConfigDict

from jaxssl.configs import base, cifar100_tcl_supervised


def get_config() -> ConfigDict:
    """Return `cifar100_tcl_supervised` with changes; the studies set the loss."""
    config = cifar100_tcl_supervised.get_config()
    config.batch_size = 64  # the thesis counts views: 128
    config.optim.lr = 0.1
    config.loss = base.get_config().loss
    return config
