"""Read the files of a workdir for a report. Damaged files raise errors that name them."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from jaxssl.errors import UserError, one_line
from jaxssl.training import metrics_writer


@contextmanager
def explain_damage(path: Path) -> Iterator[None]:
    """Turn any error while ``path`` is read or shown into a UserError that names the file."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # Damaged files raise many exception types.
        raise UserError(f"{path} is damaged ({one_line(error)}); move it away") from error


def read_config(path: Path) -> dict[str, Any]:
    """Read a run's config.json and check that its groups are dicts, or return {} without it."""
    if not path.exists():
        return {}
    with explain_damage(path):
        config = json.loads(path.read_text(encoding="utf-8").strip() or "{}")
        for group in ("data", "loss", "net", "method", "eval"):
            if not isinstance(config.get(group, {}), dict):
                raise ValueError(f"{group} must be a group, got {config[group]!r}")
    return config


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read the rows of a run's metrics.jsonl: steps with numbers, or null."""
    with explain_damage(path):
        rows = metrics_writer.read_metrics(path)
        for row in rows:
            numbers = (x for x in row.values() if x is not None)
            if not isinstance(row["step"], int) or not all(
                -math.inf <= x <= math.inf for x in numbers
            ):
                raise ValueError(
                    "a line of metrics.jsonl is not a step with numbers: "
                    f"{one_line(ValueError(row), 80)}"
                )
    return rows


def read_gallery(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of a run's gallery.npz, or {} without the file."""
    if not path.exists():
        return {}
    with explain_damage(path), np.load(path, allow_pickle=False) as file:
        return dict(file)


def metric_series(
    metrics: Iterable[Mapping[str, Any]], key: str, by: str = "step"
) -> tuple[list[float], list[float]]:
    """Return the values of ``by`` and of a metric from rows that have both, with NaN for null."""
    rows = [(row[by], row[key]) for row in metrics if key in row and is_finite(row.get(by))]
    return [x for x, _ in rows], [math.nan if y is None else float(y) for _, y in rows]


def is_finite(value: float | None) -> TypeGuard[float]:
    """Return True if a value is a finite number."""
    return value is not None and math.isfinite(value)


def format_setting(value: Any) -> str:
    """Format a config value as text for the report."""
    if isinstance(value, list):
        return ", ".join(map(format_setting, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def flatten(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys of a nested config with their values."""
    for key, value in config.items():
        if isinstance(value, dict) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
