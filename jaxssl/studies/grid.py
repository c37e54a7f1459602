"""Train grids of runs for studies, one workdir each. Finished runs are not repeated.

A grid can be trained in several sessions, on temporary machines: the JSON document of a study
records each finished run with its config and the fingerprint of its training data, and
``setting.earlier`` names such a document. Its runs are not trained again.
"""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ml_collections import ConfigDict

from jaxssl.errors import UserError, explain_damage
from jaxssl.evaluation import pretrain, run
from jaxssl.report.results import Row
from jaxssl.studies import run_results
from jaxssl.studies.cells import Cell, cell_config, check_batch_sizes, portable_config, run_name
from jaxssl.studies.plots import plot_lines
from jaxssl.studies.run_results import RESULT_FILE, RunResult
from jaxssl.studies.study import Claim, Findings, Picture, Setting, Table, Verdict
from jaxssl.studies.verdicts import Pairs, judge_all, spread
from jaxssl.training import config, nonfinite
from jaxssl.training.config import trust
from jaxssl.training.output import console, file_io, git, logs

KNN, LINEAR, SVM = "knn_top1", "linear_top1", "svm_top1"
METRIC_NAMES = {
    KNN: "k-NN top-1 (k=200, T=0.5)",
    LINEAR: "linear top-1 (fast)",
    SVM: "SVM top-1 (ten folds)",
}
PROTOCOLS = {"knn": KNN, "linear": LINEAR}  # maps a protocol to the metric that is compared

T = TypeVar("T")
Results = Mapping[Any, list[RunResult]]  # results of all seeds by cell, usually (method, x)
Baselines = Mapping[str, Mapping[str, float]]  # metrics by kind of features, "raw" or "untrained"


class Comparison(NamedTuple):
    """A claim that the first cell of each of several pairs is more accurate than the second.

    Attributes:
        metric: the accuracy.
        cells: pairs of cells, by the names of the pairs in the verdict. The first cell of each is
            claimed to be the more accurate one. The name of a single pair may be "".
    """

    metric: str
    cells: Mapping[str, tuple[object, object]]


def run_grid(
    setting: Setting, cells: Mapping[T, Cell], protocols: Mapping[str, str] = PROTOCOLS
) -> dict[T, list[RunResult]]:
    """Train and evaluate every cell of a grid with every seed, unless an earlier command has.

    Runs of the document ``setting.earlier`` count as finished. If others are trained beside them
    by another commit, a warning says so. With ``setting.finished`` nothing is trained, and runs
    that are not finished are left out.

    Args:
        setting: scale, data set, seeds and folder.
        cells: by name, the config values that differ from the scale's.
        protocols: that evaluate a run, with their metrics.

    Returns:
        By the same names, a result for each seed, or for the seeds of finished runs.

    Raises:
        UserError: for a value that a run rejects, a folder that cannot be written, an earlier run
            with another config or other data, or if no run is finished.
    """
    keys = {"seed", "eval.protocols", *(key for cell in cells.values() for key in cell)}
    for key, _ in setting.overrides:
        if key in keys:
            raise UserError(f"--config.{key} is set by the study itself; leave the flag out")
    seeds = range(setting.seeds)
    runs = [(name, seed, {**cell, "seed": seed}) for name, cell in cells.items() for seed in seeds]
    here = {
        (name, seed)
        for name, seed, values in runs
        if (_workdir(setting, values) / RESULT_FILE).exists()
    }
    digests: dict[str, tuple[str, str]] = {}
    earlier = _read_earlier(setting, setting.earlier, cells, digests) if setting.earlier else {}
    if not setting.finished and len(earlier) < len(runs):
        _warn_of_other_commits(setting, earlier.values())
        waiting = [x for name, seed, x in runs if (name, seed) not in {*here, *earlier}]
        check_batch_sizes(cell_config(setting, values) for values in waiting)
    results: dict[T, list[RunResult]] = {name: [] for name in cells}
    for number, (name, seed, values) in enumerate(runs, 1):
        result, is_new = earlier.get((name, seed)), False
        if (name, seed) in here or not (result or setting.finished):
            result, is_new = run_cell(setting, values, protocols, digests=digests)
        if result is None:
            continue
        results[name].append(result)
        label = run_results.run_label(name, seed)
        if is_new:
            metrics = ", ".join(f"{key} {value:.2f}" for key, value in result.metrics.items())
            console.show(f"[{number}/{len(runs)}] {label}: {metrics} ({result.seconds:.0f} s)")
        elif not result.is_finite:
            console.show(f"{label} ended with NaN before, and is not trained again")
    if not any(results.values()):
        raise UserError(f"no run of this grid in {setting.out} is finished; leave --finished out")
    return results


