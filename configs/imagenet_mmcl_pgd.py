"""MMCL with projected gradients on ImageNet with a ResNet-50.

Paper: Shah et al., Max-Margin Contrastive Learning, AAAI 2022, Table 3; optimiser, projector and
views are the released code's.
Command: jaxssl train --config imagenet_mmcl_pgd
Expected (published, not run here): 63.8 % top-1, linear (SGD 1.6, batch 4096), batch 256, 100
epochs; 66.5 at 200, 69.9 at 400.
Notes: As in imagenet100_mmcl_pgd.
"""

from ml_collections import ConfigDict

from jaxssl.configs import imagenet100_mmcl_pgd


def get_config() -> ConfigDict:
    """Return the config of `imagenet100_mmcl_pgd` with the settings that this recipe changes."""
    config = imagenet100_mmcl_pgd.get_config()
    config.data.name = "imagenet2012"
    config.batch_size = 256
    config.epochs = 100
    config.schedule.warmup_epochs = 10.0
    return config
