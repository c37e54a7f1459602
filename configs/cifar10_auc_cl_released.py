"""AUC-CL on CIFAR-10 with a ResNet-50: the released code's loss and settings.

Paper: Sharma et al., AUC-CL, ICLR 2024, Table 9 and the released code (rohan1561/AUC-CL).
Command: jaxssl train --config cifar10_auc_cl_released
Expected (published, not run here): 89.4 % top-1, k-NN (k=200, votes weighted by (1 + cos) / 2,
best epoch), batch 128, 500 epochs.
Notes: Our k-NN weights votes by exp(cos / 0.5) and evaluates the last epoch.
"""

from ml_collections import ConfigDict

from jaxssl.configs import cifar10_auc_cl


def get_config() -> ConfigDict:
    """Return the config of `cifar10_auc_cl` with the settings that this recipe changes."""
    config = cifar10_auc_cl.get_config()
    config.net.depth = 50
    config.loss = ConfigDict({"name": "auc_cl", "preset": "released_cifar"})
    config.optim.lr_scaling = "none"
    config.schedule.update(name="constant", warmup_epochs=0.0)
    return config
