"""TCL against SupCon with projectors of several output sizes, with labels."""

from jaxssl.studies.study import Findings, Setting, read_claims, scale_value
from jaxssl.studies.tcl_comparison import compare_losses

PAPER = "tcl"
CLAIMS = read_claims("projector")
SIZES = {"tiny": (16, 128, 512), "small": (64, 128, 512), "paper": (64, 128, 256, 512, 1024, 2048)}


def run(setting: Setting) -> Findings:
    """Train TCL and SupCon with each output size of the projector."""
    cells = {str(size): {"head.proj_output_dim": size} for size in scale_value(setting, SIZES)}
    return compare_losses(setting, CLAIMS, "output", cells)
