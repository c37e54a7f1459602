"""DeCL on ImageNet with a ResNet-50: MoCo-v3 with another loss.

Paper: Chen et al., Why do We Need Large Batchsizes in Contrastive Learning?, NeurIPS 2022, Table
2. All but the loss is MoCo-v3's.
Command: jaxssl train --config imagenet_decl_r50
Expected (published, not run here): 64.2 % top-1, linear, k-NN 48.8 / 49.3 / 47.6 (k=10, 20, 100),
batch 256, 100 epochs; 67.7 at batch 512.
Notes: The paper does not state the temperature (1, MoCo-v3's for ResNet-50) and whether the loss
has MoCo-v3's factor 2 tau (here it has not).
"""

from ml_collections import ConfigDict

from jaxssl.configs import imagenet_moco_v3_r50


def get_config() -> ConfigDict:
    """Return the config of `imagenet_moco_v3_r50` with the settings that this recipe changes."""
    config = imagenet_moco_v3_r50.get_config()
    config.batch_size = 256
    # The momentum network's keys give the rates of DeCL. The weight of its loss L^1 is 1.
    config.loss = ConfigDict({"name": "decl", "preset": "moco_v3", "temperature": 1.0})
    config.eval.protocols = ("knn:moco_v3_10", "knn:moco_v3_20", "knn:moco_v3_100", "linear")
    return config
