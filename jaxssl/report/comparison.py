"""Write the page that compares runs: their results, training curves and different settings."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

from jaxssl import components
from jaxssl.configs.base import CHANGEABLE_KEYS
from jaxssl.errors import UserError
from jaxssl.report.curves import FILE_SETTINGS, comparison_curves
from jaxssl.report.images import figure_style
from jaxssl.report.page import Cell, Table, render
from jaxssl.report.results import LOWER_IS_BETTER, Row, format_value, metric_name
from jaxssl.report.run_report import write_report
from jaxssl.report.runs import Group, Run, check_workdirs, group_by_seed, read_runs
from jaxssl.report.workdir import flatten, format_setting, is_finite, length, speed
from jaxssl.training.output import file_io

MAX_LOSSES = 3  # largest number of losses named in the page title
BEST = "★"
# Results are comparable if these fields agree. Each entry is (label, field of a row of
# results.json).
DATA_FIELDS = (
    ("data set", "dataset"),
    ("fitted on", "bank"),
    ("tested on", "split"),
    ("features", "layer"),
    ("data content", "content"),
)

Cells = dict[int, list[Row]]  # result rows of the runs of a group, by the index of the group
Source = tuple[tuple[str, str], ...]  # names and values of the settings of the evaluated data


class Line(NamedTuple):
    """Protocol, preset, metric and unit of a line of a results table."""

    protocol: str
    preset: str | None
    metric: str
    unit: str


def write_page(workdirs: Sequence[Path], out: Path | None = None) -> Path:
    """Write the report page of one run, or the comparison page of several.

    Args:
        workdirs: one or more.
        out: the page, by default report.html in the only workdir, or compare.html in the current
            folder.

    Returns:
        The path of the page.

    Raises:
        UserError: without a workdir, for a page that is not named *.html, or for the reasons of
            `write_comparison`.
    """
    if not workdirs:
        raise UserError("name one run or more: jaxssl report DIR [DIR ...]")
    if out and out.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--out must end in .html, got {out}")
    if len(workdirs) > 1:
        return write_comparison(workdirs, out or Path("compare.html"))
    check_workdirs(workdirs)
    out = out or workdirs[0] / "report.html"
    return write_report(workdirs[0], out)


def write_comparison(workdirs: Sequence[Path], out: Path) -> Path:
    """Write an HTML page that compares several runs.

    Args:
        workdirs: two or more.
        out: the page.

    Returns:
        ``out``.

    Raises:
        UserError: for a folder that holds no run or is named twice, a damaged file, or a page that
            cannot be written.
    """
    runs = read_runs(workdirs)
    groups = group_by_seed(runs)
    losses = list(dict.fromkeys(run.loss for run in runs))
    more = f" and {len(losses) - MAX_LOSSES} more" if len(losses) > MAX_LOSSES else ""
    tables = _group_results(groups)
    with figure_style():
        html = render(
            "comparison.html",
            title=f"{len(runs)} runs: {', '.join(losses[:MAX_LOSSES])}{more}",
            runs=_run_table(runs),
            seed_groups=[
                f"{group.name} ({group.seeds_text})" for group in groups if group.seeds_text
            ],
            best=BEST,
            num_left_out=sum(run.left_out for run in runs),
            differences=_differences(tables),
            results=[_result(source, lines, groups) for source, lines in tables.items()],
            curves=comparison_curves(groups),
            settings=_settings_table(groups),
        )
    file_io.write_text(out, html)
    return out


def _run_table(runs: Sequence[Run]) -> Table:
    rows = []
    for run in runs:
        config = run.config
        number, unit = length(config)
        values = (
            *(config.get(group, {}).get("name") for group in ("data", "net", "method")),
            config.get("batch_size"),
            number if unit == "epochs" else f"{number} {unit}",
            config.get("seed"),
            _format_step(run),
            speed(run.metrics) or "–",
            "–" if run.seconds is None else _format_time(run.seconds),
        )
        rows.append([Cell(run.name, note=run.loss), *map(str, values)])
    head = ["run, loss", "data", "net", "method", "batch", "epochs", "seed", "step", "examples/s"]
    return Table("results", [*head, "time"], rows, "runs")


def _format_step(run: Run) -> str:
    """Return the step of a run, and the last step of training if that is later and is known."""
    try:
        last, config = run.metrics[-1], run.config
        steps_per_epoch = round(last["step"] / last["epoch"])
        total = config["total_steps"] or round(float(config["epochs"]) * steps_per_epoch)
        return f"{run.step} of {total}" if run.step < total else str(run.step)
    except (LookupError, TypeError, ValueError, ArithmeticError):  # The length is unknown.
        return "–" if run.step is None else str(run.step)


def _format_time(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


def _group_results(groups: Sequence[Group]) -> dict[Source, dict[Line, Cells]]:
    """Group results by evaluated data, and within them by table row (line)."""
    tables: dict[Source, dict[Line, Cells]] = {}
    for index, group in enumerate(groups):
        for run in group.runs:
            for row in run.rows:
                preset, unit = row["details"].get("preset"), row.get("unit", "%")
                line = Line(row["protocol"], preset, row["metric"], unit)
                cells = tables.setdefault(_data_source(row, run), {}).setdefault(line, {})
                cells.setdefault(index, []).append(row)
    return tables


def _data_source(row: Row, run: Run) -> Source:
    """Return names and values of the facts about the data in which results must agree."""
    source = [(label, str(row.get(field, ""))) for label, field in DATA_FIELDS]
    if "content" in row:
        return tuple(source)
    # Results of earlier versions have no digest of the data. Their settings stand for it.
    data = run.config.get("data", {})
    name, keys = components.short_name(str(data.get("name"))), FILE_SETTINGS
    if name in components.names("data"):
        name = Path(str(data.get("path"))).name
    elif name not in ("python", "tar_shards") and not components.is_custom(name):
        keys = ("classes",) if data.get("classes") else ()
    with_classes = f"{name} ({Path(str(data.get('classes'))).name})"
    if row["dataset"] in (name, with_classes):  # The run was evaluated on its own data set.
        source += [(f"data.{key}", str(data.get(key, ""))) for key in keys]
    return tuple(source)


def _differences(sources: Iterable[Source]) -> list[str]:
    """List the fields in which the data sources of the tables differ, with their values."""
    values: dict[str, dict[str, None]] = {}  # distinct values in the order of the tables
    for source in sources:
        for name, value in source:
            values.setdefault(name, {})[value] = None
    return [f"{name} ({' / '.join(each)})" for name, each in values.items() if len(each) > 1]


def _result(source: Source, lines: Mapping[Line, Cells], groups: list[Group]) -> dict[str, object]:
    """Build the section of one evaluated data set: a description and a table.

    The table has a row for each metric, and a column for each group that has a result.
    """
    columns = sorted({index for cells in lines.values() for index in cells})
    shown = [groups[index] for index in columns]
    heads = [Cell(g.name, " · ".join(filter(None, [g.runs[0].loss, g.seeds_text]))) for g in shown]
    body = []
    for line, cells in lines.items():
        best = _best(line, cells, groups)
        values = (_value(cells.get(i, []), len(groups[i].runs), best=i in best) for i in columns)
        note = ":".join(filter(None, (line.protocol, line.preset)))
        body.append([Cell(metric_name(line.metric, line.unit), note), *values])
    dataset, bank, split, layer, _ = (value for _, value in source[: len(DATA_FIELDS)])
    text = f"{dataset}, fitted on {bank}, tested on {split}; {layer} features"
    settings = [f"{name} {value}" for name, value in source[len(DATA_FIELDS) - 1 :] if value]
    if settings:
        text += f" ({', '.join(settings)})"
    if len(columns) == 1:
        text += "; one column, there is nothing to compare"
    table = Table("results", ["metric", *heads], body, f"results on {dataset}")
    return {"description": text, "table": table}


def _mean(rows: Sequence[Row]) -> float | None:
    """Return the mean result over the seeds, or None if a result is not finite."""
    values = [row["value"] for row in rows]
    return fmean(values) if all(map(is_finite, values)) else None


def _best(line: Line, cells: Cells, groups: Sequence[Group]) -> set[int]:
    """Return the indices of the best accuracies to two decimals, or none if all are equal.

    Only groups of which every run has the result take part.
    """
    means = {i: _mean(rows) for i, rows in cells.items() if len(rows) == len(groups[i].runs)}
    rounded = {index: round(mean, 2) for index, mean in means.items() if mean is not None}
    if line.unit != "%" or len(set(rounded.values())) < 2:
        return set()
    best = (min if line.metric in LOWER_IS_BETTER else max)(rounded.values())
    return {index for index, value in rounded.items() if value == best}


def _value(rows: Sequence[Row], num_runs: int, *, best: bool) -> str | Cell:
    """Format a result, or the mean over seeds with the number of seeds."""
    if not rows:
        return "–"
    mean = _mean(rows)
    if len(rows) == 1:
        text = format_value(rows[0])
    elif mean is None:
        text = "not finite"
    else:
        text = f"{mean:.2f} ± {stdev(row['value'] for row in rows):.2f}"
    some = f"{len(rows)} of " if len(rows) < num_runs else ""
    note = f"{some}{num_runs} seeds" if num_runs > 1 else ""
    return Cell(f"{text} {BEST}" if best else text, note, bold=best)


def _settings_table(groups: Sequence[Group]) -> Table:
    """Build the table of settings that differ between the compared runs."""
    configs = [dict(flatten(group.runs[0].config)) for group in groups]
    rows: list[list[str | Cell]] = []
    for key in sorted(set().union(*configs) - {"seed"}):
        encoded = {json.dumps(config[key]) if key in config else None for config in configs}
        if len(encoded) > 1:
            note = "does not change the result" if key in CHANGEABLE_KEYS else ""
            values = (_format_setting(c[key]) if key in c else "–" for c in configs)
            rows.append([Cell(key, note), *values])
    seeds = [
        ", ".join(format_setting(run.config.get("seed")) for run in group.runs) for group in groups
    ]
    if len(set(seeds)) > 1:
        rows.append(["seed", *seeds])
    head = ["key", *(group.name for group in groups)]
    return Table("config differences", head, rows, "configuration")


def _format_setting(value: object) -> str:
    """Format a setting in full precision, so that small differences show."""
    return str(value) if isinstance(value, float) else format_setting(value) or "empty"
