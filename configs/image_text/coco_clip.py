"""CLIP with a ResNet-50 on COCO's captions, or on other images with captions.

Paper: Radford et al., Learning Transferable Visual Models From Natural Language Supervision, 2021.
Command: jaxssl train --config image_text/coco_clip
Expected: nothing is published for this data set alone.
Notes: Epochs, batch size and learning rate are OpenCLIP's for Conceptual Captions.
"""

from ml_collections import ConfigDict

from jaxssl.configs import base


def get_config() -> ConfigDict:
    """Return the config of `base` with the settings that this recipe changes."""
    config = base.get_config()
    config.data.name = "coco_captions"
    config.data.test_split = "val"
    config.batch_size = 1024
    config.epochs = 30
    config.views = 1
    config.augment = ConfigDict({"name": "clip"})
    config.net = ConfigDict({"name": "clip_resnet", "size": "50"})
    config.text = ConfigDict({"name": "text"})
    config.head = ConfigDict(
        {"name": "mlp", "proj_layers": 1, "proj_output_dim": 1024, "proj_last_bias": False}
    )
    config.method = ConfigDict({"name": "two_tower"})
    config.loss = ConfigDict({"name": "clip"})
    config.precision = "bf16"
    config.optim.lr = 1e-3
    config.optim.weight_decay = 0.1
    config.schedule.warmup_epochs = 1.0
    config.eval.every = 1.0
    config.eval.protocols = ("captions",)
    config.checkpoint.every = 1.0
    return config
