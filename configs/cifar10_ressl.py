"""ReSSL on CIFAR-10 with a ResNet-18: strong views against weak ones.

Paper: Zheng et al., ReSSL, 2021. The settings are solo-learn's published ones for this data set.
Command: jaxssl train --config cifar10_ressl
Expected (published, not run here): 90.63 % top-1, online linear classifier, 1000 epochs, batch 256
(solo-learn's README).
Notes: Here the linear probe is fitted on frozen features. The published classifier was trained
along with the encoder.
"""

from ml_collections import ConfigDict

from jaxssl.configs import cifar10_simclr


def get_config() -> ConfigDict:
    """Return the config of `cifar10_simclr` with the settings that this recipe changes."""
    config = cifar10_simclr.get_config()
    config.augment = ConfigDict({"name": "simclr", "size": 32, "saturation": 0.2, "blur": 0.5})
    config.second_view = ConfigDict({"jitter": 0.0, "grayscale": 0.0, "blur": 0.0})
    config.head.update(proj_hidden_dim=4096, proj_norm="none")
    momentum = {"schedule": "cosine", "start": 0.99, "end": 1.0}
    config.method = ConfigDict({"name": "momentum", "preset": "ressl", "momentum": momentum})
    config.method.queue_size = 65536
    config.loss = ConfigDict({"name": "ressl"})
    config.optim.update(name="sgd", lr=0.05, lars_clip=False)
    return config
