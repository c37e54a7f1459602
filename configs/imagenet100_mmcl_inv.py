"""MMCL with the matrix inverse on ImageNet-100 with a ResNet-50.

Paper: Shah et al., Max-Margin Contrastive Learning, AAAI 2022, Table 2; optimiser, projector and
views are the released code's.
Command: jaxssl train --config imagenet100_mmcl_inv
Expected (published, not run here): 80.7 % top-1, linear, batch 128, 200 epochs, if that row is
this solver's.
Notes: The paper does not say which of the two solvers Table 2 shows.
"""

from ml_collections import ConfigDict

from jaxssl.configs import imagenet100_mmcl_pgd


def get_config() -> ConfigDict:
    """Return the config of `imagenet100_mmcl_pgd` with the settings that this recipe changes."""
    config = imagenet100_mmcl_pgd.get_config()
    config.loss = ConfigDict({"name": "mmcl", "preset": "paper_inv"})
    return config
