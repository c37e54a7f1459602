"""Read, write and print results.json, a list of rows with one result each."""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, NotRequired, TypedDict

from rich.table import Column, Table

from jaxssl.errors import explain_damage, explain_write_errors
from jaxssl.training.output import console, file_io

# Kinds of features: two baselines, then the evaluated network.
KINDS = ("raw", "untrained", "pretrained")
MOST_BYTES = 2**28  # size limit of results.json, where confusion matrices are large
# For these metrics less is better.
LOWER_IS_BETTER = (
    *("alignment", "uniformity", "dead_dimensions", "most_confused_pair"),
    *(
        "corruption_drop",
        "corruption_mce",
        "corruption_mean_error",
        "normals_mean_angle",
        "normals_median_angle",
    ),
)
NOTE = "accuracies in percent; ± is one standard deviation over draws unless stated otherwise"
# These fields identify a result, together with the metric and the preset.
KEY = tuple("source step features layer dataset data bank split seed protocol".split())


class Row(TypedDict):
    """A row of results.json: one result of a protocol, with descriptions of encoder and data set.

    `jaxssl.evaluation.protocol.Result` describes the first fields.
    """

    protocol: str
    metric: str
    value: float
    std: float | None
    unit: NotRequired[str]
    details: dict[str, Any]
    source: str
    loss: str | None
    checkpoint: str | None
    step: int | None
    features: str
    layer: str
    dataset: str
    data: str
    content: NotRequired[str]  # Earlier versions did not record it.
    bank: str
    bank_size: NotRequired[int]  # Earlier versions did not record the numbers of examples.
    split: str
    split_size: NotRequired[int]
    weights: NotRequired[str]  # `jaxssl.pretrained.encoder.weights_digest`, not in a workdir
    seed: int


class _Document(TypedDict):
    """The file results.json.

    Attributes:
        results: its rows.
        evaluated_step: step at which the protocols of a run's config were last evaluated.
    """

    results: list[Row]
    evaluated_step: NotRequired[int]


def read_results(folder: Path) -> list[Row]:
    """Read the rows of results.json, or [] without the file.

    Rows of earlier versions lack "content". They take it from a row with the same "data".

    Raises:
        UserError: if the file is damaged.
    """
    rows = _read(folder)["results"]
    known = {row.get("data"): row["content"] for row in rows if "content" in row}
    for row in rows:
        if "content" not in row and row.get("data") in known:
            row["content"] = known[row["data"]]
    return rows


def read_evaluated_step(folder: Path) -> int | None:
    """Return the step of the run's last complete evaluation, None if there was none.

    Raises:
        UserError: if results.json is damaged.
    """
    return _read(folder).get("evaluated_step")


def _read(folder: Path) -> _Document:
    path = folder / "results.json"
    if not path.exists():
        return {"results": []}
    with explain_damage(path):
        document = file_io.read_json(path, MOST_BYTES)
        for number, row in enumerate(document["results"]):
            if not is_result(row):
                raise ValueError(f"row {number} of results.json is not a valid result")
    return document


def is_result(row: Mapping[str, object]) -> bool:
    """Return True if a row has all required fields, and the types that readers rely on."""
    texts = ("protocol", "metric", "features")
    return (
        {"dataset", "split", "seed"} <= row.keys()
        and all(isinstance(row[name], str) for name in texts)
        and row["features"] in KINDS
        and _is_number(row["value"])
        and (row.get("std") is None or _is_number(row["std"]))
        and isinstance(row["step"], int | NoneType)
        and isinstance(row["details"], dict)
        and isinstance(row["details"].get("preset"), str | NoneType)
        and _is_number(row["details"].get("ci95", 0))
        and isinstance(row.get("unit", ""), str)
        and isinstance(row.get("content", ""), str)
        and isinstance(row.get("loss"), str | NoneType)
        and all(isinstance(row.get(name), str | int | NoneType) for name in KEY)
    )


def _is_number(value: object) -> bool:
    """Return True for a number that a float can hold, also for NaN and infinity."""
    return isinstance(value, float) or (isinstance(value, int) and abs(value) <= sys.float_info.max)


def own_rows(rows: Sequence[Row]) -> list[Row]:
    """Select the results of a run on its own data and with its own seed.

    These are the data and the seed of its online metrics. Without online metrics all are returned.
    """
    seeds = {row["seed"] for row in rows if row["protocol"] == "online"}
    is_own = on_own_data(rows)
    return [row for row in rows if is_own(row) and (not seeds or row["seed"] in seeds)]


def last_evaluated(rows: Sequence[Row]) -> int | None:
    """Return the step of the last evaluated checkpoint, or None without any.

    Online metrics do not count, unless there are no other results.
    """
    evaluated = [row for row in rows if row["protocol"] != "online"] or rows
    return max((step for row in evaluated if (step := row["step"]) is not None), default=None)