def cross(arms: Mapping[str, Cell], xs: Mapping[T, Cell]) -> dict[tuple[str, T], Cell]:
    """Return the grid cells (method, x) of all methods and all values of x."""
    return {(arm, x): {**cell, **xs[x]} for arm, cell in arms.items() for x in xs}


def seed_values(results: Sequence[RunResult], metric: str) -> list[float]:
    """Return the values of a metric, one for each seed's run."""
    return [result.metrics[metric] for result in results]


def above(arm: str, other: str, xs: Iterable[object], metric: str, label: str = "{}") -> Comparison:
    """Return the comparison that an arm is more accurate than another at every x."""
    return Comparison(metric, {label.format(x): ((arm, x), (other, x)) for x in xs})


def pair_values(results: Results, comparison: Comparison) -> Pairs:
    """Pair the accuracies of a comparison by seed.

    Seeds that only one of two cells has finished are left out, and so are cells without any pair.
    """
    pairs = {}
    for label, cells in comparison.cells.items():
        ours, theirs = (
            {run.seed: run.metrics[comparison.metric] for run in results.get(cell, ())}
            for cell in cells
        )
        if seeds := sorted(ours.keys() & theirs.keys()):
            pairs[label] = [ours[s] for s in seeds], [theirs[s] for s in seeds]
    return pairs


def judge_claims(
    claims: Mapping[str, Claim], verdicts: Mapping[str, Verdict | Comparison], results: Results
) -> dict[str, Verdict]:
    """Judge comparisons. Without all pairs a claim is not confirmed, and without any not judged.

    Args:
        claims: of the study, by short name.
        verdicts: by the same names, the comparison that a claim makes, or its verdict.
        results: of the cells that the comparisons name.
    """
    judged = {}
    for key, verdict in verdicts.items():
        if isinstance(verdict, Verdict):
            judged[key] = verdict
        elif pairs := pair_values(results, verdict):
            number = len(verdict.cells)
            of_pairs = judge_all(claims[key], pairs, number=number, top=100.0)
            undecided = of_pairs.holds and len(pairs) < number
            judged[key] = of_pairs._replace(holds=None) if undecided else of_pairs
    return judged


def baselines(
    result: RunResult, protocols: Mapping[str, str] = PROTOCOLS
) -> dict[str, dict[str, float]]:
    """Return the metrics of raw pixels and of the run's untrained network, {} if it diverged."""
    if not result.is_finite:
        return {}
    if result.baselines is not None:
        return result.baselines
    path, features = result.workdir / "baselines.json", ("raw", "untrained")
    if not path.exists():
        with logs.quiet():
            rows = run.evaluate(result.workdir, tuple(protocols), kinds=features, page=False)
        file_io.write_json(path, {each: _metrics(rows, each) for each in features})
    with explain_damage(path):
        return json.loads(path.read_text())


def accuracy_table(results: Results, axis: str, metric: str, base: Baselines) -> Table:
    """Build an accuracy table: a row for each method and baseline, a column for each x."""
    arms, xs = _arms_and_xs(results)
    rows = []
    for arm in arms:
        cells = [results.get((arm, x)) for x in xs]
        rows.append((arm, *(spread(seed_values(c, metric)) if c else "–" for c in cells)))
    for name, metrics in base.items():
        rows.append((f"{name}, no training", *[f"{metrics[metric]:.2f}"] * len(xs)))
    heads = [f"{axis} {x:g}" if isinstance(x, float) else f"{axis} {x}".strip() for x in xs]
    note = "Top-1 in percent, mean ± standard deviation over seeds."
    return Table(METRIC_NAMES[metric], ("", *heads), rows, note)


