"""SimCLR's loss on clips of moving digits: the demo of video. The class is the motion.

Paper: Chen et al., SimCLR, 2020. All settings except the loss are ours.
Command: jaxssl train --config video/moving_digits
Expected: see docs/video.md, where it was run.
"""

from ml_collections import ConfigDict

from jaxssl.configs import base


def get_config() -> ConfigDict:
    """Return the config of `base` with the settings that this config changes."""
    config = base.get_config()
    config.data.name = "moving_digits"
    config.batch_size = 64
    config.epochs = 20
    # Views are neither mirrored nor reversed, because that would turn a motion into another class.
    config.augment = ConfigDict(
        {"name": "video", "size": 24, "frames": 8, "crop_scale": (0.5, 1.0)}
    )
    config.augment.update({"flip": 0.0, "blur": 0.0})
    config.net = ConfigDict({"name": "s3d", "width": 0.125, "blocks": "first"})
    config.head.update(proj_hidden_dim=128, proj_output_dim=64)
    config.loss = ConfigDict({"name": "nt_xent", "temperature": 0.2})
    config.optim.lr = 3e-3
    config.schedule.warmup_epochs = 2.0
    config.eval.update(every=5.0, knn="moco_v3_20")
    config.eval.protocols = ("retrieval:mmcl_video", "knn:moco_v3_20", "linear")
    return config
