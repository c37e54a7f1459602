"""DeCL on CIFAR-10 with a ResNet-50.

Paper: Chen et al., Why do We Need Large Batchsizes in Contrastive Learning?, NeurIPS 2022, Table
1, normalised features. Settings of leftthomas/SimCLR, on which it builds.
Command: jaxssl train --config cifar10_decl
Expected (published, not run here): 87.6 % top-1, k-NN (k=200, T=0.5), batch 256, 300 epochs (86.4
at 200).
Notes: No code was released. The paper does not state lambda (we alternate), the temperature (0.5,
from the base code) and the weight of the past in the rates (0.9, our choice).
"""

from ml_collections import ConfigDict

from jaxssl.configs import base


def get_config() -> ConfigDict:
    """Return the config of `base` with the settings that this recipe changes."""
    config = base.get_config()
    config.data.name = "cifar10"
    config.batch_size = 256  # Table 1 has batch sizes 64, 128, 256 and 512.
    config.epochs = 300
    config.augment = ConfigDict({"name": "simclr", "size": 32})
    config.net = ConfigDict({"name": "resnet", "depth": 50, "stem": "cifar"})
    config.head = ConfigDict({"name": "mlp", "proj_hidden_dim": 512, "proj_output_dim": 128})
    config.loss = ConfigDict({"name": "decl", "preset": "simclr"})
    # optimiser of the code that DeCL builds on
    config.optim.update(name="adam", lr=1e-3, weight_decay=1e-6)
    config.schedule.name = "constant"
    config.eval.every = 25.0  # our choice, because the paper gives no value
    config.eval.protocols = ("knn", "linear")  # We chose the linear probe.
    return config
