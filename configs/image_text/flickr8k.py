"""CLIP on 1 000 images of Flickr8k: a check on a laptop that a loss learns at all.

Paper: Radford et al., Learning Transferable Visual Models From Natural Language Supervision, 2021.
The settings are ours.
Command: jaxssl train --config image_text/flickr8k --config.data.path=flickr8k.tar.xz
Expected: see docs/image_text.md, where it was run. With 800 images it is no benchmark.
Notes: All settings are ours.
"""

from ml_collections import ConfigDict

from jaxssl.configs import base


def get_config() -> ConfigDict:
    """Return the config of `base` with the settings that this recipe changes."""
    config = base.get_config()
    config.data.name = "captions"
    config.data.context = 32
    config.data.train_split = "train[:800]"
    config.data.test_split = "train[800:]"
    config.batch_size = 64
    config.epochs = 40
    config.views = 1
    config.augment = ConfigDict({"name": "clip", "size": 64, "crop_scale": (0.5, 1.0)})
    config.net = ConfigDict({"name": "convnet", "widths": (32, 64, 128, 128), "strides": (2,) * 4})
    config.text = ConfigDict(
        {"name": "text", "dim": 64, "layers": 2, "num_heads": 4, "context": 32}
    )
    config.head = ConfigDict(
        {"name": "mlp", "proj_layers": 1, "proj_output_dim": 64, "proj_last_bias": False}
    )
    config.method = ConfigDict({"name": "two_tower"})
    config.loss = ConfigDict({"name": "clip"})
    config.optim.lr = 1e-3
    config.optim.weight_decay = 0.1
    config.schedule.warmup_epochs = 2.0
    config.eval.protocols = ("captions",)
    return config
