"""Grids of runs for studies: one workdir each, finished ones are not repeated."""

import hashlib
import json
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from jaxssl.data import source
from jaxssl.errors import UserError
from jaxssl.evaluation import pretrain, run
from jaxssl.studies.study import Findings, Picture, Setting, Table, Verdict, curves, spread
from jaxssl.training import atomic_files, config, git, logs, metrics_writer, nonfinite

CELL = "cell.json"  # written when a run is finished and evaluated
PROTOCOLS = ("knn", "linear")
KNN, LINEAR = "knn_top1", "linear_top1"
LONGEST = 120  # characters of a folder's name

# What the papers compare; what a scale says holds for all of them. The settings are the papers',
# except for AUC-CL, whose paper leaves constants open, and for the tuned SimCLR.
METHODS: dict[str, dict[str, Any]] = {
    "simclr": {"loss.name": "nt_xent", "loss.temperature": 0.5},
    "simclr_tuned": {"loss.name": "nt_xent", "loss.temperature": 0.05},
    "dcl": {"loss.name": "dcl", "loss.temperature": 0.1},
    "sogclr": {"loss.name": "sogclr", "loss.temperature": 0.1},
    "moco_v3": {  # with solo-learn's temperature for CIFAR
        "method.name": "momentum",
        "predictor.name": "mlp",
        "loss.name": "info_nce",
        "loss.temperature": 0.2,
    },
    "auc_cl": {"loss.name": "auc_cl", "loss.preset": "recommended"},
    "auc_cl_sum": {"loss.name": "auc_cl", "loss.preset": "paper"},
    "decl": {"loss.name": "decl", "loss.preset": "simclr"},
    "mmcl": {"loss.name": "mmcl", "loss.preset": "stl10"},
    "tcl": {"loss.name": "tcl", "loss.preset": "self_supervised", "views": 3},
    "sup_con": {"loss.name": "sup_con", "loss.temperature": 0.1, "method.labels": True},
    "tcl_labels": {
        "loss.name": "tcl",
        "loss.preset": "supervised_cifar10",
        "method.labels": True,
    },
}
ON_REQUEST = ("auc_cl_sum",)  # left out of studies of all methods, unless --methods names it

WORDS = {KNN: "k-NN top-1 (k=200, T=0.5)", LINEAR: "linear top-1 (fast)"}


class RunResult(NamedTuple):
    """A finished run.

    Attributes:
        seed: its seed.
        workdir: where it lies.
        figures: accuracies in percent by metric; NaN if the run stopped because it was not finite.
        history: the lines of metrics.jsonl.
        seconds: training and evaluation took, as far as the last command is concerned.
        commit: of the code that trained it last, "" if unknown.
    """

    seed: int
    workdir: Path
    figures: dict[str, float]
    history: list[dict[str, Any]]
    seconds: float
    commit: str = ""


Grid = Mapping[Any, list[RunResult]]
Base = Mapping[str, Mapping[str, float]]  # what `baselines` gives


def run_grid(
    setting: Setting, cells: Mapping[Any, Mapping[str, Any]], *, seeds: int | None = None
) -> dict[Any, list[RunResult]]:
    """Train and evaluate every cell with every seed; go on where an earlier command stopped.

    Args:
        setting: scale, data set, seeds and folder.
        cells: by name, the config's values that differ.
        seeds: how many; by default the setting's.

    Returns:
        By the same names, an outcome for each seed.

    Raises:
        UserError: on a value that a run refuses, or a folder that cannot be written.
    """
    own = {"seed", "eval.protocols", *(key for cell in cells.values() for key in cell)}
    for key, _ in setting.overrides:
        if key in own:
            raise UserError(f"--config.{key}: this study sets it itself; leave it out")
    number = setting.seeds if seeds is None else seeds
    runs = [(name, seed, cell) for name, cell in cells.items() for seed in range(number)]
    found: dict[Any, list[RunResult]] = {name: [] for name in cells}
    for place, (name, seed, cell) in enumerate(runs, 1):
        outcome, fresh = _run(setting, {**cell, "seed": seed})
        found[name].append(outcome)
        if fresh:
            figures = ", ".join(f"{key} {value:.2f}" for key, value in outcome.figures.items())
            took = f"{outcome.seconds:.0f} s"
            print(f"[{place}/{len(runs)}] {_words(name)}, seed {seed}: {figures} ({took})")
            sys.stdout.flush()
    return found


