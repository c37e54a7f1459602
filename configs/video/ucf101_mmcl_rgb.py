"""MMCL with S3D on UCF-101's RGB frames.

Paper: Shah et al., Max-Margin Contrastive Learning, AAAI 2022, Table 5. The base is CoCLR's.
Command: jaxssl train --config video/ucf101_mmcl_rgb --config.data.path=UCF-101
Expected (published, not run here): split 1, 300 epochs: linear 52.45, retrieval R@1 45.6 (InfoNCE
46.8 and 33.1).
Notes: Batch size 128 stands for the paper's 254 negatives. The paper does not state kernel and
solver for videos. The settings are the ones of ImageNet. A split is given by folders (train, test),
which follow the lists of UCF-101.
"""

from ml_collections import ConfigDict

from jaxssl.configs import base


def get_config() -> ConfigDict:
    """Return the config of `base` with the settings that this recipe changes."""
    config = base.get_config()
    config.data.name = "video"
    config.batch_size = 128
    config.epochs = 300
    config.augment = ConfigDict({"name": "video", "size": 128, "frames": 32})
    config.net = ConfigDict({"name": "s3d"})
    config.head.proj_hidden_dim = 1024
    config.head.proj_norm = "none"
    config.loss = ConfigDict({"name": "mmcl"})
    config.optim.name = "adam"
    config.optim.weight_decay = 1e-5
    config.schedule.name = "step"
    config.schedule.milestones = (250.0, 280.0)
    config.eval.protocols = ("retrieval:mmcl_video", "linear:video")
    return config
