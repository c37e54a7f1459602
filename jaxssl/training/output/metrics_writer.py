"""Write a run's metrics to metrics.jsonl and other logs, and read metrics.jsonl back."""

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from jaxssl.buckets import is_bucket
from jaxssl.errors import explain_write_errors
from jaxssl.training.output import loggers
from jaxssl.training.output.bucket_files import Parts
from jaxssl.training.output.file_io import read_lines, write_chunks
from jaxssl.training.output.logs import log

Row = dict[str, Any]  # a line of metrics.jsonl: "step" and, by metric, a number or None


class MetricsWriter:
    """Append metrics to metrics.jsonl and to the loggers of a run.

    Args:
        workdir: existing folder that holds metrics.jsonl.
        step: step that the run resumes from. Metrics of later steps are dropped, because the
            resumed run writes them again.
        names: of the loggers, such as "tensorboard".
        config: settings of the run, for the loggers.

    Raises:
        WriteError: if the file cannot be written.
        UserError: if a logger cannot be opened.
    """

    def __init__(
        self,
        workdir: Path,
        step: int,
        names: Sequence[str] = ("tensorboard",),
        config: Mapping[str, object] | None = None,
    ) -> None:
        self._path = path = workdir / "metrics.jsonl"
        if is_bucket(path):
            # Rows are dropped from the last part first, so that an interruption leaves no gap.
            for part in sorted(path.iterdir(), reverse=True):
                _drop_later_rows(part, step)
                if part.stat().st_size:
                    break
                part.unlink()
        elif path.exists():
            _drop_later_rows(path, step)
        with ExitStack() as stack:
            stack.enter_context(explain_write_errors(path))
            self._file = Parts(path) if is_bucket(path) else path.open("a")
            stack.callback(self._file.close)
            self._loggers: list[loggers.Logger] = []
            for name in dict.fromkeys(names):
                self._loggers.append(loggers.open_logger(name, workdir, step, config or {}))
                stack.callback(self._loggers[-1].close)
            self._stack = stack.pop_all()

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of a step. Values that are not finite are logged and become null."""
        row: Row = {"step": step, **metrics}
        for name, value in metrics.items():
            if not math.isfinite(value):
                log.warning("step %d: %s is not finite (%s)", step, name, value)
                row[name] = None
        with explain_write_errors(self._path):
            self._file.write(json.dumps(row) + "\n")
            self._file.flush()
        for logger in self._loggers:
            logger.write(step, metrics)

    def sync(self) -> None:
        """Wait until metrics.jsonl is on disk, where the file survives a crash of the machine."""
        with explain_write_errors(self._path):
            if isinstance(self._file, Parts):
                self._file.sync()
            else:
                os.fsync(self._file.fileno())
        for logger in self._loggers:
            logger.sync()

    def close(self) -> None:
        """Close metrics.jsonl and all loggers, even if one of them fails."""
        self._stack.close()


def _drop_later_rows(path: Path, step: int) -> None:
    """Drop the rows of a metrics.jsonl file, or of one of its parts, that are of later steps."""
    earlier = (row for row in parse_rows(read_lines(path), path) if row["step"] <= step)
    write_chunks(path, (f"{json.dumps(row)}\n".encode() for row in earlier))


def read_metrics(path: Path) -> list[Row]:
    """Read the rows of a metrics.jsonl file, or [] if the file does not exist.

    Damaged lines, such as a last line that was cut off, are skipped with a warning.
    """
    return list(parse_rows(read_lines(path), path)) if path.exists() else []


def parse_rows(lines: Iterable[bytes], path: Path) -> Iterator[Row]:
    """Yield the rows of lines of a metrics.jsonl file, without damaged lines.

    Args:
        lines: some lines of the file.
        path: the file, for the warning.
    """
    damaged = 0
    for line in lines:
        try:
            row = json.loads(line)
            if not isinstance(row["step"], int | float):
                raise TypeError("the step of a metrics row must be a number")
        except (ValueError, KeyError, TypeError, RecursionError):
            damaged += 1
            continue
        yield row
    if damaged:
        number = "a line is" if damaged == 1 else f"{damaged} lines are"
        log.warning("%s: %s damaged or cut off, and skipped", path, number)
