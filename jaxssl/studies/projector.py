"""TCL against SupCon with projectors of several output sizes, with labels."""

from jaxssl import stability
from jaxssl.study import Findings, Setting, of_scale

CLAIMS = stability.claim("size of the projector's output", "TCL, Fig. 5.3")
SIZES = {
    "tiny": (16, 128, 512),
    "small": (64, 128, 512),
    "paper": (64, 128, 256, 512, 1024, 2048),
}


def run(setting: Setting) -> Findings:
    """Train both losses with each projector."""
    sizes = of_scale(setting, SIZES)
    cells = {str(size): {"head.proj_output_dim": size} for size in sizes}
    return stability.compare(setting, "output", cells)
