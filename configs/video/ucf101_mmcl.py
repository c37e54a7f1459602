"""MMCL with S3D on UCF-101's RGB frames or optical flow.

Paper: Shah et al., Max-Margin Contrastive Learning, AAAI 2022, Table 5. The base is CoCLR's.
Command: jaxssl train --config video/ucf101_mmcl --config.data.path=UCF-101, or UCF-101-flow, with
the folders train and test of split 1
Published, not run here: split 1, 300 epochs: RGB linear 52.45, retrieval R@1 45.6 (InfoNCE 46.8 and
33.1); flow 68.01 and 50.94 (InfoNCE 66.8 and 45.2).
Notes: Batch size 128 stands for the paper's 254 negatives. The paper does not state kernel and
solver for videos. The kernel is the one of ImageNet, and PGD has 200 accelerated steps, where the
paper has up to 1000. The linear probe is fitted by L-BFGS, where the paper trains for 100 epochs. A
split is given by folders (train, test), which follow the lists of UCF-101. Flow is stored as pairs
of pictures, see docs/video.md.
"""

from ml_collections import ConfigDict

from jaxssl.configs import base


def get_config() -> ConfigDict:
    """Return the config of `base` with the settings that this config changes."""
    config = base.get_config()
    config.data.name = "video"
    config.batch_size = 128
    config.epochs = 300
    config.augment = ConfigDict({"name": "video", "size": 128, "frames": 32})
    config.net = ConfigDict({"name": "s3d"})
    config.head.update(proj_hidden_dim=1024, proj_norm="none")
    config.loss = ConfigDict({"name": "mmcl"})
    config.optim.update(name="adam", weight_decay=1e-5, decay_all=True)
    config.schedule.update(name="step", milestones=(250.0, 280.0))
    config.eval.protocols = ("retrieval:mmcl_video", "linear:video")
    return config
