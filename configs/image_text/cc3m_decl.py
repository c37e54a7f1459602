"""DeCL with a ResNet-50x4 on Conceptual Captions: OpenCLIP with another loss.

Paper: Chen et al., Why do We Need Large Batchsizes in Contrastive Learning?, NeurIPS 2022, Table 5.
Command: jaxssl train --config image_text/cc3m_decl --config.data.path=cc3m.tar
Expected (published, not run here): text retrieval R@1 30.2, image retrieval R@1 30.2 (OpenCLIP:
30.0 and 29.7), zero-shot ImageNet 19.7 / 38.3 (19.2 / 37.3).
Notes: The paper does not state batch size and learning rate. The temperature is learned as in CLIP,
the rates are moving averages of each pair, and steps of loss 1 and loss 2 alternate.
"""

from ml_collections import ConfigDict

from jaxssl.configs.image_text import coco_clip


def get_config() -> ConfigDict:
    """Return the config of `coco_clip` with the settings that this recipe changes."""
    config = coco_clip.get_config()
    config.data.name = "captions"
    config.data.train_split = "train[:2890000]"
    config.data.test_split = "train[2890000:]"
    config.data.on_error = "skip"  # Dead links in CC3M were saved as web pages instead of pictures.
    config.augment.size = 288
    config.net.size = "50x4"
    config.text.update({"dim": 640, "num_heads": 10})
    config.head.proj_output_dim = 640
    config.method.symmetric = True
    config.loss = ConfigDict({"name": "decl", "preset": "clip"})
    return config
