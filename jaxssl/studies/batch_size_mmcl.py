"""MMCL against SimCLR at several batch sizes."""

from jaxssl.studies import grid
from jaxssl.studies.batch_size import BATCHES
from jaxssl.studies.compared_methods import METHODS
from jaxssl.studies.grid import KNN, LINEAR
from jaxssl.studies.kernels import mmcl
from jaxssl.studies.study import Findings, Setting, Table, read_claims
from jaxssl.studies.verdicts import judge_all

PAPER = "mmcl"
FLAGS = ("batch_sizes", "equal_steps")
CLAIMS = read_claims("batch_size_mmcl")
PUBLISHED = Table(
    "Published: STL-10, 400 epochs, linear (MMCL Table 7)",
    ("", "batch 64", "128", "256"),
    (("SimCLR", "74.21", "77.18", "80.15"), ("MMCL", "80.11", "86.8", "88.3")),
)


def run(setting: Setting) -> Findings:
    """Train MMCL and SimCLR at each batch size."""
    arms = {"simclr": METHODS["simclr"], "mmcl": mmcl(setting)}
    cells = grid.batch_size_cells(setting, {**BATCHES, "paper": (64, 128, 256)})
    results = grid.run_grid(setting, grid.cross(arms, cells))
    sizes = tuple(cells)
    pairs = grid.pair_values(results, "mmcl", "simclr", sizes, LINEAR, "B={}")
    verdicts = {
        "mmcl_above_simclr": judge_all(CLAIMS["mmcl_above_simclr"], pairs, top=100.0),
    }
    return grid.grid_findings(
        results,
        (tuple(arms), sizes, "batch size"),
        [LINEAR, KNN],
        verdicts,
        PUBLISHED,
        baseline=("simclr", sizes[0]),
        log="x",
    )
