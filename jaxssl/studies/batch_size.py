"""Accuracy by batch size, to find losses that keep their accuracy in small batches.

Every method is trained at every batch size with all other settings equal. All runs have the same
number of epochs, as in the papers: a smaller batch takes more steps, which alone may raise its
accuracy. With --equal_steps all runs have the same number of steps. Losses with labels have the
study batch_size_tcl.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from jaxssl.studies import grid
from jaxssl.studies.cells import batch_size_cells
from jaxssl.studies.compared_methods import LABELLED, METHODS, ON_REQUEST
from jaxssl.studies.grid import KNN, LINEAR, Comparison, Results
from jaxssl.studies.study import Claim, Findings, Setting, Verdict, read_claims, select_methods
from jaxssl.studies.verdicts import judge, spread

BATCHES = {"tiny": (16, 64, 256), "small": (16, 64, 256), "paper": (64, 128, 256, 512)}
FLAGS = ("methods", "batch_sizes", "equal_steps", "finished", "earlier")
# Claims of other studies that these runs test too.
OTHERS = {
    "accuracy": (
        "auc_cl_smallest",
        "auc_cl_smallest_tuned",
        "printed_above_simclr",
        "printed_stable",
        "auc_cl_above_moco",
        "mmcl_inv_above_simclr",
    ),
    "batch_size_mmcl": ("mmcl_above_simclr",),
}
CLAIMS = read_claims("batch_size") | {
    key: read_claims(study)[key] for study, keys in OTHERS.items() for key in keys
}


class MethodPair(NamedTuple):
    """The method that a claim favours over another, and the accuracy by which it is judged."""

    favoured: str
    other: str
    metric: str


# Each claim says that the favoured method is more accurate than the other at every batch size.
PAIRS = {
    "auc_cl_above_simclr": MethodPair("auc_cl", "simclr", KNN),
    "auc_cl_above_tuned": MethodPair("auc_cl", "simclr_tuned", KNN),
    "auc_cl_above_dcl": MethodPair("auc_cl", "dcl", LINEAR),
    "auc_cl_above_sogclr": MethodPair("auc_cl", "sogclr", LINEAR),
    "decl_above_simclr": MethodPair("decl", "simclr", KNN),
    "decl_above_tuned": MethodPair("decl", "simclr_tuned", KNN),
    "printed_above_simclr": MethodPair("auc_cl_sum", "simclr", KNN),
    "auc_cl_above_moco": MethodPair("auc_cl", "moco_v3", LINEAR),
    "mmcl_inv_above_simclr": MethodPair("mmcl_inv", "simclr", LINEAR),
    "mmcl_above_simclr": MethodPair("mmcl", "simclr", LINEAR),
}
# Each claim says that the favoured method is more accurate at the smallest batch size.
AT_SMALLEST = {
    "auc_cl_smallest": MethodPair("auc_cl", "simclr", KNN),
    "auc_cl_smallest_tuned": MethodPair("auc_cl", "simclr_tuned", KNN),
}
# Each claim says that the favoured method's accuracy depends less on the batch size.
CHANGES = {
    "auc_cl_stable": MethodPair("auc_cl", "simclr", KNN),
    "auc_cl_stable_tuned": MethodPair("auc_cl", "simclr_tuned", KNN),
    "auc_cl_stable_moco": MethodPair("auc_cl", "moco_v3", LINEAR),
    "printed_stable": MethodPair("auc_cl_sum", "simclr", KNN),
}


def run(setting: Setting) -> Findings:
    """Train every method at every batch size and judge the claims."""
    default = [name for name in METHODS if name not in (*LABELLED, *ON_REQUEST)]
    methods = select_methods(setting.methods, default, (*ON_REQUEST, *LABELLED))
    sizes = batch_size_cells(setting, BATCHES)
    results = grid.run_grid(setting, grid.cross({name: METHODS[name] for name in methods}, sizes))
    verdicts: dict[str, Verdict | Comparison] = {
        key: grid.above(pair.favoured, pair.other, at, pair.metric, "B={}")
        for pairs, at in ((PAIRS, sizes), (AT_SMALLEST, (min(sizes),)))
        for key, pair in pairs.items()
    }
    verdicts |= judge_changes(results, tuple(sizes), CHANGES, CLAIMS) | _judge_lead(results, sizes)
    return grid.grid_findings(results, "batch size", [KNN, LINEAR], CLAIMS, verdicts, log="x")


def _judge_lead(results: Results, sizes: Collection[int]) -> dict[str, Verdict]:
    """Judge whether AUC-CL's lead over SimCLR is larger at the smallest batch size."""
    small, large = min(sizes), max(sizes)
    at_small, at_large = _leads(results, small), _leads(results, large)
    seeds = sorted(at_small.keys() & at_large.keys())
    if small == large or not seeds:
        return {}
    leads = [[lead[seed] for seed in seeds] for lead in (at_small, at_large)]
    text = f"lead at B={small} {spread(leads[0])}, lead at B={large} {spread(leads[1])}"
    return {"auc_cl_lead": judge(CLAIMS["auc_cl_lead"], *leads).after(text)}


def _leads(results: Results, size: int) -> dict[int, float]:
    """Return AUC-CL's accuracy less SimCLR's by seed, for the seeds that both have finished."""
    auc_cl, simclr = (
        {run.seed: run.metrics[KNN] for run in results.get((arm, size), ())}
        for arm in ("auc_cl", "simclr")
    )
    return {seed: auc_cl[seed] - simclr[seed] for seed in auc_cl.keys() & simclr.keys()}


def judge_changes(
    results: Results,
    sizes: Sequence[int],
    pairs: Mapping[str, MethodPair],
    claims: Mapping[str, Claim],
) -> dict[str, Verdict]:
    """Judge claims about the change in accuracy between several batch sizes.

    Args:
        results: by method and batch size.
        sizes: the batch sizes.
        pairs: by claim, the method that is claimed to change less in accuracy, and the other.
        claims: of the study.

    Returns:
        The verdicts by claim: none with a single batch size, and none on methods for which no seed
        is finished at every batch size.
    """
    verdicts = {}
    for key, (favoured, other, metric) in pairs.items():
        by_seed = {arm: _changes(results, arm, sizes, metric) for arm in (other, favoured)}
        seeds = sorted(by_seed[other].keys() & by_seed[favoured].keys())
        if seeds and len(sizes) > 1:
            changes = {arm: [values[seed] for seed in seeds] for arm, values in by_seed.items()}
            text = ", ".join(f"{arm} changes by {spread(c)}" for arm, c in changes.items())
            verdicts[key] = judge(claims[key], *changes.values()).after(text)
    return verdicts


def _changes(results: Results, arm: str, sizes: Sequence[int], metric: str) -> dict[int, float]:
    """Return the largest minus the smallest accuracy over the batch sizes, for each seed.

    Seeds without a finished run at every batch size are left out.
    """
    by_seed: dict[int, list[float]] = {}
    for size in sizes:
        for run in results.get((arm, size), ()):
            by_seed.setdefault(run.seed, []).append(run.metrics[metric])
    return {s: float(np.ptp(each)) for s, each in by_seed.items() if len(each) == len(sizes)}
