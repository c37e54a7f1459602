"""SimCLR on STL-10 with a ResNet-50: the baseline of AUC-CL, DeCL and MMCL.

Paper: Chen et al., SimCLR, 2020; Table 1 of DeCL, Table 9 of AUC-CL.
Command: jaxssl train --config stl10_simclr
Expected (published, not run here): 75.7 % top-1, k-NN (k=200), batch 256, 300 epochs (75.6 at 200,
76.2 at 500).
Notes: As in stl10_decl.
"""

from ml_collections import ConfigDict

from jaxssl.configs import stl10_decl


def get_config() -> ConfigDict:
    """Return the config of `stl10_decl` with the settings that this recipe changes."""
    config = stl10_decl.get_config()
    config.loss = ConfigDict({"name": "nt_xent", "temperature": 0.5})
    return config
