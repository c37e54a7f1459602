"""Read the files of a workdir for a report. Damaged files raise errors that name them."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from math import isfinite, isnan, nan
from pathlib import Path
from statistics import median
from typing import TypeGuard

import numpy as np

from jaxssl.components import Settings
from jaxssl.errors import explain_damage, one_line
from jaxssl.training.output import file_io, logs, metrics_writer

FEWEST_ROWS = 1000  # minimum number of rows of each kind to keep of a long metrics.jsonl
MOST_KINDS = 100  # maximum number of kinds of rows in metrics.jsonl that are distinguished
MOST_GALLERY = 2**28  # limit on the bytes of all arrays in gallery.npz


def read_config(path: Path) -> Settings:
    """Read a run's config.json and check that groups are dicts, or return {} without the file."""
    if not path.exists():
        return {}
    with explain_damage(path):
        config = file_io.read_json(path) if path.stat().st_size else {}
        for group in ("data", "loss", "net", "method", "eval"):
            if not isinstance(config.get(group, {}), dict):
                raise ValueError(f"{group} must be a group, got {config[group]!r}")
    return config


def read_metrics(path: Path) -> list[metrics_writer.Row]:
    """Read the rows of a run's metrics.jsonl, or evenly spaced rows if the file is long.

    At least `FEWEST_ROWS` evenly spaced rows with the same number of metrics are read, and the last
    row. The rare rows of an evaluation have more metrics than others.
    """
    return list(iterate_metrics(path, thin=True))


def iterate_metrics(path: Path, thin: bool = False) -> Iterator[metrics_writer.Row]:
    """Yield the rows of a run's metrics.jsonl: a step, and metrics that are numbers or null.

    Args:
        path: the file.
        thin: whether to yield only some rows of a long file, see `read_metrics`.
    """
    if not path.exists():
        return
    with explain_damage(path):
        lines = file_io.read_lines(path)
        for row in metrics_writer.parse_rows(_thin(lines, path) if thin else lines, path):
            numbers = [x for x in row.values() if x is not None]
            # `isnan` raises an error for texts, and for integers that no float can hold.
            if not isinstance(row["step"], int) or any(map(isnan, numbers)):
                shown = one_line(ValueError(row), 80)
                raise ValueError(f"a line of metrics.jsonl is not a step with numbers: {shown}")
            yield row


def _thin(lines: Iterator[bytes], path: Path) -> list[bytes]:
    """Return evenly spaced lines of each kind of row, and the last line; see `read_metrics`.

    The kind of a row is its number of metrics, and whether one of them is null. Lines are not
    parsed, because that would take most of the time.
    """
    kept: dict[tuple[int, bool], dict[int, bytes]] = defaultdict(dict)  # by number of the line
    strides: dict[tuple[int, bool], int] = defaultdict(lambda: 1)
    seen: Counter[tuple[int, bool]] = Counter()
    number, line = -1, b""
    for number, line in enumerate(lines):
        kind = min(line.count(b":"), MOST_KINDS), b"null" in line
        if seen[kind] % strides[kind] == 0:
            kept[kind][number] = line
            if len(kept[kind]) > 2 * FEWEST_ROWS:
                kept[kind] = dict(list(kept[kind].items())[::2])
                strides[kind] *= 2
        seen[kind] += 1
    chosen = {number: line}
    for of_kind in kept.values():
        chosen |= of_kind
    if len(chosen) <= number:
        logs.log.info("%s: the report has %d of %d lines", path, len(chosen), number + 1)
    return [line for _, line in sorted(chosen.items()) if line]


def read_gallery(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of a run's gallery.npz, or {} without the file."""
    if not path.exists():
        return {}
    with explain_damage(path), file_io.open_file(path, MOST_GALLERY) as raw, np.load(raw) as file:
        size = sum(entry.file_size for entry in file.zip.infolist())
        if size > MOST_GALLERY:
            raise ValueError(f"the arrays have {size} bytes, more than the limit of {MOST_GALLERY}")
        return dict(file)


def metric_series(
    metrics: Iterable[metrics_writer.Row], key: str, by: str = "step"
) -> tuple[list[float], list[float]]:
    """Return the values of ``by`` and of a metric from rows that have both.

    A metric that is null is NaN. Rows in which ``by`` is not finite are left out.
    """
    rows = [(row[by], row[key]) for row in metrics if key in row and is_finite(row.get(by))]
    return [x for x, _ in rows], [nan if y is None else float(y) for _, y in rows]


def speed(metrics: Iterable[metrics_writer.Row]) -> str:
    """Return the median of the examples per second as text, "" if they were not recorded."""
    speeds = list(filter(is_finite, metric_series(metrics, "images_per_second")[1]))
    return f"{median(speeds):,.0f}" if speeds else ""


def length(config: Mapping[str, object]) -> tuple[str, str]:
    """Return the length of training as text, and the unit of the length: "steps" or "epochs"."""
    if steps := config.get("total_steps"):
        return format_setting(steps), "steps"
    return format_setting(config.get("epochs")), "epochs"


def is_finite(value: float | None) -> TypeGuard[float]:
    """Return True if a value is a finite number."""
    return value is not None and isfinite(value)


def format_setting(value: object) -> str:
    """Format a config value as text for the report."""
    if isinstance(value, list):
        return ", ".join(map(format_setting, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def flatten(config: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield the dotted keys of a nested config with their values."""
    for key, value in config.items():
        if isinstance(value, dict) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
