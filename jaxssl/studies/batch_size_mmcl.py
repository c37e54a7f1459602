"""MMCL against SimCLR at several batch sizes."""

from jaxssl.studies import grid
from jaxssl.studies.batch_size import BATCHES
from jaxssl.studies.cells import batch_size_cells
from jaxssl.studies.compared_methods import METHODS
from jaxssl.studies.grid import KNN, LINEAR
from jaxssl.studies.kernels import mmcl
from jaxssl.studies.study import Findings, Setting, read_claims

PAPER = "mmcl"
FLAGS = ("batch_sizes", "equal_steps")
CLAIMS = read_claims("batch_size_mmcl")


def run(setting: Setting) -> Findings:
    """Train MMCL and SimCLR at each batch size."""
    arms = {"simclr": METHODS["simclr"], "mmcl": mmcl(setting)}
    sizes = batch_size_cells(setting, {**BATCHES, "paper": (64, 128, 256)})
    results = grid.run_grid(setting, grid.cross(arms, sizes))
    claims = {"mmcl_above_simclr": grid.above("mmcl", "simclr", sizes, LINEAR, "B={}")}
    return grid.grid_findings(results, "batch size", [LINEAR, KNN], CLAIMS, claims, log="x")
