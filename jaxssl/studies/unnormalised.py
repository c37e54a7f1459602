"""DeCL and SimCLR with and without normalised embeddings.

Without normalisation the similarity is exp(-distance), with no temperature. SimCLR's loss is the
same code, because DeCL with lambda 0 and the positive in the sum is NT-Xent.
"""

from collections.abc import Sequence

import numpy as np

from jaxssl.studies import grid
from jaxssl.studies.batch_size import BATCHES
from jaxssl.studies.compared_methods import METHODS
from jaxssl.studies.grid import KNN, Results
from jaxssl.studies.study import Findings, Setting, Table, read_claims
from jaxssl.studies.verdicts import judge, judge_all, spread

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
CLAIMS = read_claims("unnormalised")
PUBLISHED = Table(
    "Published: CIFAR-10, ResNet-50, 200 epochs, k-NN (DeCL Table 1)",
    ("", "batch 64", "128", "256", "512"),
    (
        ("SimCLR", "79.6", "81.8", "83.8", "84.9"),
        ("DeCL", "83.8", "85.7", "86.4", "86.4"),
        ("SimCLR, unnormalised", "73.9", "75.8", "76.1", "77.2"),
        ("DeCL, unnormalised", "79.9", "82.2", "83.4", "83.5"),
    ),
)


def run(setting: Setting) -> Findings:
    """Train DeCL and SimCLR, normalised or not, at every batch size."""
    cells = grid.batch_size_cells(setting, BATCHES)
    results = grid.run_grid(setting, grid.cross(ARMS, cells))
    sizes = tuple(cells)
    pairs = grid.pair_values(
        results, "decl_unnormalised", "simclr_unnormalised", sizes, KNN, "B={}"
    )
    leads = [_leads(results, kind, sizes) for kind in ("_unnormalised", "")]
    gap = judge(CLAIMS["gap_grows"], *leads)
    without, with_norm = map(spread, leads)
    verdicts = {
        "decl_above_unnormalised": judge_all(CLAIMS["decl_above_unnormalised"], pairs, top=100.0),
        "gap_grows": gap.after(f"lead {without} unnormalised, {with_norm} normalised"),
    }
    axis = tuple(ARMS), sizes, "batch size"
    baseline = "simclr", sizes[0]
    return grid.grid_findings(results, axis, [KNN], verdicts, PUBLISHED, baseline=baseline, log="x")


def _leads(results: Results, kind: str, sizes: Sequence[int]) -> list[float]:
    """Return DeCL's lead over SimCLR for each seed, averaged over the batch sizes."""
    pairs = grid.pair_values(results, f"decl{kind}", f"simclr{kind}", sizes, KNN)
    return np.mean([np.subtract(*pair) for pair in pairs.values()], axis=0).tolist()
