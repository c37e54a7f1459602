"""TCL without labels on CIFAR-10 with a ResNet-18: three views.

Paper: Animesh and Chandraker, Tuned Contrastive Learning, 2023, Table 5.2.
Command: jaxssl train --config cifar10_tcl
Expected (published, not run here): 91.8 % top-1, linear, batch 256, 1000 epochs.
Notes: The paper does not state the temperature (0.2, solo-learn's for SimCLR), the warm-up (10
epochs, solo-learn's) and the third view (augmented like the first two). The projector has
BatchNorm. The published one has none.
"""

from ml_collections import ConfigDict

from jaxssl.configs import cifar10_simclr


def get_config() -> ConfigDict:
    """Return the config of `cifar10_simclr` with the settings that this recipe changes."""
    config = cifar10_simclr.get_config()
    config.views = 3
    config.loss = ConfigDict(
        {"name": "tcl", "preset": "self_supervised"}
    )  # We chose this temperature.
    config.optim.lr = 0.5
    return config
