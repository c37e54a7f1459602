"""MMCL with projected gradients on STL-10 with a ResNet-50.

Paper: Shah et al., Max-Margin Contrastive Learning, AAAI 2022, Tables 7 and 8. Settings of the HCL
code, on which it builds.
Command: jaxssl train --config stl10_mmcl_pgd
Expected (published, not run here): 88.03 % top-1, linear, batch 256, 400 epochs (Table 7: 80.11 at
64, 86.8 at 128).
Notes: The paper's sigma^2 = 1 is ambiguous. We take gamma 0.5. The HCL code keeps test images at 96
pixels. Here they are resized to 32. Blur as for CIFAR-100 is our choice.
"""

from ml_collections import ConfigDict

from jaxssl.configs import cifar100_mmcl_pgd


def get_config() -> ConfigDict:
    """Return the config of `cifar100_mmcl_pgd` with the settings that this recipe changes."""
    config = cifar100_mmcl_pgd.get_config()
    config.data.update(name="stl10", train_split="train+unlabelled", bank_split="train")
    config.loss = ConfigDict({"name": "mmcl", "preset": "stl10", "num_steps": 1000})
    return config
