"""TCL against SupCon with encoders of several sizes, with labels."""

from jaxssl.studies.study import Findings, Setting, read_claims
from jaxssl.studies.tcl_comparison import compare_losses

PAPER = "tcl"
CLAIMS = read_claims("encoder")
CONVNETS = {
    "16-32-64": {"net.widths": (16, 32, 64)},
    "32-64-128": {},
    "64-128-256": {"net.widths": (64, 128, 256)},
}
RESNETS: dict[str, dict[str, object]] = {
    f"ResNet-{depth}": {"net.depth": depth} for depth in (18, 34, 50, 101)
}
RESNETS["ResNet-101"]["optim.lr"] = 0.09  # learning rate from Appendix A.2.1 of the TCL paper


def run(setting: Setting) -> Findings:
    """Train TCL and SupCon with encoders of each size, and judge the claim about them."""
    cells = RESNETS if setting.scale == "paper" else CONVNETS
    return compare_losses(setting, CLAIMS, "encoder", cells)