def accuracy_picture(
    results: Results, axis: str, metric: str, base: Baselines, *, log: str = ""
) -> Picture:
    """Plot the accuracy of each method against x, with the baselines as horizontal lines."""
    arms, xs = _arms_and_xs(results)
    series = {arm: (xs, [seed_values(results[arm, x], metric) for x in xs]) for arm in arms}
    levels = {kind: metrics[metric] for kind, metrics in base.items()}
    name = METRIC_NAMES[metric]
    figure = plot_lines(series, axis, f"{name}, %", log=log, levels=levels)
    alt = f"{name} of {', '.join(arms)} against {axis}; the table has the numbers"
    return Picture(metric, figure, alt, f"{name}. Bars are one standard deviation over seeds.")


def grid_findings(
    results: Results,
    axis: str,
    metrics: Sequence[str],
    claims: Mapping[str, Claim],
    verdicts: Mapping[str, Verdict | Comparison],
    *tables: Table,
    has_baselines: bool = True,
    pictured: Sequence[str] | None = None,
    log: str = "",
    **data: object,
) -> Findings:
    """Return a grid's findings: accuracies as tables and plots, and the verdicts.

    Args:
        results: a result list for each (arm, x).
        axis: name of x.
        metrics: each has a table.
        claims: of the study.
        verdicts: as for `judge_claims`.
        *tables: further tables.
        has_baselines: whether to show the `baselines` of the first run.
        pictured: the metrics that have a plot, by default all.
        log: "x" for a logarithmic axis.
        **data: further numbers for the document.
    """
    base = baselines(run_results.first_run(results)) if has_baselines else {}
    numbers = {"results": metrics_by_cell(results), **({"baselines": base} if base else {})}
    return Findings(
        [*(accuracy_table(results, axis, metric, base) for metric in metrics), *tables],
        [
            accuracy_picture(results, axis, metric, base, log=log)
            for metric in (metrics if pictured is None else pictured)
        ],
        judge_claims(claims, verdicts, results),
        {**numbers, **run_results.describe_each_run(results), **data},
        describe_runs(results),
    )


def describe_runs(results: Results) -> str:
    """Describe data set, training length and number of seeds of a grid in words."""
    config = run_results.first_run(results).config
    data, steps = config["data"], config["total_steps"]
    most = max(map(len, results.values()))
    missing = sum(most - len(of_cell) for of_cell in results.values())
    runs = [(name, run) for name, of_cell in results.items() for run in of_cell]
    lost = [run_results.run_label(name, run.seed) for name, run in runs if not run.is_finite]
    facts = [
        f"{data['path'] or data['name']} ({data['train_split']})",
        f"{steps} steps" if steps else f"{config['epochs']:g} epochs",
        f"{most} seeds" if most > 1 else "1 seed",
    ]
    if missing:
        facts.append(f"{missing} of {most * len(results)} runs missing")
    if lost:
        facts.append(f"NaN in {'; '.join(lost)}")
    return ", ".join(facts)


def metrics_by_cell(results: Results) -> dict[object, dict[str, list[float]]]:
    """Return for each cell of a grid all metrics, each as a list with one value for each seed."""
    return {
        cell: {metric: seed_values(runs, metric) for metric in (runs[0].metrics if runs else ())}
        for cell, runs in results.items()
    }


def run_cell(
    setting: Setting,
    cell: Cell,
    protocols: Mapping[str, str] = PROTOCOLS,
    flag: str = "--out",
    *,
    digests: dict[str, tuple[str, str]],
) -> tuple[RunResult, bool]:
    """Return the result of a run, and True if the run was trained just now.

    Args:
        setting: scale, data set and folder.
        cell: the config values that differ from the scale's, with the seed.
        protocols: that evaluate the run, with their metrics. The run is not evaluated without any.
        flag: the flag that names the folder in messages.
        digests: see `run_results.require_same_data`.

    Raises:
        UserError: for an invalid value, a run of another config or on other data in the folder, or
            a damaged result.
    """
    workdir, settings = _workdir(setting, cell), cell_config(setting, cell)
    is_new = not (workdir / RESULT_FILE).exists()
    if is_new:
        _train(settings, workdir, protocols)
    elif changed := config.conflicts(settings, config.read_config(workdir).to_dict()):
        changes = config.join_differences(changed)
        raise UserError(f"{workdir} is a run of another config ({changes}); take another {flag}")
    else:
        trust.remember((), settings.data)  # The command names the data, so baselines may use them.
    result = run_results.read_result(settings, workdir)
    if not is_new:
        run_results.require_same_data(settings, result, digests, f"take another {flag}: {workdir}")
    return result, is_new


