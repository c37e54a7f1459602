"""TCL against SupCon with encoders of several sizes, with labels."""

from jaxssl import stability
from jaxssl.study import Findings, Setting, Table

CLAIMS = stability.claim("encoder", "TCL, Fig. 5.1")
CONVNETS = {
    "16-32-64": {"net.widths": (16, 32, 64)},
    "32-64-128": {},
    "64-128-256": {"net.widths": (64, 128, 256)},
}
RESNETS = {f"ResNet-{depth}": {"net.depth": depth} for depth in (18, 34, 50, 101)}
PUBLISHED = Table(
    "Published: ImageNet-100 (TCL, Section 5.2.1; Fig. 5.1 has no numbers)",
    ("", "ResNet-18", "ResNet-34"),
    (("SupCon", "85.9", "86.5"), ("TCL", "86.7", "87.2")),
)


def run(setting: Setting) -> Findings:
    """Train both losses with each encoder; the baselines are the first one's."""
    cells = RESNETS if setting.scale == "paper" else CONVNETS
    return stability.compare(setting, "encoder", cells, PUBLISHED)
