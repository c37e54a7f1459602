"""Config of the self-supervised studies of TCL at scale "paper": CIFAR-10, ResNet-18, LARS.

Command: jaxssl study views --scale paper
Paper: Animesh and Chandraker, Tuned Contrastive Learning, 2023, Section 5.3 and Appendix A.3.
"""

from ml_collections import ConfigDict

from jaxssl.configs import base, cifar10_tcl


def get_config() -> ConfigDict:
    """Return the config of `cifar10_tcl` with changes. The studies set loss and views."""
    config = cifar10_tcl.get_config()
    config.views = 2
    config.loss = base.get_config().loss
    return config
