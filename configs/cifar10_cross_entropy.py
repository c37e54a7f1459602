"""Cross-entropy on CIFAR-10 with a ResNet-50: the supervised baseline.

Paper: Animesh and Chandraker, Tuned Contrastive Learning, 2023, Table 5.1.
Command: jaxssl train --config cifar10_cross_entropy
Expected (published, not run here): 95.0 % top-1.
Notes: No settings are published. Ours are the settings of cifar10_tcl_supervised with 128 images
and 150 epochs. The metric is the accuracy of the trained classifier. The linear probe is fitted
from scratch.
"""

from ml_collections import ConfigDict

from jaxssl.configs import cifar10_tcl_supervised


def get_config() -> ConfigDict:
    """Return the config of `cifar10_tcl_supervised` with the settings that this recipe changes."""
    config = cifar10_tcl_supervised.get_config()
    config.batch_size = 128  # our choice, because the paper gives no value
    config.epochs = 150  # our choice: as many as pretraining (100) and linear stage (50)
    config.views = 1
    config.head = ConfigDict({"name": "mlp", "proj_layers": 0})
    config.loss = ConfigDict({"name": "cross_entropy", "num_classes": 10})
    return config
