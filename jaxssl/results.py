"""Figures with what they are of: results.json and the printed table."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from jaxssl import record
from jaxssl.evals import KINDS

# What tells one figure from another: a later one of the same takes its place.
KEY = ("source", "step", "features", "layer", "dataset", "bank", "split", "seed", "protocol")


def read(folder: Path) -> list[dict[str, Any]]:
    """The rows of results.json; [] if there is none."""
    path = folder / "results.json"
    return json.loads(path.read_text())["results"] if path.exists() else []


def add(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Put figures into results.json, in place of earlier ones of the same.

    Raises:
        OSError: if it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    new = set(map(key, rows))
    kept = [row for row in read(folder) if key(row) not in new]
    record.write_json(folder / "results.json", {"results": [*kept, *rows]})


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """What pretraining added: a row a metric, a column for each kind of features."""
    last = rows[-1]
    which = f", {last['checkpoint']} checkpoint, step {last['step']}" if last["step"] else ""
    loss = f", {last['loss']}" if last["loss"] else ""
    title = f"{last['source']}{loss}{which}"
    where = f"{last['dataset']}: fitted on {last['bank']}, tested on {last['split']}"
    caption = f"{where}; {last['layer']} features; seed {last['seed']}; percent where no unit is "
    out = Table(title=title, caption=caption + "named; ± one standard deviation over draws")
    for heading in ("metric", "protocol"):
        out.add_column(heading)
    kinds = [kind for kind in KINDS if any(row["features"] == kind for row in rows)]
    for kind in kinds:
        out.add_column(kind, justify="right")
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        unit = {"%": "", "": ""}.get(row["unit"], f" ({row['unit']})")
        name = (row["metric"] + unit, f"{row['protocol']}:{row['details']['preset']}")
        lines.setdefault(name, {})[row["features"]] = cell(row)
    for heading, cells in lines.items():
        out.add_row(*heading, *(cells.get(kind, "") for kind in kinds))
    return out


def cell(row: Mapping[str, Any]) -> str:
    """A figure with its spread."""
    if not math.isfinite(row["value"]):
        return "not finite"
    if "ci95" in row["details"]:
        return f"{row['value']:.2f} ± {row['details']['ci95']:.2f} (95 %)"
    return f"{row['value']:.2f}" + (f" ± {row['std']:.2f}" if row["std"] is not None else "")


def key(row: Mapping[str, Any]) -> tuple:
    """What tells a figure from others."""
    return (*(row.get(name) for name in KEY), row["metric"], row["details"]["preset"])
