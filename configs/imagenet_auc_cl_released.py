"""AUC-CL on ImageNet with a ViT-S: the released code's method, which is not the paper's.

Paper: Sharma et al., AUC-CL, ICLR 2024, its released ImageNet code (rohan1561/AUC-CL).
Command: jaxssl train --config imagenet_auc_cl_released
Expected (published, not run here): 75.04 % top-1, linear (SGD 0.02, 100 epochs), the last line of
the repository's only log. Its name, log_r50_650epoch, says ResNet-50 and 650 epochs, the code's
defaults are ViT-S and 820. None is known for those.
Notes: The network and epochs of that log are not certain. The large crops have no RandAugment (n=2,
m=10). A box is erased with one value. The code uses noise. Negatives come from the global batch; in
the code, from each GPU. The gradient is clipped by its global norm. The code clips parameter by
parameter. The teacher's temperature rises with every step; in the code, with every epoch. The other
notes of imagenet_dino_vit_s hold too.
"""

from ml_collections import ConfigDict

from jaxssl.configs import imagenet_dino_vit_s


def get_config() -> ConfigDict:
    """Return the config of `imagenet_dino_vit_s` with the settings that this recipe changes."""
    config = imagenet_dino_vit_s.get_config()
    config.epochs = 820
    config.augment.erasing = 0.2  # applies to the first large crop only
    config.second_view.erasing = 0.0
    config.crops.erasing = 0.0
    config.net.patch_size = 8  # side of a patch in pixels
    config.head.norm_last_layer = False
    warmup = {"schedule": "linear", "start": 0.04, "end": 0.07, "until": 30, "unit": "epochs"}
    config.loss = ConfigDict({"name": "auc_dino", "teacher_temperature": warmup})
    return config
