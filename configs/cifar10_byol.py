"""BYOL on CIFAR-10 with a ResNet-18.

Paper: Grill et al., Bootstrap Your Own Latent, 2020. The settings are solo-learn's published ones
for this data set.
Command: jaxssl train --config cifar10_byol
Expected (published, not run here): 92.58 % top-1, online linear classifier, 1000 epochs, batch 256
(solo-learn's README).
Notes: Here the linear probe is fitted on frozen features. The published classifier was trained
along with the encoder.
"""

from ml_collections import ConfigDict

from jaxssl.configs import cifar10_simclr


def get_config() -> ConfigDict:
    """Return the config of `cifar10_simclr` with the settings that this recipe changes."""
    config = cifar10_simclr.get_config()
    config.augment = ConfigDict({"name": "simclr", "size": 32, "saturation": 0.2})
    config.second_view = ConfigDict({"solarize": 0.2})
    config.head = ConfigDict({"name": "mlp", "proj_hidden_dim": 4096, "proj_output_dim": 256})
    config.predictor = ConfigDict({"name": "mlp", "pred_hidden_dim": 4096})
    momentum = {"schedule": "cosine", "start": 0.99, "end": 1.0}
    config.method = ConfigDict({"name": "momentum", "preset": "byol", "momentum": momentum})
    config.loss = ConfigDict({"name": "byol"})
    config.optim.update(lr=1.0, weight_decay=1e-5)
    return config
