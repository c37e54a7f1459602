"""Cross-entropy on CIFAR-10 with a ResNet-50: the supervised baseline.

Paper: Animesh and Chandraker, Tuned Contrastive Learning, 2023, Table 5.1.
Command: python train.py --config configs/cifar10_cross_entropy.py
Expected (published, not run here): 95.0 % top-1.
Open: all settings are unstated; ours are those of cifar10_tcl_supervised with 128 images and 150
epochs. The trained classifier's accuracy is the metric; the linear probe is fitted anew.
"""

from ml_collections import ConfigDict

from configs import cifar10_tcl_supervised


def get_config() -> ConfigDict:
    """What differs from `cifar10_tcl_supervised`."""
    config = cifar10_tcl_supervised.get_config()
    config.batch_size = 128  # ours
    config.epochs = 150  # ours: those of both stages
    config.views = 1
    config.head = ConfigDict({"name": "mlp", "proj_layers": 0})
    config.loss = ConfigDict({"name": "cross_entropy", "num_classes": 10})
    return config
