"""Collapse of AUC-CL by alpha, the weight of its margin term.

At alpha = 0 constant embeddings are a minimum if b = 1, and b needs time to get there. The learning
rate is therefore constant, as in the paper. Runs on the digits are longer than the scale's, with a
larger rate. The claims are judged by eq. 8 as printed ("auc_cl_sum") and by the recommended loss
("auc_cl").
"""

from itertools import combinations

from jaxssl.studies import grid
from jaxssl.studies.cells import cell_config
from jaxssl.studies.compared_methods import METHODS
from jaxssl.studies.grid import KNN
from jaxssl.studies.run_results import RunResult, last_values
from jaxssl.studies.study import Findings, Setting, Table, Verdict, read_claims
from jaxssl.studies.verdicts import finite, judge_similar, mean, spread
from jaxssl.training import collapse
from jaxssl.training.dry_run import open_training_split

ALPHAS = (0.0, 0.1, 0.5, 0.7, 1.0)
ARMS = {"auc_cl_sum": "", "auc_cl": "_recommended"}  # by loss, the suffix of its claims' names
NOMINAL = 2.0  # accuracy difference in percentage points that counts as nominal
CHANCE = 1.2  # A lower accuracy, in multiples of a random guess's, counts as chance.
ARRIVED = 0.9  # If AUC-CL's mean b exceeds this without a collapse, none will follow.
RATE = {"schedule.name": "constant", "schedule.warmup_epochs": 0.0}
LONGER = {"optim.lr": 1e-2, "total_steps": 1000}  # settings of the longer runs on the digits
PAPER = "alpha"
CLAIMS = read_claims("alpha")


def run(setting: Setting) -> Findings:
    """Train AUC-CL with every alpha of `ALPHAS`, and judge the claims about collapse."""
    schedule = {**RATE, **LONGER} if setting.scale == "tiny" else RATE
    arms = {arm: METHODS[arm] for arm in ARMS}
    cells = {alpha: {**schedule, "loss.alpha": alpha} for alpha in ALPHAS}
    results = grid.run_grid(setting, grid.cross(arms, cells))
    chance = CHANCE * 100 / open_training_split(cell_config(setting, {})).num_classes
    std = {cell: last_values(runs, "feature_std") for cell, runs in results.items()}
    b = {cell: last_values(runs, "b") for cell, runs in results.items()}
    verdicts = {}
    for arm, suffix in ARMS.items():
        knn = {alpha: grid.seed_values(results[arm, alpha], KNN) for alpha in ALPHAS[1:]}
        pairs = {f"{a:g} - {b:g}": (knn[a], knn[b]) for a, b in combinations(knn, 2)}
        verdicts[f"robust{suffix}"] = judge_similar(pairs, NOMINAL)
        for key, verdict in _judge_collapse(results[arm, 0.0], chance).items():
            verdicts[f"{key}{suffix}"] = verdict
    rows = [(f"std × √d, {arm}", *(spread(std[arm, a], 3) for a in ALPHAS)) for arm in ARMS]
    rows += [(f"b, {arm}", *(spread(b[arm, a]) for a in ALPHAS)) for arm in ARMS]
    ends = Table(
        "Spread of the embeddings, and b, at the end of training",
        ("", *(f"alpha {alpha:g}" for alpha in ALPHAS)),
        rows,
        f"1: spread evenly; below {collapse.COLLAPSED_STD:g}: collapsed.",
    )
    return grid.grid_findings(results, "alpha", [KNN], CLAIMS, verdicts, ends, feature_std=std)


def _judge_collapse(runs: list[RunResult], chance: float) -> dict[str, Verdict]:
    """Judge whether all runs at alpha = 0 collapsed, by their k-NN and by their embeddings.

    Accuracies below ``chance``, in percent, count as chance.
    The claims are undecided with a single run, if a run diverged, or if b has not converged.
    """
    std, b = (last_values(runs, key) for key in ("feature_std", "b"))
    knn = grid.seed_values(runs, KNN)
    text = f"k-NN {spread(knn)}, std × √d {spread(std, 3)}"
    text += f" after {last_values(runs, 'step')[0]} steps, where b is {spread(b)}"
    is_decidable = len(runs) > 1 and len(finite([*knn, *std])) == 2 * len(runs)

    def judge(values: list[float], limit: float) -> Verdict:
        collapsed, refuted = max(values) < limit, min(values) >= limit and mean(b) > ARRIVED
        return Verdict(text, collapsed if is_decidable and (collapsed or refuted) else None)

    return {"collapse": judge(knn, chance), "shrinks": judge(std, collapse.COLLAPSED_STD)}
