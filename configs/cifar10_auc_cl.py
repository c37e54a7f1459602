"""AUC-CL on CIFAR-10 with a ResNet-18: the paper's setting with the recommended loss.

Paper: Sharma et al., AUC-CL, ICLR 2024, Table 3 (also Table 10 at 200 epochs).
Command: jaxssl train --config cifar10_auc_cl
Expected (published, not run here): 93.6 % top-1, linear, batch 128, 500 epochs; 88.4 at 200 epochs
(Table 10).
Notes: The paper does not state the weight decay (1e-4), the projector (512, 128) and the loss's a.
They are the released code's. The loss averages the negatives; eq. 8 sums them (loss.preset=paper).
"""

from ml_collections import ConfigDict

from jaxssl.configs import base


def get_config() -> ConfigDict:
    """Return the config of `base` with the settings that this recipe changes."""
    config = base.get_config()
    config.data.name = "cifar10"
    config.batch_size = 128
    config.epochs = 500
    # SimCLR's augmentation for CIFAR has no blur.
    config.augment = ConfigDict({"name": "simclr", "size": 32})
    config.net = ConfigDict({"name": "resnet", "depth": 18, "stem": "cifar"})
    # This is the projector of the released code. The paper does not state a projector.
    config.head = ConfigDict({"name": "mlp", "proj_hidden_dim": 512, "proj_output_dim": 128})
    config.loss = ConfigDict({"name": "auc_cl", "preset": "recommended"})
    config.optim.update(name="adamw", lr=1e-3, lr_scaling="linear")
    config.optim.weight_decay = 1e-4  # from the released code, not stated in the paper
    config.schedule.warmup_epochs = 40.0
    config.eval.every = 25.0  # our choice, because the paper gives no value
    config.eval.protocols = ("knn", "linear")
    return config
