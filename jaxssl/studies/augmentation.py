"""TCL against SupCon with several augmentations, with labels.

The thesis trains 100 epochs longer with SimAugment, and with k2 = 1.2; here all have the same.
"""

from jaxssl import stability
from jaxssl.study import Findings, Setting

CLAIMS = stability.claim("augmentation", "TCL, Fig. 5.4")
SIZE = {"augment.size": 32}
AUGMENTS = {
    "SimAugment": {"augment.name": "simclr", "augment.crop_scale": (0.2, 1.0), **SIZE},
    "AutoAugment": {"augment.name": "policy", "augment.policy": "autoaugment_cifar", **SIZE},
}
SMALL_IMAGES = {
    "own": {},
    "crop": {"augment.name": "policy", "augment.size": 16, "augment.pad": 2, "augment.flip": 0.0},
    "randaugment": {
        "augment.name": "policy",
        "augment.policy": "randaugment",
        "augment.size": 16,
        "augment.pad": 2,
        "augment.flip": 0.0,
    },
}


def run(setting: Setting) -> Findings:
    """Train both losses with each augmentation; digits are not flipped nor coloured."""
    cells = SMALL_IMAGES if setting.scale == "tiny" else AUGMENTS
    return stability.compare(setting, "views", cells)
