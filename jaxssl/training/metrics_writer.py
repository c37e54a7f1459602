"""Write a run's metrics to metrics.jsonl and TensorBoard, and read metrics.jsonl back."""

import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboardX import summary
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import (  # Protobuf generates this module without types.
    Event,  # pyright: ignore[reportAttributeAccessIssue]
    SessionLog,  # pyright: ignore[reportAttributeAccessIssue]
)

from jaxssl.training.atomic_files import write_text
from jaxssl.training.logs import log


class MetricsWriter:
    """Append metrics to metrics.jsonl and to TensorBoard events.

    Args:
        workdir: existing folder that holds metrics.jsonl and events/.
        step: step that the run resumes from. Metrics of later steps are dropped, because the
            resumed run writes them again.
    """

    def __init__(self, workdir: Path, step: int) -> None:
        path = workdir / "metrics.jsonl"
        rows = [row for row in read_metrics(path) if row["step"] <= step]
        write_text(path, "".join(f"{json.dumps(row)}\n" for row in rows))
        self._file = path.open("a")
        # EventsWriter writes in this thread. SummaryWriter has a background thread, which would end
        # silently on a full disk.
        self._events = EventsWriter(str(workdir / "events"), f".{time.time_ns()}")
        if step:  # This event tells TensorBoard to drop the events of later steps.
            start = SessionLog(status=SessionLog.START)
            self._events.write_event(Event(wall_time=time.time(), step=step + 1, session_log=start))

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of a step. Values that are not finite are logged and become null."""
        for name in (n for n, v in metrics.items() if not math.isfinite(v)):
            log.warning("step %d: %s is not finite (%s)", step, name, metrics[name])
        finite = {n: v if math.isfinite(v) else None for n, v in metrics.items()}
        self._file.write(json.dumps({"step": step, **finite}) + "\n")
        self._file.flush()
        for name, value in metrics.items():
            event = Event(wall_time=time.time(), step=step, summary=summary.scalar(name, value))
            self._events.write_event(event)
        self._events.flush()

    def sync(self) -> None:
        """Wait until metrics.jsonl is on disk, where it survives a crash of the machine."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close metrics.jsonl and the TensorBoard events."""
        try:
            self._file.close()
        finally:
            self._events.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read the rows of a metrics.jsonl file, or [] if the file does not exist.

    Damaged lines, such as a last line that was cut off, are skipped with a warning.
    """
    if not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line)
            if not isinstance(row["step"], int | float):
                raise TypeError("the step of a metrics row must be a number")
            rows.append(row)
        except (ValueError, KeyError, TypeError, RecursionError):
            log.warning("%s: a line is damaged or was cut off, and is skipped", path)
    return rows
