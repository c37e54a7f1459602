"""MoCo-v2+ on CIFAR-10 with a ResNet-18: both directions, a queue.

Paper: Chen et al., MoCo-v2, 2020. The settings are solo-learn's published ones for this data set,
row MoCo V2+.
Command: jaxssl train --config cifar10_moco_v2
Expected (published, not run here): 92.94 % top-1, online linear classifier, 1000 epochs, batch 256
(solo-learn's README).
Notes: One queue holds 32768 keys of both views. The published run has two queues of that length.
Here the linear probe is fitted on frozen features. The published classifier was trained along with
the encoder.
"""

from ml_collections import ConfigDict

from jaxssl.configs import cifar10_simclr


def get_config() -> ConfigDict:
    """Return the config of `cifar10_simclr` with the settings that this recipe changes."""
    config = cifar10_simclr.get_config()
    config.augment = ConfigDict({"name": "simclr", "size": 32, "blur": 0.5})
    config.head.proj_norm = "none"
    config.method = ConfigDict({"name": "momentum", "preset": "moco_v2"})
    config.method.update(symmetric=True, average=True, queue_size=32768)
    config.method.momentum = ConfigDict({"schedule": "cosine", "start": 0.99, "end": 0.999})
    config.loss = ConfigDict({"name": "info_nce", "preset": "moco_v2"})
    config.optim.update(name="sgd", lr=0.3, weight_decay=1e-4, lars_clip=False)
    return config
