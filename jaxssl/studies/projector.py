"""TCL against SupCon with projectors of several output sizes, with labels."""

from jaxssl.studies.study import Claim, Findings, Setting, scale_value
from jaxssl.studies.tcl_comparison import compare_losses

PAPER = "tcl"
CLAIMS = {
    "tcl_above": Claim(
        "TCL is above SupCon with every size of the projector's output (linear)",
        "TCL, Fig. 5.3",
        "TCL loss achieves consistent improvements in top-1 test classification accuracy over "
        "SupCon loss for various projector output sizes.",
        "1.2 points at size 2048; the figure has no numbers.",
        1.2,
    ),
}
SIZES = {
    "tiny": (16, 128, 512),
    "small": (64, 128, 512),
    "paper": (64, 128, 256, 512, 1024, 2048),
}


def run(setting: Setting) -> Findings:
    """Train both losses with each projector."""
    cells = {str(size): {"head.proj_output_dim": size} for size in scale_value(setting, SIZES)}
    return compare_losses(setting, CLAIMS["tcl_above"], "output", cells)
