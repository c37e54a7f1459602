"""A suite: evaluate one or several encoders on many data sets, and print a table."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict
from rich.table import Column, Table

from jaxssl import components
from jaxssl.errors import UserError, one_line, suggest
from jaxssl.evaluation.overrides import data_config
from jaxssl.evaluation.run import evaluate
from jaxssl.evaluation.selection import select_protocols
from jaxssl.pretrained.hub import hub_address
from jaxssl.report import results
from jaxssl.training.config import find
from jaxssl.training.output import console

PER_DATASET = ("protocol", "metric")  # fields of the suite that a data set may override
NOT_DATA = ("name", *PER_DATASET)  # keys of a data set that are not overrides of `config.data`


class Row(results.Row):
    """A result of a suite, with the row and the column of the table."""

    encoder: str
    column: str


class Suite(NamedTuple):
    """The content of a suite file: data sets, protocol and metric.

    Attributes:
        protocol: "NAME" or "NAME:PRESET".
        metric: metric to show, such as "finetune_top1".
        datasets: for each column heading, the values of `config.data` that differ from the
            defaults. The keys "protocol" and "metric" override the suite's.
    """

    protocol: str
    metric: str
    datasets: dict[str, components.Settings]


def run(
    path: str | Path,
    encoders: Sequence[Path],
    defaults: ConfigDict,
    overrides: Sequence[tuple[str, str]] = (),
    **options: Any,
) -> list[Row]:
    """Evaluate every encoder on every data set of a suite and print the table.

    Args:
        path: a Python file with ``get_suite() -> dict``, the fields of `Suite`, or the name of a
            packaged suite.
        encoders: workdirs and weights files, the rows of the table.
        defaults: defaults of the config group `data`.
        overrides: overrides for all data sets, such as ("data.dir", DIR).
        **options: options of `jaxssl.evaluation.run.evaluate`.

    Returns:
        The rows that `evaluate` returns, with the additional keys "encoder" and "column".

    Raises:
        UserError: if the suite file is invalid, or as `evaluate`. Every encoder and data set is
            opened before the first evaluation starts.
    """
    suite = read(path)
    select_protocols([_field(suite, column, "protocol") for column in suite.datasets])
    options = {"trust": False, **options, "kinds": options.get("kinds") or ["pretrained"]}
    data = {}
    for column, values in suite.datasets.items():
        protocol = _field(suite, column, "protocol")
        changes = [(f"data.{k}", str(v)) for k, v in values.items() if k not in NOT_DATA]
        for encoder in encoders:
            changed, trust = [*changes, *overrides], options["trust"]
            config = data_config(encoder, defaults, values["name"], changed, trust=trust)
            evaluate(encoder, [protocol], data=config, dry_run=True, **options)
            data[column, encoder] = config
    all_rows = []
    for (column, encoder), config in data.items():
        protocol, metric = (_field(suite, column, name) for name in PER_DATASET)
        rows = evaluate(encoder, [protocol], data=config, **options)
        metrics = sorted({row["metric"] for row in rows})
        if metric not in metrics:
            raise UserError(
                f"suite file {str(path)!r}: protocol {protocol!r} has no metric "
                f"{metric!r}{suggest(metric, metrics)}"
            )
        all_rows += [Row(**row, encoder=hub_address(encoder), column=column) for row in rows]
    console.show_table(table(suite, all_rows))
    return all_rows


def _field(suite: Suite, column: str, name: str) -> str:
    """Return the field "protocol" or "metric" of a data set, by default the suite's."""
    return suite.datasets[column].get(name, getattr(suite, name))


def read(path: str | Path) -> Suite:
    """Read a suite: a Python file with get_suite(), or the name of a packaged suite.

    Raises:
        UserError: if the file does not exist or cannot be run, or its suite is not valid.
    """
    loaded = components.load_file(find(path, "suite"), "suite file")
    try:
        suite = Suite(**loaded.get_suite())
    except Exception as error:
        raise UserError(
            f"suite file {str(path)!r} failed: {type(error).__name__}: {one_line(error)}; "
            f"expected get_suite() that returns a dict of {', '.join(Suite._fields)}"
        ) from error
    values = suite.datasets.values() if isinstance(suite.datasets, Mapping) else ()
    if not values or not all(isinstance(v, Mapping) for v in values):
        raise UserError(f"suite file {str(path)!r}: datasets must be a dict of dicts, not empty")
    for column, values in suite.datasets.items():
        if not values.get("name"):
            raise UserError(f"suite file {str(path)!r}: data set {column!r} has no 'name'")
        texts = {key: _field(suite, column, key) for key in PER_DATASET}
        for key, text in {"heading": column, "name": values["name"], **texts}.items():
            if not isinstance(text, str):
                raise UserError(
                    f"suite file {str(path)!r}: the {key} of data set {column!r} must be a text, "
                    f"got {text!r}"
                )
    return suite


def table(suite: Suite, rows: Sequence[Row]) -> Table:
    """Build a suite's table: one row per encoder; columns for data sets, their mean and the wins.

    Wins count the data sets on which an encoder has the best value, rounded to two decimals. Ties
    count for every encoder. A value that is not finite never wins, and its encoder has no mean.
    """
    shown = [row for row in rows if row["metric"] == _field(suite, row["column"], "metric")]
    split = {row["column"]: row["split"] for row in shown}
    headings = []
    for name, values in suite.datasets.items():
        changed = [values[key] for key in PER_DATASET if key in values]
        headings.append("\n".join([name, f"({split[name]})", *changed]))
    columns = [Column(heading, justify="right") for heading in (*headings, "mean", "wins")]
    subtitle = f"{shown[-1]['layer']} features, seed {shown[-1]['seed']}"
    units = {row.get("unit", "%") for row in shown}
    unit = next(iter(units)) if len(units) == 1 else ""
    parts = f"{suite.protocol}, {suite.metric}", subtitle, "percent" if unit == "%" else unit
    title = "; ".join(filter(None, parts))
    out = Table("encoder", "checkpoint", "features", *columns, title=title)
    # Maps encoder, checkpoint and kind of features to the result on each data set.
    lines: dict[tuple[str, str, str], dict[str, Row]] = {}
    rounded: dict[str, list[float]] = {name: [] for name in suite.datasets}
    for row in shown:
        name = row["column"]
        step = "" if row["step"] is None else f" (step {row['step']})"
        checkpoint = "–" if row["features"] != "pretrained" else f"{row['checkpoint']}{step}"
        key = (row["encoder"], checkpoint, row["features"])
        lines.setdefault(key, {})[name] = row
        if math.isfinite(row["value"]):
            rounded[name].append(round(row["value"], 2))
    best = {
        name: min(each) if _field(suite, name, "metric") in results.LOWER_IS_BETTER else max(each)
        for name, each in rounded.items()
        if each
    }
    lower = {_field(suite, name, "metric") in results.LOWER_IS_BETTER for name in suite.datasets}
    comparable = len(units) == len(lower) == 1
    for key, cells in lines.items():
        values = [cells[name]["value"] for name in suite.datasets if name in cells]
        complete = len(values) == len(suite.datasets) and all(map(math.isfinite, values))
        mean = f"{sum(values) / len(values):.2f}" if complete and comparable else "–"
        wins = sum(round(cell["value"], 2) == best.get(name) for name, cell in cells.items())
        texts = [
            results.format_value(cells[name]) if name in cells else "–" for name in suite.datasets
        ]
        out.add_row(*key, *texts, mean, str(wins))
    return out
