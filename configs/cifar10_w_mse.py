"""W-MSE on CIFAR-10 with a ResNet-18.

Paper: Ermolov et al., Whitening for Self-Supervised Representation Learning, 2021. The settings
are solo-learn's published ones for this data set.
Command: jaxssl train --config cifar10_w_mse
Expected (published, not run here): 88.67 % top-1, online linear classifier, 1000 epochs, batch 256
(solo-learn's README).
Notes: The whole batch is whitened at once with epsilon 1e-3 (our choice). The published run whitens
random parts of 128 with epsilon 0. Here the linear probe is fitted on frozen features; the
published classifier was trained along with the encoder.
"""

from ml_collections import ConfigDict

from jaxssl.configs import cifar10_simclr


def get_config() -> ConfigDict:
    """Return the config of `cifar10_simclr` with the settings that this recipe changes."""
    config = cifar10_simclr.get_config()
    config.augment.update(crop_scale=(0.2, 1.0), blur=0.0)
    config.head.update(proj_hidden_dim=1024, proj_output_dim=64)
    config.loss = ConfigDict({"name": "w_mse", "epsilon": 1e-3})  # We chose this epsilon.
    config.optim.update(name="adam", lr=2e-3, weight_decay=1e-6, lars_clip=False)
    return config
