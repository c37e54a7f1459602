"""SimCLR on ImageNet with a ResNet-50.

Paper: Chen et al., A Simple Framework for Contrastive Learning of Visual Representations, 2020.
Command: jaxssl train --config imagenet_simclr
Expected (published, not run here): 66.5 % top-1, linear, batch 4096, 100 epochs (Table 1 of
AUC-CL).
Notes: There is no BatchNorm after the projector's last layer (our choice).
"""

from ml_collections import ConfigDict

from jaxssl.configs import base


def get_config() -> ConfigDict:
    """Return the config of `base` with the settings that this recipe changes."""
    config = base.get_config()
    config.data.update(name="imagenet2012", test_split="validation")
    config.batch_size = 4096
    config.epochs = 100
    config.augment = ConfigDict({"name": "simclr", "size": 224, "blur": 0.5})
    config.augment.update(brightness=0.8, contrast=0.8, saturation=0.8, hue=0.2)
    config.net = ConfigDict({"name": "resnet", "depth": 50, "stem": "imagenet"})
    config.head = ConfigDict({"name": "mlp", "proj_hidden_dim": 2048, "proj_output_dim": 128})
    config.loss = ConfigDict({"name": "nt_xent", "temperature": 0.1})
    config.optim.update(name="lars", lr=0.3, lr_scaling="linear", weight_decay=1e-6)
    config.schedule.warmup_epochs = 10.0
    config.eval.knn = "moco_v3_20"  # our choice, because the paper gives no value
    config.eval.protocols = ("knn:moco_v3_20", "linear")  # The k-NN protocol is our choice.
    return config
