"""AUC-CL on ImageNet-100 with a ResNet-18: the paper's setting, the recommended loss.

Paper: Sharma et al., AUC-CL, ICLR 2024, Table 3.
Command: jaxssl train --config imagenet100_auc_cl
Expected (published, not run here): 81.9 % top-1, linear, batch 256, 400 epochs.
Notes: The table's caption says batch size 256, the text says 128. The paper does not state the
projector (2048, 128) and the weight decay. The loss is the one of cifar10_auc_cl.
"""

from ml_collections import ConfigDict

from jaxssl.configs import cifar10_auc_cl


def get_config() -> ConfigDict:
    """Return the config of `cifar10_auc_cl` with the settings that this recipe changes."""
    config = cifar10_auc_cl.get_config()
    config.data.update(name="imagenet100", test_split="validation")
    config.batch_size = 256
    config.epochs = 400
    config.augment.update(size=224, blur=0.5)
    config.augment.update(brightness=0.8, contrast=0.8, saturation=0.8, hue=0.2)
    config.net.stem = "imagenet"
    config.head.proj_hidden_dim = 2048  # our choice, because the paper gives no value
    return config
