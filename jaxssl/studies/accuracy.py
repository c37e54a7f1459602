"""Accuracy of nine methods at one batch size, and of SimCLR and AUC-CL at several."""

from collections.abc import Sequence
from functools import partial

from jaxssl.errors import UserError
from jaxssl.studies import grid, run_results
from jaxssl.studies.batch_size import MethodPair, judge_changes
from jaxssl.studies.cells import Cell, batch_size_cells, batch_size_values, cell_config
from jaxssl.studies.compared_methods import METHODS
from jaxssl.studies.grid import KNN, LINEAR, METRIC_NAMES, Results
from jaxssl.studies.study import Findings, Setting, Table, Verdict, read_claims, select_methods
from jaxssl.studies.verdicts import spread

SWEEP = ("simclr", "simclr_tuned", "auc_cl", "auc_cl_sum")  # trained at all batch sizes
ARMS: dict[str, Cell] = {
    **{name: METHODS[name] for name in SWEEP},
    "auc_cl_released": {"loss.name": "auc_cl", "loss.preset": "released_cifar"},
    **{name: METHODS[name] for name in ("mmcl_inv", "decl", "tcl", "moco_v3")},
}
BATCHES = {"tiny": (16, 64), "small": (32, 64, 128), "paper": (64, 128, 256, 512)}
FLAGS = ("methods", "batch_sizes", "equal_steps")
CLAIMS = read_claims("accuracy")
# The claim says that the accuracy of eq. 8 as printed depends less on batch size than SimCLR's.
CHANGES = {"printed_stable": MethodPair("auc_cl_sum", "simclr", KNN)}


def run(setting: Setting) -> Findings:
    """Train the methods at the scale's batch size, and methods of `SWEEP` at all batch sizes."""
    arms = select_methods(setting.methods, tuple(ARMS))
    default = cell_config(setting, {}).batch_size
    sizes = {**batch_size_cells(setting, BATCHES), default: batch_size_values(setting, default)}
    sizes = dict(sorted(sizes.items()))
    sweep = {arm: ARMS[arm] for arm in arms if arm in SWEEP}
    if setting.batch_sizes and not sweep:
        raise UserError(f"--batch_sizes is for {', '.join(SWEEP)}; add one of them to --methods")
    cells = grid.cross({arm: ARMS[arm] for arm in arms}, {default: sizes[default]})
    cells |= grid.cross(sweep, sizes)
    results = grid.run_grid(setting, cells)
    at_default = {(arm, default): results[arm, default] for arm in arms}
    of_sweep = {(arm, size): results[arm, size] for arm in sweep for size in sizes}
    base = grid.baselines(run_results.first_run(at_default))
    tables = [grid.accuracy_table(at_default, "batch size", m, base) for m in (KNN, LINEAR)]
    pictures = []
    if sweep and len(sizes) > 1:
        for metric in (KNN, LINEAR):
            table = grid.accuracy_table(of_sweep, "batch size", metric, base)
            title = f"{table.title}, {', '.join(sweep)} by batch size"
            tables.append(table._replace(title=title))
            pictures.append(grid.accuracy_picture(of_sweep, "batch size", metric, base, log="x"))
    data: dict[str, object] = {"results": grid.metrics_by_cell(results), "baselines": base}
    data |= run_results.describe_each_run(results)
    verdicts = _verdicts(results, tuple(sizes), default)
    tables.append(_run_table(results))
    return Findings(tables, pictures, verdicts, data, grid.describe_runs(results))


def _run_table(results: Results) -> Table:
    """Build a table with a row for each run."""
    rows = [
        (
            f"{arm}, batch {size}, seed {run.seed}",
            *(spread([run.metrics[metric]]) for metric in (KNN, LINEAR)),
            f"{run.seconds / 60:.1f}",
            run.commit or "–",
            run.workdir.name,
        )
        for (arm, size), runs in results.items()
        for run in runs
    ]
    heading = ("run", METRIC_NAMES[KNN], METRIC_NAMES[LINEAR], "minutes", "commit", "folder")
    return Table("Runs", heading, rows, "Minutes of training and evaluation in the last command.")


def _verdicts(results: Results, sizes: Sequence[int], default: int) -> dict[str, Verdict]:
    """Judge the claims, most of which are about the smallest or the default batch size."""
    above = partial(grid.above, label="B={}")
    comparisons = {
        "auc_cl_smallest": above("auc_cl", "simclr", sizes[:1], KNN),
        "auc_cl_smallest_tuned": above("auc_cl", "simclr_tuned", sizes[:1], KNN),
        "released_above_simclr": above("auc_cl_released", "simclr", [default], KNN),
        "printed_above_simclr": above("auc_cl_sum", "simclr", sizes, KNN),
        "auc_cl_above_moco": above("auc_cl", "moco_v3", [default], LINEAR),
        "mmcl_inv_above_simclr": above("mmcl_inv", "simclr", [default], LINEAR),
    }
    changes = judge_changes(results, sizes, CHANGES, CLAIMS)
    return grid.judge_claims(CLAIMS, {**comparisons, **changes}, results)
