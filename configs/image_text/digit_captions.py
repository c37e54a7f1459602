"""CLIP on handwritten digits with generated captions: the demo of images and text.

Paper: Radford et al., Learning Transferable Visual Models From Natural Language Supervision, 2021.
All settings are ours.
Command: jaxssl train --config image_text/digit_captions
Expected: see docs/image_text.md, where it was run.
"""

from ml_collections import ConfigDict

from jaxssl.configs import base


def get_config() -> ConfigDict:
    """Return the config of `base` with the settings that this config changes."""
    config = base.get_config()
    config.data.name = "digit_captions"
    config.data.context = 24
    config.batch_size = 64
    config.epochs = 30
    config.views = 1
    config.augment = ConfigDict({"name": "clip", "size": 16, "crop_scale": (0.8, 1.0)})
    config.net = ConfigDict({"name": "convnet"})
    config.text = ConfigDict(
        {"name": "text", "dim": 64, "layers": 2, "num_heads": 4, "context": 24}
    )
    config.head = ConfigDict(
        {"name": "mlp", "proj_layers": 1, "proj_output_dim": 64, "proj_last_bias": False}
    )
    config.method = ConfigDict({"name": "two_tower"})
    config.loss = ConfigDict({"name": "clip"})
    config.optim.update(lr=1e-3, weight_decay=0.1)
    config.schedule.warmup_epochs = 2.0
    config.eval.protocols = ("zeroshot:digits", "captions", "knn", "linear")
    return config
