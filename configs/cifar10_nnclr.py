"""NNCLR on CIFAR-10 with a ResNet-18.

Paper: Dwibedi et al., With a Little Help from My Friends, 2021. The settings are solo-learn's
published ones for this data set.
Command: jaxssl train --config cifar10_nnclr
Expected (published, not run here): 91.88 % top-1, online linear classifier, 1000 epochs, batch 256
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
    config.head.update(proj_layers=3, proj_last_norm="bn")
    config.predictor = ConfigDict({"name": "mlp", "pred_hidden_dim": 4096})
    config.method = ConfigDict({"name": "momentum", "preset": "nnclr"})
    config.loss = ConfigDict({"name": "nnclr", "temperature": 0.2, "support_size": 65536})
    config.optim.weight_decay = 1e-5
    return config
