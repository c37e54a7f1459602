"""TCL against SupCon with several augmentations, with labels.

The thesis trains 100 epochs longer with SimAugment. Here both train for the same number of epochs.
"""

from jaxssl.studies.study import Findings, Setting, read_claims
from jaxssl.studies.tcl_comparison import compare_losses

PAPER = "tcl"
CLAIMS = read_claims("augmentation")
SIZE = {"augment.size": 32}
AUGMENTS = {
    "SimAugment": {"augment.name": "simclr", "augment.crop_scale": (0.2, 1.0), **SIZE},
    "AutoAugment": {"augment.name": "policy", "augment.policy": "autoaugment_cifar", **SIZE},
}
TCL = {"SimAugment": {"loss.k2": 1.2}}  # TCL's settings by augmentation, from Appendix A.2.4
CROP = {"augment.name": "policy", "augment.size": 16, "augment.pad": 2, "augment.flip": 0.0}
SMALL_IMAGES = {"own": {}, "crop": CROP, "randaugment": {**CROP, "augment.policy": "randaugment"}}


def run(setting: Setting) -> Findings:
    """Train TCL and SupCon with each augmentation. Digits are neither flipped nor recoloured."""
    cells = SMALL_IMAGES if setting.scale == "tiny" else AUGMENTS
    return compare_losses(setting, CLAIMS, "views", cells, TCL)
