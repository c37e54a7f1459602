"""SwAV on CIFAR-10 with a ResNet-18.

Paper: Caron et al., SwAV, 2020. The settings are solo-learn's published ones for this data set.
Command: jaxssl train --config cifar10_swav
Expected (published, not run here): 89.17 % top-1, online linear classifier, 1000 epochs, batch 256
(solo-learn's README).
Notes: There is no queue of earlier embeddings and no frozen prototypes. The published run has a
queue of 3840 from epoch 50 and freezes prototypes for two epochs. Here the linear probe is fitted
on frozen features. The published classifier was trained along with the encoder.
"""

from ml_collections import ConfigDict

from jaxssl.configs import cifar10_simclr


def get_config() -> ConfigDict:
    """Return the config of `cifar10_simclr` with the settings that this recipe changes."""
    config = cifar10_simclr.get_config()
    config.head.proj_output_dim = 128
    config.loss = ConfigDict({"name": "swav", "num_prototypes": 3000, "temperature": 0.1})
    config.optim.update(lr=0.6, weight_decay=1e-6)
    return config
