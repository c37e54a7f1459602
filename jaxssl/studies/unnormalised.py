"""Embeddings as they are: DeCL and SimCLR on the sphere and without normalisation.

Without it the similarity is exp(-distance), with no temperature. SimCLR's arm is the same code:
DeCL with lambda 0 and the positive in the sum is NT-Xent.
"""

from collections.abc import Callable, Sequence

import numpy as np

from jaxssl.grid import KNN, METHODS, baselines, findings_of, run_grid, values
from jaxssl.studies.batch_size import BATCHES
from jaxssl.study import Claim, Findings, Setting, Table, Verdict, all_of, larger, of_scale, spread

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
FLAGS = ("batch_sizes",)
CLAIMS = {
    "decl_above_unnormalised": Claim(
        "Without normalisation DeCL is above SimCLR at every batch size (k-NN)", "DeCL, Table 1"
    ),
    "gap_grows": Claim(
        "DeCL's lead over SimCLR is larger without normalisation (k-NN, mean over batch sizes)",
        "DeCL, Section 4.1",
    ),
}
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
    """Train the four arms at every batch size."""
    batches = setting.batch_sizes or of_scale(setting, BATCHES)
    cells = {(arm, b): {**cell, "batch_size": b} for arm, cell in ARMS.items() for b in batches}
    found = run_grid(setting, cells)
    base = baselines(found["simclr", batches[0]][0])

    def of(arm: str, size: int) -> list[float]:
        return values(found[arm, size], KNN)

    above = {
        f"B={b}": larger(of("decl_unnormalised", b), of("simclr_unnormalised", b)) for b in batches
    }
    leads = [_leads(of, kind, batches) for kind in ("_unnormalised", "")]
    gap = larger(*leads)
    words = [spread(lead) for lead in leads]
    verdicts = {
        "decl_above_unnormalised": all_of(above),
        "gap_grows": Verdict(
            f"lead {words[0]} unnormalised, {words[1]} normalised: {gap.figure}", gap.holds
        ),
    }
    axis = tuple(ARMS), batches, "batch size"
    return findings_of(found, axis, [KNN], verdicts, PUBLISHED, base=base, log="x")


def _leads(of: Callable[[str, int], list[float]], kind: str, batches: Sequence[int]) -> list[float]:
    """DeCL's lead over SimCLR, seed by seed, the mean over the batch sizes."""
    arms = (f"decl{kind}", f"simclr{kind}")
    ours, theirs = (np.array([of(arm, b) for b in batches]) for arm in arms)
    return (ours - theirs).mean(axis=0).tolist()
