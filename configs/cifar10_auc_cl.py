"""AUC-CL on CIFAR-10 with a ResNet-18: the paper's setting with the recommended loss.

Paper: Sharma et al., AUC-CL, ICLR 2024, Table 3 (also Table 10 at 200 epochs).
Command: python train.py --config configs/cifar10_auc_cl.py
Expected (published, not run here): 93.6 % top-1, linear, batch 128, 500 epochs; 88.4 at 200 epochs
(Table 10).
Notes: The paper does not state the weight decay (1e-4), the projector (512, 128) and the loss's a;
they are the released code's. The loss averages the negatives; eq. 8 sums them (loss.preset=paper).
"""

from ml_collections import ConfigDict

from jaxssl.configs import base


def get_config() -> ConfigDict:
    """Return `base` with changes."""
    config = base.get_config()
    config.data.name = "cifar10"
    config.batch_size = 128
    config.epochs = 500
    config.augment = ConfigDict({"name": "simclr", "size": 32})  # SimCLR's for CIFAR: no blur
    config.net = ConfigDict({"name": "resnet", "depth": 18, "stem": "cifar"})
    # The released code's projector; the paper does not state one.
    config.head = ConfigDict({"name": "mlp", "proj_hidden_dim": 512, "proj_output_dim": 128})
    config.loss = ConfigDict({"name": "auc_cl", "preset": "recommended"})
    config.optim.update(name="adamw", lr=1e-3, lr_scaling="linear")
    config.optim.weight_decay = 1e-4  # not stated in the paper; from the released code
    config.schedule.warmup_epochs = 40.0
    config.eval.every = 25.0  # our choice
    config.eval.protocols = ("knn", "linear")
    return config
