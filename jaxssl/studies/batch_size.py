"""Accuracy by batch size, to find losses that keep their accuracy in small batches.

Every method is trained at every batch size with all other settings equal. All runs have the same
number of epochs, as in the papers: a smaller batch takes more steps, which alone may raise its
accuracy. With --equal_steps all runs have the same number of steps. MMCL, losses with labels, and
TCL without labels have their own studies: batch_size_mmcl, batch_size_tcl and views.
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from jaxssl.studies import grid
from jaxssl.studies.cells import batch_size_cells
from jaxssl.studies.compared_methods import LABELLED, METHODS, ON_REQUEST
from jaxssl.studies.grid import KNN, LINEAR, Comparison, Results
from jaxssl.studies.study import Claim, Findings, Setting, Verdict, read_claims, select_methods
from jaxssl.studies.verdicts import judge, spread

BATCHES = {"tiny": (16, 64, 256), "small": (16, 64, 256), "paper": (64, 128, 256, 512)}
FLAGS = ("methods", "batch_sizes", "equal_steps", "finished", "earlier")
CLAIMS = read_claims("batch_size")
# Each claim says that the first method is more accurate than the second at every batch size.
PAIRS = {
    "auc_cl_above_simclr": ("auc_cl", "simclr", KNN),
    "auc_cl_above_tuned": ("auc_cl", "simclr_tuned", KNN),
    "auc_cl_above_dcl": ("auc_cl", "dcl", LINEAR),
    "auc_cl_above_sogclr": ("auc_cl", "sogclr", LINEAR),
    "decl_above_simclr": ("decl", "simclr", KNN),
    "decl_above_tuned": ("decl", "simclr_tuned", KNN),
}
# Each claim says that the first method's accuracy depends less on the batch size than the second's.
CHANGES = {
    "auc_cl_stable": ("auc_cl", "simclr", KNN),
    "auc_cl_stable_tuned": ("auc_cl", "simclr_tuned", KNN),
    "auc_cl_stable_moco": ("auc_cl", "moco_v3", LINEAR),
}


def run(setting: Setting) -> Findings:
    """Train every method at every batch size and judge the claims."""
    default = [name for name in METHODS if name not in (*LABELLED, *ON_REQUEST)]
    methods = select_methods(setting.methods, default, (*ON_REQUEST, *LABELLED))
    sizes = batch_size_cells(setting, BATCHES)
    results = grid.run_grid(setting, grid.cross({name: METHODS[name] for name in methods}, sizes))
    verdicts: dict[str, Verdict | Comparison] = {
        key: grid.above(above, below, sizes, metric, "B={}")
        for key, (above, below, metric) in PAIRS.items()
    }
    verdicts |= judge_changes(results, tuple(sizes), CHANGES, CLAIMS) | _judge_lead(results, sizes)
    findings = grid.grid_findings(results, "batch size", [KNN, LINEAR], CLAIMS, verdicts, log="x")
    # A claim is about every batch size. Runs at some of them can refute it, but not confirm it.
    judged = dict(findings.verdicts)
    for key, arms in {**PAIRS, **CHANGES}.items():
        complete = len(sizes) > 1 and all(results.get((arm, n)) for arm in arms[:2] for n in sizes)
        if key in judged and judged[key].holds and not complete:
            judged[key] = judged[key]._replace(holds=None)
    return findings._replace(verdicts=judged)


def _judge_lead(results: Results, sizes: Collection[int]) -> dict[str, Verdict]:
    """Judge whether AUC-CL's lead over SimCLR is larger at the smallest batch size."""
    ends = grid.above("auc_cl", "simclr", (min(sizes), max(sizes)), KNN, "B={}")
    leads = {
        size: [a - b for a, b in zip(*pair, strict=True)]
        for size, pair in grid.pair_values(results, ends).items()
    }
    if len({len(lead) for lead in leads.values()}) != 1 or len(leads) < 2:
        return {}
    text = ", ".join(f"lead at {size} {spread(lead)}" for size, lead in leads.items())
    return {"auc_cl_lead": judge(CLAIMS["auc_cl_lead"], *leads.values()).after(text)}


def judge_changes(
    results: Results,
    sizes: Sequence[int],
    changes_of: Mapping[str, tuple[str, str, str]],
    claims: Mapping[str, Claim],
) -> dict[str, Verdict]:
    """Judge claims about the change in accuracy, if there are several batch sizes.

    Args:
        results: by method and batch size.
        sizes: the batch sizes.
        changes_of: by claim, the steady method, the other one and the metric.
        claims: of the study.
    """
    verdicts = {}
    for key, (steady, changing, metric) in changes_of.items():
        by_seed = {arm: _changes(results, arm, sizes, metric) for arm in (changing, steady)}
        seeds = sorted(by_seed[changing].keys() & by_seed[steady].keys())
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
