"""Read the files of a workdir for a report. Damaged files raise errors that name them."""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TypeGuard

import numpy as np

from jaxssl.components import Settings
from jaxssl.errors import UserError, one_line
from jaxssl.training.output import file_io, metrics_writer
from jaxssl.training.output.logs import log

FEWEST_ROWS = 1000  # minimum number of rows of each kind to keep of a long metrics.jsonl
MOST_KINDS = 100  # maximum number of kinds of rows in metrics.jsonl that are told apart
BATCH = 64  # lines of metrics.jsonl that are classified together
MOST_GALLERY = 2**28  # limit on the bytes of all arrays in gallery.npz


@contextmanager
def explain_damage(path: Path) -> Iterator[None]:
    """Turn any error while ``path`` is read or shown into a UserError that names the file."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # Damaged files raise many exception types.
        raise UserError(f"{path} is damaged ({one_line(error)}); move it away") from error


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
            numbers = (x for x in row.values() if x is not None)
            if not isinstance(row["step"], int) or not all(
                -math.inf <= x <= math.inf for x in numbers
            ):
                raise ValueError(
                    "a line of metrics.jsonl is not a step with numbers: "
                    f"{one_line(ValueError(row), 80)}"
                )
            yield row


def _thin(lines: Iterator[bytes], path: Path) -> list[bytes]:
    """Return evenly spaced lines of each kind of row, and the last line; see `read_metrics`.

    Lines are neither parsed nor searched one by one, which would take most of the time.
    """
    kept: dict[int, list[tuple[int, bytes]]] = {}
    strides: dict[int, int] = {}
    seen: dict[int, int] = {}
    number, batch, last = 0, [], (0, b"")
    while batch := list(itertools.islice(lines, BATCH)):
        kinds = [min(line.count(b":"), MOST_KINDS) for line in batch]
        if b"null" in b"".join(batch):
            kinds = [-k if b"null" in line else k for k, line in zip(kinds, batch, strict=True)]
        for kind in set(kinds):
            same = [i for i, other in enumerate(kinds) if other == kind]
            count, stride = seen.get(kind, 0), strides.get(kind, 1)
            entries = kept.get(kind, [])
            entries += [(number + i, batch[i]) for i in same[-count % stride :: stride]]
            while len(entries) > 2 * FEWEST_ROWS:
                entries, stride = entries[::2], 2 * stride
            kept[kind], strides[kind], seen[kind] = entries, stride, count + len(same)
        number += len(batch)
        last = number - 1, batch[-1]
    chosen = sorted({entry for entries in kept.values() for entry in entries} | {last})
    if len(chosen) < number:
        log.info("%s: the report has %d of %d lines", path, len(chosen), number)
    return [line for _, line in chosen if line]


def read_gallery(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of a run's gallery.npz, or {} without the file."""
    if not path.exists():
        return {}
    with explain_damage(path), file_io.open_file(path, MOST_GALLERY) as raw:
        with np.load(raw, allow_pickle=False) as file:
            size = sum(entry.file_size for entry in file.zip.infolist())
            if size > MOST_GALLERY:
                raise ValueError(
                    f"the arrays have {size} bytes, more than the limit of {MOST_GALLERY}"
                )
            return dict(file)


def metric_series(
    metrics: Iterable[metrics_writer.Row], key: str, by: str = "step"
) -> tuple[list[float], list[float]]:
    """Return the values of ``by`` and of a metric from rows that have both, with NaN for null."""
    rows = [(row[by], row[key]) for row in metrics if key in row and is_finite(row.get(by))]
    return [x for x, _ in rows], [math.nan if y is None else float(y) for _, y in rows]


def speed(metrics: Iterable[metrics_writer.Row]) -> str:
    """Return the median of the examples per second as text, "" if they were not recorded."""
    speeds = [x for x in metric_series(metrics, "images_per_second")[1] if is_finite(x)]
    return f"{median(speeds):,.0f}" if speeds else ""


def length(config: Mapping[str, object]) -> tuple[str, str]:
    """Return the length of training as text, and the unit of the length: "steps" or "epochs"."""
    if steps := config.get("total_steps"):
        return format_setting(steps), "steps"
    return format_setting(config.get("epochs")), "epochs"


def is_finite(value: float | None) -> TypeGuard[float]:
    """Return True if a value is a finite number."""
    return value is not None and math.isfinite(value)


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
