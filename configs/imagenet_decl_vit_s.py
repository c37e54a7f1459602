"""DeCL on ImageNet with a ViT-S: MoCo-v3 with another loss.

Paper: Chen et al., Why do We Need Large Batchsizes in Contrastive Learning?, NeurIPS 2022, Table
2. All but the loss is MoCo-v3's.
Command: jaxssl train --config imagenet_decl_vit_s
Expected (published, not run here): 63.4 % top-1, linear, k-NN 52.0 / 52.5 / 50.7 (k=10, 20, 100),
batch 256; 66.4 at batch 512.
Notes: The paper does not state the number of epochs (300, MoCo-v3's. AUC-CL prints the same
baseline, 62.3, for 100), the temperature (0.2, MoCo-v3's for ViT) and whether the loss has
MoCo-v3's factor 2 tau (here it has not).
"""

from ml_collections import ConfigDict

from jaxssl.configs import imagenet_moco_v3_vit_s


def get_config() -> ConfigDict:
    """Return the config of `imagenet_moco_v3_vit_s` with the settings that this recipe changes."""
    config = imagenet_moco_v3_vit_s.get_config()
    config.batch_size = 256
    config.loss = ConfigDict({"name": "decl", "preset": "moco_v3"})
    config.eval.protocols = ("knn:moco_v3_10", "knn:moco_v3_20", "knn:moco_v3_100", "linear")
    return config
