"""DeCL on ImageNet with a ViT-B: MoCo-v3 with another loss.

Paper: Chen et al., Why do We Need Large Batchsizes in Contrastive Learning?, NeurIPS 2022, Table
2. All but the loss is MoCo-v3's.
Command: jaxssl train --config imagenet_decl_vit_b
Expected (published, not run here): 69.1 % top-1, linear, k-NN 60.7 / 61.1 / 59.4 (k=10, 20, 100),
batch 256; 76.8 at batch 2304.
Notes: As in imagenet_decl_vit_s.
"""

from ml_collections import ConfigDict

from jaxssl.configs import imagenet_decl_vit_s


def get_config() -> ConfigDict:
    """Return the config of `imagenet_decl_vit_s` with the settings that this recipe changes."""
    config = imagenet_decl_vit_s.get_config()
    config.net.size = "base"
    return config
