"""AUC-CL on ImageNet with a ViT-S: the released code's method, which is not the paper's.

Paper: Sharma et al., AUC-CL, ICLR 2024, its released ImageNet code (rohan1561/AUC-CL).
Command: python train.py --config configs/imagenet_auc_cl_released.py
Expected (published, not run here): 75.04 % top-1, linear (SGD 0.02, 100 epochs), the last line of
the repository's only log; its name, log_r50_650epoch, says ResNet-50 and 650 epochs, the code's
defaults are ViT-S and 820. None is known for those.
Open: the network and epochs of that log; no RandAugment (n=2, m=10) on the large crops; a box is
erased by one value, theirs by noise; negatives are those of the global batch, theirs of each GPU;
the gradient is clipped as a whole, theirs parameter by parameter; the teacher's temperature rises
with every step, theirs with every epoch; the rest as in imagenet_dino_vit_s.
"""

from ml_collections import ConfigDict

from configs import imagenet_dino_vit_s


def get_config() -> ConfigDict:
    """What differs from `imagenet_dino_vit_s`."""
    config = imagenet_dino_vit_s.get_config()
    config.epochs = 820
    config.augment.erasing = 0.2  # of the first large crop alone
    config.second_view.erasing = 0.0
    config.crops.erasing = 0.0
    config.net.patch_size = 8  # pixels
    config.head.norm_last_layer = False
    warmup = {"schedule": "linear", "start": 0.04, "end": 0.07, "until": 30, "unit": "epochs"}
    config.loss = ConfigDict({"name": "auc_dino", "teacher_temperature": warmup})
    return config