def batch_size_values(setting: Setting, size: int) -> dict[str, Any]:
    """The values of a cell with another batch size: equal epochs, or equal steps."""
    config = cell_config(setting, {})
    if not setting.equal_steps or config.total_steps:
        return {"batch_size": size}
    images = len(source.load(config.data, config.data.train_split))
    steps = round(config.epochs * (images // config.batch_size))
    return {"batch_size": size, "total_steps": steps}


def values(outcomes: Sequence[RunResult], metric: str) -> list[float]:
    """A metric, seed by seed."""
    return [outcome.figures[metric] for outcome in outcomes]


def baselines(outcome: RunResult) -> dict[str, dict[str, float]]:
    """What raw pixels and the run's untrained network reach: {kind: {metric: percent}}."""
    path = outcome.workdir / "baselines.json"
    if not path.exists():
        kinds = ("raw", "untrained")
        with _quiet():
            rows = run.evaluate(outcome.workdir, PROTOCOLS, kinds=kinds, page=False)
        document = {kind: _figures(rows, kind) for kind in kinds}
        atomic_files.write_json(path, document)
    return json.loads(path.read_text())


def accuracy_table(
    found: Grid, arms: Sequence[str], xs: Sequence[Any], xname: str, metric: str, base: Base
) -> Table:
    """A row an arm, a column for each x; ``found`` has an outcome list for each (arm, x)."""
    rows = [
        (arm, *(spread(values(found[arm, x], metric)) if (arm, x) in found else "–" for x in xs))
        for arm in arms
    ]
    for kind, figures in base.items():
        rows.append((f"{kind}, no training", *[f"{figures[metric]:.2f}"] * len(xs)))
    note = "Top-1 in percent, mean ± standard deviation over seeds."
    return Table(WORDS[metric], ("", *(f"{xname} {_short(x)}" for x in xs)), rows, note)


def accuracy_picture(
    found: Grid,
    arms: Sequence[str],
    xs: Sequence[float],
    xname: str,
    metric: str,
    base: Base,
    *,
    log: str = "",
) -> Picture:
    """The table as lines."""
    series = {arm: (xs, [values(found[arm, x], metric) for x in xs]) for arm in arms}
    levels = {kind: figures[metric] for kind, figures in base.items()}
    figure = curves(series, xname, f"{WORDS[metric]}, %", log=log, levels=levels)
    alt = f"{WORDS[metric]} of {', '.join(arms)} against {xname}; the table has the numbers"
    return Picture(metric, figure, alt, f"{WORDS[metric]}. Bars are a standard deviation.")


def grid_findings(
    found: Grid,
    axis: tuple[Sequence[str], Sequence[Any], str],
    metrics: Sequence[str],
    verdicts: Mapping[str, Verdict],
    *tables: Table,
    base: Base | None = None,
    log: str = "",
    **data: Any,
) -> Findings:
    """What a study of a grid found: its accuracies as tables and lines, and what else it says.

    Args:
        found: an outcome list for each (arm, x).
        axis: arms, xs, and what x is called.
        metrics: each has a table and a picture.
        verdicts: of the study's claims.
        *tables: that follow.
        base: figures without training, if the whole grid has the same.
        log: "x" for a logarithmic axis.
        **data: further numbers.
    """
    base = base or {}
    return Findings(
        [*(accuracy_table(found, *axis, metric, base) for metric in metrics), *tables],
        [accuracy_picture(found, *axis, metric, base, log=log) for metric in metrics],
        verdicts,
        {"results": numbers(found), "baselines": base, **data},
        where(found),
    )


def where(found: Grid) -> str:
    """On what a grid was trained, and for how long, in words."""
    outcomes = next(iter(found.values()))
    settings = config.read_config(outcomes[0].workdir)
    data = Path(settings.data.path).name or settings.data.name
    part = settings.data.train_split
    steps, epochs = settings.total_steps, settings.epochs
    length = f"{steps} steps" if steps else f"{epochs:g} epochs"
    number = len(outcomes)
    return f"{data} ({part}), {length}, {number} seed{'s' if number > 1 else ''}"


def numbers(found: Grid) -> dict[Any, dict[str, list[float]]]:
    """All figures of a grid, seed by seed."""
    return {
        key: {metric: values(outcomes, metric) for metric in (KNN, LINEAR)}
        for key, outcomes in found.items()
    }


def cell_config(setting: Setting, cell: Mapping[str, Any]) -> Any:
    """The effective config of a cell."""
    given = {"data.name": setting.dataset} if setting.dataset else {}
    given |= dict(setting.overrides)
    own = {key: _text(value) for key, value in cell.items()}
    online = {"eval.protocols": "()"}  # evaluated here, without a page for each
    return config.load(setting.config, list({**given, **own, **online}.items()))


def _run(setting: Setting, cell: Mapping[str, Any]) -> tuple[RunResult, bool]:
    """A run's outcome, and whether it was trained just now."""
    workdir = setting.out / "runs" / run_name(setting, cell)
    settings, marker = cell_config(setting, cell), workdir / CELL
    fresh = not marker.exists()
    if fresh:
        start = time.perf_counter()
        with _quiet(), _stopped(workdir):
            figures = _train(settings, workdir)
        seconds = time.perf_counter() - start
        document = {"figures": figures, "seconds": seconds, "commit": git.current_commit()}
        atomic_files.write_json(marker, document)
    else:
        _refuse_other(settings, workdir)
    try:
        document = json.loads(marker.read_text())
        figures = {k: math.nan if v is None else v for k, v in document["figures"].items()}
        lines = metrics_writer.read_metrics(workdir / "metrics.jsonl")
        history = [{k: math.nan if v is None else v for k, v in line.items()} for line in lines]
        known = document["seconds"], document.get("commit", "")
        return RunResult(cell["seed"], workdir, figures, history, *known), fresh
    except (ValueError, KeyError, AttributeError) as error:
        raise UserError(f"{marker} is damaged; move {workdir} away") from error


def _refuse_other(settings: Any, workdir: Path) -> None:
    """A finished run may be of another scale, data set or version."""
    changed = config.conflicts(settings, config.read_config(workdir).to_dict())
    if changed:
        raise UserError(
            f"{workdir} is a run of another config ({'; '.join(changed[:3])}); take another --out"
        )


def _train(settings: Any, workdir: Path) -> dict[str, float | None]:
    fault = workdir / nonfinite.FILE_NAME
    fault.unlink(missing_ok=True)  # of an earlier command
    try:
        pretrain.train(settings, workdir)
    except UserError:
        if not fault.exists():
            raise
        return dict.fromkeys((KNN, LINEAR))  # not finite: that is a finding too
    rows = run.evaluate(workdir, PROTOCOLS, kinds=("pretrained",), page=False)
    return _figures(rows, "pretrained")


def _figures(rows: Sequence[Mapping[str, Any]], kind: str) -> dict[str, float]:
    found = {row["metric"]: row["value"] for row in rows if row["features"] == kind}
    return {metric: found[metric] for metric in (KNN, LINEAR) if metric in found}


def run_name(setting: Setting, cell: Mapping[str, Any]) -> str:
    """A readable name of a run: what differs from the scale's config.

    Studies that ask for the same run share it.
    """
    given = {key: _text(value) for key, value in cell.items()}
    told = dict(sorted({**dict(setting.overrides), **given}.items()))
    bare = setting._replace(overrides=())  # which are among what is told
    whole = cell_config(bare, told).to_dict()
    for key in list(told):
        rest = {other: text for other, text in told.items() if other != key}
        kept = key == "seed" or key.endswith((".name", ".preset"))  # which the others depend on
        if not kept and cell_config(bare, rest).to_dict() == whole:
            told = rest
    name = ",".join(
        f"{key}={text}"
        for key, text in told.items()
        if key not in (*config.CHANGEABLE_KEYS, "data.path")
    )
    safe = "".join(c if c.isalnum() or c in ",=._-+" else "_" for c in name)
    if len(safe) <= LONGEST and safe == name:
        return safe
    return f"{safe[:LONGEST]}-{hashlib.sha1(name.encode()).hexdigest()[:8]}"


@contextmanager
def _quiet() -> Iterator[None]:
    """A run's lines go to its train.log alone."""
    logs.log_to_screen()
    before, logs.console.quiet = logs.console.quiet, True
    try:
        yield
    finally:
        logs.console.quiet = before


@contextmanager
def _stopped(workdir: Path) -> Iterator[None]:
    try:
        yield
    except SystemExit:
        print(f"stopped in {workdir}; the same command goes on there", file=sys.stderr)
        raise


def _text(value: Any) -> str:
    """A value as it is given on the command line."""
    return value if isinstance(value, str) else repr(value)


def _short(x: Any) -> str:
    return f"{x:g}" if isinstance(x, float) else str(x)


def _words(name: Any) -> str:
    return ", ".join(map(str, name)) if isinstance(name, tuple) else str(name)
