"""Baselines on CIFAR-100 with a ResNet-18: solo-learn has the same settings as for CIFAR-10.

Command: jaxssl train --config cifar100_baselines:VARIANT
Published, not run here: as in cifar10_baselines.
"""

from ml_collections import ConfigDict

from jaxssl.configs import cifar10_baselines

VARIANTS = {
    "simclr": {"about": "65.78 %. Chen et al., SimCLR, 2020"},
    "byol": {"about": "70.46 %. Grill et al., Bootstrap Your Own Latent, 2020"},
    "moco_v2": {"about": "69.89 %. Chen et al., MoCo-v2, 2020"},
    "moco_v3": {"about": "68.83 %. Chen, Xie and He, MoCo-v3, 2021"},
    "moco_v3_auc_cl": {
        "about": "69.7 % linear, k-NN 52.9/54.7/53.4 (AUC-CL, Table 7; MoCo-v3 66.6)"
    },
    "simsiam": {"about": "66.04 %. Chen and He, SimSiam, 2021"},
    "barlow_twins": {"about": "70.90 %. Zbontar et al., Barlow Twins, 2021"},
    "arb": {"about": "69.57 % (the authors' README). Zhang et al., ARB, 2022"},
    "vicreg": {"about": "68.54 %. Bardes et al., VICReg, 2022"},
    "swav": {"about": "64.88 %. Caron et al., SwAV, 2020"},
    "dino": {"about": "66.76 %. Caron et al., DINO, 2021"},
    "nnclr": {"about": "69.62 %. Dwibedi et al., With a Little Help from My Friends, 2021"},
    "ressl": {"about": "65.92 %. Zheng et al., ReSSL, 2021"},
    "w_mse": {"about": "61.33 %. Ermolov et al., Whitening for Self-Supervised Learning, 2021"},
    "dcl": {"about": "58.5 % linear (AUC-CL, Table 10; 58.9 at batch 128). Yeh et al., DCL, 2022"},
}


def get_config(variant: str) -> ConfigDict:
    """Return the config of a variant of `cifar10_baselines` with CIFAR-100 as its data."""
    config = cifar10_baselines.get_config(variant)
    config.data.name = "cifar100"
    return config
