"""SimSiam on CIFAR-10 with a ResNet-18.

Paper: Chen and He, Exploring Simple Siamese Representation Learning, 2021. The settings are
solo-learn's published ones for this data set.
Command: jaxssl train --config cifar10_simsiam
Expected (published, not run here): 90.51 % top-1, online linear classifier, 1000 epochs, batch 256
(solo-learn's README).
Notes: The predictor's learning rate decays like the others. The published run may keep it constant.
Here the linear probe is fitted on frozen features. The published classifier was trained along with
the encoder.
"""

from ml_collections import ConfigDict

from jaxssl.configs import cifar10_simclr


def get_config() -> ConfigDict:
    """Return the config of `cifar10_simclr` with the settings that this recipe changes."""
    config = cifar10_simclr.get_config()
    config.augment = ConfigDict({"name": "simclr", "size": 32, "blur": 0.5})
    config.head.update(proj_output_dim=2048, proj_layers=3, proj_last_norm="bn_fixed")
    config.predictor = ConfigDict({"name": "mlp", "pred_hidden_dim": 512})
    config.method = ConfigDict({"name": "momentum", "preset": "simsiam"})
    config.loss = ConfigDict({"name": "simsiam"})
    config.optim.update(name="sgd", lr=0.5, weight_decay=1e-5, lars_clip=False)
    return config
