"""TCL without labels on ImageNet-100 with a ResNet-18: three views.

Paper: Animesh and Chandraker, Tuned Contrastive Learning, 2023, Table 5.2.
Command: jaxssl train --config imagenet100_tcl
Expected (published, not run here): 78.4 % top-1, linear, batch 256, 400 epochs.
Notes: As in cifar10_tcl.
"""

from ml_collections import ConfigDict

from jaxssl.configs import imagenet100_simclr


def get_config() -> ConfigDict:
    """Return the config of `imagenet100_simclr` with the settings that this recipe changes."""
    config = imagenet100_simclr.get_config()
    config.views = 3
    config.head.proj_output_dim = 256
    config.loss = ConfigDict(
        {"name": "tcl", "preset": "self_supervised"}
    )  # We chose this temperature.
    config.optim.lr = 0.5
    return config
