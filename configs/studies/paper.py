"""Config of the studies at scale "paper": CIFAR-10, ResNet-18, 200 epochs on an accelerator.

Command: jaxssl study NAME --scale paper
Network, epochs and batch sizes come from Table 10 of AUC-CL. Tables 9 and 11 of AUC-CL and Table 1
of DeCL use a ResNet-50: --config.net.depth=50. Optimiser and projector come from leftthomas/SimCLR,
which both papers build on. Studies of MMCL and TCL use paper_mmcl.py, paper_tcl.py and
paper_tcl_views.py instead.
"""

from ml_collections import ConfigDict

from jaxssl.configs import base


def get_config() -> ConfigDict:
    """Return the config of `base` with the settings that this recipe changes."""
    config = base.get_config()
    config.data.name = "cifar10"
    config.batch_size = 128
    config.epochs = 200
    config.augment = ConfigDict({"name": "simclr", "size": 32})
    config.net = ConfigDict({"name": "resnet", "depth": 18, "stem": "cifar"})
    config.head = ConfigDict({"name": "mlp", "proj_hidden_dim": 512, "proj_output_dim": 128})
    config.optim.update(name="adam", lr=1e-3, weight_decay=1e-6)
    config.schedule.name = "constant"
    config.eval.every = 10.0
    return config
