"""DINO on CIFAR-10 with a ResNet-18.

Paper: Caron et al., DINO, 2021. The settings are solo-learn's published ones for this data set.
Command: jaxssl train --config cifar10_dino
Expected (published, not run here): 89.52 % top-1, online linear classifier, 1000 epochs, batch 256
(solo-learn's README).
Notes: Prototypes are trained from the start. The published run freezes them for an epoch. We
evaluate the teacher. Here the linear probe is fitted on frozen features. The published classifier
was trained along with the encoder.
"""

from ml_collections import ConfigDict

from jaxssl.configs import cifar10_simclr


def get_config() -> ConfigDict:
    """Return the config of `cifar10_simclr` with the settings that this recipe changes."""
    config = cifar10_simclr.get_config()
    config.augment = ConfigDict({"name": "simclr", "size": 32, "saturation": 0.2})
    config.second_view = ConfigDict({"solarize": 0.2})
    config.head = ConfigDict({"name": "dino", "proj_hidden_dim": 2048, "proj_output_dim": 4096})
    momentum = {"schedule": "cosine", "start": 0.9995, "end": 1.0}
    config.method = ConfigDict({"name": "momentum", "preset": "dino", "momentum": momentum})
    config.loss = ConfigDict({"name": "dino", "teacher_temperature": 0.07})
    config.optim.update(lr=0.3, weight_decay=1e-6)
    return config
