"""SimCLR on CIFAR-10 with a ResNet-18: the base of the other CIFAR baselines.

Paper: Chen et al., SimCLR, 2020. The settings are solo-learn's published ones for this data set
(row SimCLR of Tables 3 and 5.2 of AUC-CL and TCL).
Command: jaxssl train --config cifar10_simclr
Expected (published, not run here): 90.74 % top-1, online linear classifier, 1000 epochs, batch 256
(solo-learn's README).
Notes: The projector has BatchNorm. The published one has none. Here the linear probe is fitted on
frozen features. The published classifier was trained along with the encoder.
"""

from ml_collections import ConfigDict

from jaxssl.configs import base


def get_config() -> ConfigDict:
    """Return the config of `base` with the settings that this recipe changes."""
    config = base.get_config()
    config.data.name = "cifar10"
    config.batch_size = 256
    config.epochs = 1000
    config.augment = ConfigDict({"name": "simclr", "size": 32, "blur": 0.5})
    config.augment.update(brightness=0.8, contrast=0.8, saturation=0.8, hue=0.2)
    config.net = ConfigDict({"name": "resnet", "depth": 18, "stem": "cifar"})
    config.head = ConfigDict({"name": "mlp", "proj_hidden_dim": 2048, "proj_output_dim": 256})
    config.loss = ConfigDict({"name": "nt_xent", "temperature": 0.2})
    config.optim.update(name="larc", lr=0.4, lr_scaling="linear", weight_decay=1e-4)
    config.optim.update(trust_coefficient=0.02, lars_clip=True)
    config.schedule.warmup_epochs = 10.0
    config.eval.every = 25.0  # our choice, because the paper gives no value
    config.eval.protocols = ("knn", "linear")  # our choice, because the paper gives no value
    return config