def on_own_data(rows: Sequence[Row]) -> Callable[[Row], bool]:
    """Return a function that tells whether a result is on the data of the online metrics.

    It compares the examples. Rows of earlier versions lack "content", and have the settings only.
    Without online metrics, all results are on the run's own data.
    """
    online = [row for row in rows if row["protocol"] == "online"]
    contents = {row["content"] for row in online if "content" in row}
    settings = {row.get("data") for row in online}

    def is_own(row: Row) -> bool:
        if contents and "content" in row:
            return row["content"] in contents
        return not online or row.get("data") in settings

    return is_own


def add_results(folder: Path, rows: Sequence[Row], evaluated_step: int | None = None) -> None:
    """Write rows into results.json, in place of earlier rows with the same key.

    Several processes may do this at once.

    Args:
        folder: folder of results.json, which is made if necessary.
        rows: the new rows.
        evaluated_step: step of the run if its evaluation ends with these rows. None keeps the value
            of the file.

    Raises:
        UserError: if the file is damaged.
        WriteError: if the file cannot be written. It is unchanged then.
    """
    with explain_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    path, new_keys = folder / "results.json", set(map(_key, rows))
    with file_io.locked(path):
        document = _read(folder)
        kept = [row for row in document["results"] if _key(row) not in new_keys]
        document["results"] = [*kept, *rows]
        if evaluated_step is not None:
            document["evaluated_step"] = evaluated_step
        file_io.write_json(path, document)


def print_results(rows: Sequence[Row]) -> None:
    """Print the results of one encoder on one data set, at least one, as a table."""
    source = describe_source(rows[-1])
    console.show(source["encoder"])
    console.show(source["data"])
    console.show_table(_table(rows))
    console.show(NOTE)
    for row in rows:
        if "verdict" in row["details"]:
            console.show(f"{row['features']}: {row['details']['verdict']}")


def describe_source(row: Row) -> dict[str, str]:
    """Describe the evaluated "encoder" of a result and the "data" it was evaluated on."""
    encoder, step = [str(row.get("source")), row.get("loss")], row.get("step")
    if row.get("checkpoint") == "file":
        encoder.append(f"weights file of step {step}" if step else "weights file")
    elif step is not None:
        encoder.append(f"{row.get('checkpoint')} checkpoint (step {step})")
    name = row["dataset"]
    if name == "python":  # All data sets of Python objects have this name.
        name += f" (data content {row.get('content') or row.get('data')})"
    return {
        "encoder": ", ".join(filter(None, encoder)),
        "data": f"{name}, fitted on {_split(row, 'bank')}, tested on {_split(row, 'split')}; "
        f"{row.get('layer')} features; seed {row['seed']}",
    }


def _split(row: Row, field: str) -> str:
    """Return the bank or the test split of a result, with its number of examples if recorded."""
    size = row.get(f"{field}_size")
    return str(row.get(field)) + (f" ({size} examples)" if size else "")


def format_value(row: Row) -> str:
    """Format the value of a result, with its 95 % interval or standard deviation if it has one."""
    value, std = row["value"], row.get("std")
    if not math.isfinite(value):
        return "not finite"
    if "ci95" in row["details"]:
        return f"{value:.2f} ± {row['details']['ci95']:.2f} (95 %)"
    return f"{value:.2f}" if std is None else f"{value:.2f} ± {std:.2f}"


def metric_name(metric: str, unit: str = "%") -> str:
    """Return the name of a result's metric, with the unit unless that is percent or empty."""
    return metric if unit in ("", "%") else f"{metric} ({unit})"


def _table(rows: Sequence[Row]) -> Table:
    """Build a table of one encoder's results: a row per metric, a column per kind of features."""
    kinds = [kind for kind in KINDS if any(row["features"] == kind for row in rows)]
    table = Table("metric", "protocol", *(Column(kind, justify="right") for kind in kinds))
    values: dict[tuple[str, str], dict[str, str]] = {}  # by metric and protocol, then by features
    for row in rows:
        name = metric_name(row["metric"], row.get("unit", "%"))
        protocol = f"{row['protocol']}:{row['details'].get('preset', 'default')}"
        values.setdefault((name, protocol), {})[row["features"]] = format_value(row)
    for heading, by_kind in values.items():
        table.add_row(*heading, *(by_kind.get(kind, "") for kind in kinds))
    return table


def _key(row: Row) -> tuple:
    """Return the key of a result. A later result with the same key replaces it."""
    return (*(row.get(name) for name in KEY), row["metric"], row["details"].get("preset"))