def _read_earlier(
    setting: Setting, path: Path, cells: Mapping[Any, Cell], digests: dict[str, tuple[str, str]]
) -> dict[tuple[object, int], RunResult]:
    """Read the runs of a study's document that belong to a grid, by cell and seed.

    Raises:
        UserError: if the document cannot be read, or has another scale, or if one of the runs has
            another config than the grid, or other training data than the present ones.
    """
    scale, recorded = run_results.read_runs(path)
    refusal = f"--earlier {path} cannot be continued"
    if scale != setting.scale:
        raise UserError(f"{refusal}: the scale of its runs is {scale!r}, not {setting.scale!r}")
    runs = {}
    for (name, seed), result in recorded.items():
        if name not in cells or seed >= setting.seeds:
            continue
        label = run_results.run_label(name, seed)
        settings = cell_config(setting, {**cells[name], "seed": seed})
        if changed := config.conflicts(ConfigDict(portable_config(settings)), result.config):
            differences = config.join_differences(changed)
            raise UserError(f"{refusal}: {label} has another config ({differences})")
        run_results.require_same_data(settings, result, digests, f"{refusal}: {label}")
        runs[name, seed] = result
    return runs


def _warn_of_other_commits(setting: Setting, runs: Iterable[RunResult]) -> None:
    """Warn if the views or the training of earlier runs may differ from those of new ones."""
    others = sorted({run.commit for run in runs} - {git.current_commit()})
    if others:
        logs.log.warning(
            "--earlier %s: new runs are comparable with its runs, of the commits %s, only if views "
            "and training have not changed since (CHANGELOG.md)",
            setting.earlier,
            ", ".join(others),
        )


def _workdir(setting: Setting, cell: Cell) -> Path:
    return setting.out / "runs" / run_name(setting, cell)


def _arms_and_xs(results: Results) -> tuple[list[str], list[float | str]]:
    """Return the arms and the values of x that cells (arm, x) have, in their order."""
    arms, xs = (list(dict.fromkeys(part)) for part in zip(*results, strict=True))
    return arms, xs


def _train(settings: ConfigDict, workdir: Path, protocols: Mapping[str, str]) -> None:
    """Train and evaluate a run, and write its metrics and time into `RESULT_FILE`."""
    start = time.perf_counter()
    try:
        with logs.quiet():
            metrics = _measure(settings, workdir, protocols)
            content = run_results.fingerprints(settings)[1] if protocols else ""
    except SystemExit:
        console.show_error(f"stopped in {workdir}; run the same command to resume")
        raise
    seconds = time.perf_counter() - start
    facts = {"seconds": seconds, "commit": git.current_commit(), "content": content}
    file_io.write_json(workdir / RESULT_FILE, {"figures": metrics, **facts})


def _measure(
    settings: ConfigDict, workdir: Path, protocols: Mapping[str, str]
) -> Mapping[str, float | None]:
    """Train a run and return its metrics, which are None if training has diverged."""
    fault = workdir / nonfinite.FILE_NAME
    if fault.exists():  # An earlier command has left its error file.
        fault.unlink()
    try:
        pretrain.train(settings, workdir)
    except UserError:
        if not fault.exists():
            raise
        return dict.fromkeys(protocols.values())
    if not protocols:
        return {}
    rows = run.evaluate(workdir, tuple(protocols), kinds=("pretrained",), page=False)
    return _metrics(rows, "pretrained")


def _metrics(rows: Sequence[Row], features: str) -> dict[str, float]:
    """Return the metrics of `METRIC_NAMES` among the results of one kind of features."""
    selected = [row for row in rows if row["features"] == features]
    return {row["metric"]: row["value"] for row in selected if row["metric"] in METRIC_NAMES}
