"""DeCL and SimCLR with and without normalised embeddings.

Without normalisation the similarity is exp(-distance), with no temperature. SimCLR is then trained
by DeCL's code, because DeCL with lambda 0 and the positive in the sum is NT-Xent.
"""

import numpy as np

from jaxssl.studies import grid
from jaxssl.studies.batch_size import BATCHES
from jaxssl.studies.cells import batch_size_cells
from jaxssl.studies.compared_methods import METHODS
from jaxssl.studies.grid import KNN, Comparison, Results
from jaxssl.studies.study import Findings, Setting, Verdict, read_claims
from jaxssl.studies.verdicts import judge, spread

EUCLIDEAN = {"loss.similarity": "neg_euclidean", "loss.temperature": 1.0}
NT_XENT = {
    "loss.name": "decl",
    "loss.rate": "batch",
    "loss.weight": 0.0,
    "loss.include_positive": True,
}
ARMS = {
    "simclr": METHODS["simclr"],
    "decl": METHODS["decl"],
    "simclr_unnormalised": {**NT_XENT, **EUCLIDEAN},
    "decl_unnormalised": {**METHODS["decl"], **EUCLIDEAN},
}
FLAGS = ("batch_sizes", "equal_steps")
PAPER = "simclr"
CLAIMS = read_claims("unnormalised")


def run(setting: Setting) -> Findings:
    """Train DeCL and SimCLR, normalised or not, at every batch size."""
    sizes = batch_size_cells(setting, BATCHES)
    results = grid.run_grid(setting, grid.cross(ARMS, sizes))
    unnormalised = grid.above("decl_unnormalised", "simclr_unnormalised", sizes, KNN, "B={}")
    normalised = grid.above("decl", "simclr", sizes, KNN, "B={}")
    verdicts: dict[str, Verdict | Comparison] = {"decl_above_unnormalised": unnormalised}
    if len(sizes) > 1:  # The claim is about the mean over batch sizes.
        leads = [_leads(results, comparison) for comparison in (unnormalised, normalised)]
        text = f"lead {spread(leads[0])} unnormalised, {spread(leads[1])} normalised"
        verdicts["gap_grows"] = judge(CLAIMS["gap_grows"], *leads).after(text)
    return grid.grid_findings(results, "batch size", [KNN], CLAIMS, verdicts, log="x")


def _leads(results: Results, comparison: Comparison) -> list[float]:
    """Return DeCL's lead over SimCLR for each seed, averaged over the batch sizes."""
    pairs = grid.pair_values(results, comparison)
    return np.mean([np.subtract(*pair) for pair in pairs.values()], axis=0).tolist()
