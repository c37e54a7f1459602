"""MMCL with projected gradients on ImageNet-100 with a ResNet-50.

Paper: Shah et al., Max-Margin Contrastive Learning, AAAI 2022, Table 2; optimiser, projector and
views are the released code's.
Command: jaxssl train --config imagenet100_mmcl_pgd
Expected (published, not run here): 80.7 % top-1, linear, batch 128, 200 epochs.
Notes: The paper does not say which of the two solvers Table 2 shows. The code's C is unbounded and
its step is 1 / |Delta|_F, which changes nothing but speed.
"""

from ml_collections import ConfigDict

from jaxssl.configs import base


def get_config() -> ConfigDict:
    """Return the config of `base` with the settings that this recipe changes."""
    config = base.get_config()
    config.data.update(name="imagenet100", test_split="validation")
    config.batch_size = 128
    config.epochs = 200
    config.augment = ConfigDict({"name": "simclr", "size": 224, "blur": 0.5})
    config.augment.update(brightness=0.8, contrast=0.8, saturation=0.8, hue=0.2)
    config.net = ConfigDict({"name": "resnet", "depth": 50, "stem": "imagenet"})
    config.head = ConfigDict({"name": "mlp", "proj_hidden_dim": 2048, "proj_output_dim": 128})
    config.head.proj_last_norm = "bn_scale"
    config.loss = ConfigDict({"name": "mmcl", "preset": "paper_pgd"})
    config.optim.update(name="lars", lr=1.2, weight_decay=1e-6)
    config.schedule.warmup_epochs = 20.0
    config.eval.knn = "moco_v3_20"  # our choice, because the paper gives no value
    config.eval.protocols = ("knn:moco_v3_20", "linear")  # The k-NN protocol is our choice.
    return config
