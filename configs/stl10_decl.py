"""DeCL on STL-10 with a ResNet-50.

Paper: Chen et al., Why do We Need Large Batchsizes in Contrastive Learning?, NeurIPS 2022, Table
1, normalised features.
Command: jaxssl train --config stl10_decl
Expected (published, not run here): 78.3 % top-1, k-NN (k=200, T=0.5), batch 256, 300 epochs (77.6
at 200).
Notes: As in cifar10_decl. The paper states no settings for STL-10; unlabelled images and views of
32 pixels are as in the HCL code.
"""

from ml_collections import ConfigDict

from jaxssl.configs import cifar10_decl


def get_config() -> ConfigDict:
    """Return the config of `cifar10_decl` with the settings that this recipe changes."""
    config = cifar10_decl.get_config()
    config.data.update(name="stl10", train_split="train+unlabelled", bank_split="train")
    return config
