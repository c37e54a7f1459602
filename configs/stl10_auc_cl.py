"""AUC-CL on STL-10 with a ResNet-50: the paper's setting, the recommended loss.

Paper: Sharma et al., AUC-CL, ICLR 2024, Table 9.
Command: jaxssl train --config stl10_auc_cl
Expected (published, not run here): 80.9 % top-1, k-NN (k=200), batch 128, 500 epochs (78.9 at
300).
Notes: The learning rate is constant at 1e-3. The paper does not state the other settings:
unlabelled images and views of 32 pixels are as in stl10_decl; weight decay, projector and loss as
in cifar10_auc_cl.
"""

from ml_collections import ConfigDict

from jaxssl.configs import cifar10_auc_cl


def get_config() -> ConfigDict:
    """Return the config of `cifar10_auc_cl` with the settings that this recipe changes."""
    config = cifar10_auc_cl.get_config()
    config.data.update(name="stl10", train_split="train+unlabelled", bank_split="train")
    config.net.depth = 50
    config.optim.lr_scaling = "none"
    config.schedule.update(name="constant", warmup_epochs=0.0)
    return config
