"""MMCL with the matrix inverse on ImageNet with a ResNet-50.

Paper: Shah et al., Max-Margin Contrastive Learning, AAAI 2022, Table 3; optimiser, projector and
views are the released code's.
Command: jaxssl train --config imagenet_mmcl_inv
Expected (published, not run here): 63.8 % top-1, linear (SGD 1.6, batch 4096), batch 256, 100
epochs, if that row is this solver's.
Notes: The released config of this name runs projected gradients. This one runs the inverse.
"""

from ml_collections import ConfigDict

from jaxssl.configs import imagenet_mmcl_pgd


def get_config() -> ConfigDict:
    """Return the config of `imagenet_mmcl_pgd` with the settings that this recipe changes."""
    config = imagenet_mmcl_pgd.get_config()
    config.loss = ConfigDict({"name": "mmcl", "preset": "paper_inv"})
    return config
