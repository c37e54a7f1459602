"""Figures with what they are of: results.json and the printed table."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any

from rich.table import Table

from jaxssl.errors import UserError, one_line
from jaxssl.training import atomic_files, logs

KINDS = ("raw", "untrained", "pretrained")  # of features: pretraining is compared with the others
SPREAD = "accuracies in percent; ± one standard deviation over draws, where not said otherwise"
# What tells one figure from another: a later one of the same takes its place.
KEY = (
    *("source", "step", "features", "layer", "dataset", "data", "bank", "split", "seed"),
    "protocol",
)


def read_results(folder: Path) -> list[dict[str, Any]]:
    """The rows of results.json; [] if there is none.

    Raises:
        UserError: if it is no such file.
    """
    path = folder / "results.json"
    if not path.exists():
        return []
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["results"]
        for number, row in enumerate(rows):
            if not _is_row(row):
                raise ValueError(f"row {number} is no figure")
        return rows
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is damaged ({one_line(error)}); move it away") from error


def _is_row(row: Mapping[str, Any]) -> bool:
    """Whether a figure has what all who read it take for granted."""
    words, number = ("protocol", "metric", "features"), (int, float)
    return (
        {"dataset", "split", "seed"} <= row.keys()
        and all(isinstance(row[name], str) for name in words)
        and isinstance(row["value"], number)
        and isinstance(row.get("std"), (*number, NoneType))
        and isinstance(row["step"], int | NoneType)
        and isinstance(row["details"], dict)
        and isinstance(row["details"].get("preset"), str | NoneType)
        and isinstance(row["details"].get("ci95", 0), number)
        and isinstance(row.get("unit", ""), str)
        and all(isinstance(row.get(name), str | int | NoneType) for name in KEY)
    )


def add_results(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Put figures into results.json, in place of earlier ones of the same.

    Raises:
        OSError: if it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    new = set(map(key, rows))
    kept = [row for row in read_results(folder) if key(row) not in new]
    atomic_files.write_json(folder / "results.json", {"results": [*kept, *rows]})


def print_results(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print figures of one encoder on one data set: what they are of, a table, what it means."""
    facts = describe_source(rows[-1])
    logs.console.print(facts["encoder"], soft_wrap=True, highlight=False)
    logs.console.print(facts["data"], soft_wrap=True, highlight=False)
    logs.console.print(table(rows))
    logs.console.print(SPREAD, soft_wrap=True, highlight=False)
    for row in (row for row in rows if "verdict" in row["details"]):
        logs.console.print(f"{row['features']}: {row['details']['verdict']}", soft_wrap=True)


def describe_source(row: Mapping[str, Any]) -> dict[str, str]:
    """In words: "encoder", what was evaluated, and "data", on what."""
    encoder = [str(row.get("source")), row.get("loss")]
    if row.get("checkpoint") == "file":
        encoder.append("weights file" + (f" of step {row['step']}" if row.get("step") else ""))
    elif row.get("step") is not None:
        encoder.append(f"{row.get('checkpoint')} checkpoint (step {row['step']})")
    data = f"{row['dataset']}, fitted on {row.get('bank')}, tested on {row['split']}"
    layer = f"{row.get('layer')} features"
    return {
        "encoder": ", ".join(part for part in encoder if part),
        "data": f"{data}; {layer}; seed {row['seed']}",
    }


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """What pretraining added: a row a metric, a column for each kind of features."""
    out = Table()
    for heading in ("metric", "protocol"):
        out.add_column(heading)
    kinds = [kind for kind in KINDS if any(row["features"] == kind for row in rows)]
    for kind in kinds:
        out.add_column(kind, justify="right")
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        unit = {"%": "", "": ""}.get(row.get("unit", "%"), f" ({row.get('unit')})")
        name = (row["metric"] + unit, f"{row['protocol']}:{row['details']['preset']}")
        lines.setdefault(name, {})[row["features"]] = format_value(row)
    for heading, cells in lines.items():
        out.add_row(*heading, *(cells.get(kind, "") for kind in kinds))
    return out


def format_value(row: Mapping[str, Any]) -> str:
    """A figure with its spread."""
    if not math.isfinite(row["value"]):
        return "not finite"
    if "ci95" in row["details"]:
        return f"{row['value']:.2f} ± {row['details']['ci95']:.2f} (95 %)"
    return f"{row['value']:.2f}" + (f" ± {row['std']:.2f}" if row["std"] is not None else "")


def key(row: Mapping[str, Any]) -> tuple:
    """What tells a figure from others."""
    return (*(row.get(name) for name in KEY), row["metric"], row["details"].get("preset"))
