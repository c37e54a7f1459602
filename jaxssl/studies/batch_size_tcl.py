"""TCL against SupCon at several batch sizes, with labels.

At the scale "paper" the batch sizes of `TUNED` have the learning rates, for both losses, and the
constants k1 of TCL from its thesis (Animesh, 2023), which counts two views of each image. Other
batch sizes have those of 64 images, and other scales the same settings at every size.
"""

from jaxssl.studies.batch_size import BATCHES
from jaxssl.studies.cells import batch_size_cells
from jaxssl.studies.study import Findings, Setting, read_claims
from jaxssl.studies.tcl_comparison import compare_losses

PAPER = "tcl"
FLAGS = ("batch_sizes", "equal_steps")
CLAIMS = read_claims("batch_size_tcl")
# Maps the batch size in images to (learning rate, k1), from Appendix A.2.2.
TUNED = {
    16: (8e-3, 5000.0),
    32: (9e-3, 7500.0),
    64: (0.1, 5000.0),
    128: (0.2, 4000.0),
    256: (0.5, 4000.0),
    512: (1.0, 4000.0),
}


def run(setting: Setting) -> Findings:
    """Train TCL and SupCon at each batch size."""
    tuned = TUNED if setting.scale == "paper" else {}
    sizes = batch_size_cells(setting, {**BATCHES, "paper": tuple(TUNED)})
    rates = {size: {"optim.lr": rate} for size, (rate, _) in tuned.items()}
    cells = {str(size): {**cell, **rates.get(size, {})} for size, cell in sizes.items()}
    k1 = {str(size): {"loss.k1": k1} for size, (_, k1) in tuned.items()}
    return compare_losses(setting, CLAIMS, "batch size", cells, k1)
