"""Studies on CIFAR-10 with a ResNet-18, 200 epochs: for an accelerator.

Command: jaxssl study NAME --scale paper
Network, epochs and batch sizes are those of AUC-CL Table 10; AUC-CL Tables 9 and 11 and DeCL Table
1 take a ResNet-50: --config.net.depth=50. Optimiser and projector are those of leftthomas/SimCLR,
on which both build. Studies of MMCL and TCL take paper_mmcl.py, paper_tcl.py and
paper_tcl_views.py.
"""

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
    """What differs from `base`."""
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
