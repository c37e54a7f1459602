"""The files of a workdir as a report reads them, and what is said of damaged ones."""

import json
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from jaxssl.errors import UserError, one_line
from jaxssl.training import metrics_writer


@contextmanager
def said_of(path: Path) -> Iterator[None]:
    """Around what reads or shows a file: what is wrong with it becomes a UserError."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # of many kinds
        raise UserError(f"{path} is damaged ({one_line(error)}); move it away") from error


def read_config(path: Path) -> dict[str, Any]:
    """The config, whose groups are dicts; {} if there is no file."""
    if not path.exists():
        return {}
    with said_of(path):
        config = json.loads(path.read_text(encoding="utf-8").strip() or "{}")
        for group in ("data", "loss", "net", "method", "eval"):
            if not isinstance(config.get(group, {}), dict):
                raise ValueError(f"{group} is no group")
    return config


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl: steps with numbers, or null."""
    with said_of(path):
        rows = metrics_writer.read_metrics(path)
        for row in rows:
            numbers = (x for x in row.values() if x is not None)
            if not isinstance(row["step"], int) or not all(
                -math.inf <= x <= math.inf for x in numbers
            ):
                raise ValueError(f"a line of {one_line(ValueError(row), 80)}")
    return rows


def read_gallery(path: Path) -> dict[str, np.ndarray]:
    """Its arrays; {} if there is no file."""
    if not path.exists():
        return {}
    with said_of(path), np.load(path, allow_pickle=False) as file:
        return dict(file)


def series(
    metrics: list[dict[str, Any]], key: str, by: str = "step"
) -> tuple[list[float], list[float]]:
    """``by`` and the values of the lines that have both; a value of null is NaN."""
    rows = [(row[by], row[key]) for row in metrics if key in row and is_finite(row.get(by))]
    return [x for x, _ in rows], [math.nan if y is None else float(y) for _, y in rows]


def is_finite(value: float | None) -> bool:
    """Whether there is a number, and it is finite."""
    return value is not None and math.isfinite(value)


def plain(value: Any) -> str:
    """A value of a config or of a figure's settings in words."""
    if isinstance(value, list):
        return ", ".join(map(plain, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def flat(config: dict[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Dotted keys and their values."""
    for key, value in config.items():
        if isinstance(value, dict) and value:
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
