"""TensorBoard: writes events to WORKDIR/events.out.*."""

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import (  # Protobuf generates this module without types.
    Event,  # pyright: ignore[reportAttributeAccessIssue]
    SessionLog,  # pyright: ignore[reportAttributeAccessIssue]
)
from tensorboardX.proto.summary_pb2 import (
    Summary,  # pyright: ignore[reportAttributeAccessIssue]
)

from jaxssl.buckets import is_bucket
from jaxssl.errors import explain_write_errors


class TensorBoard:
    """Logger that writes events. A run that starts or resumes hides earlier events of its steps.

    In a bucket, each `sync` writes the events since the one before as a file of its own.
    """

    def __init__(self, workdir: Path, step: int) -> None:
        # EventsWriter writes in this thread. SummaryWriter has a background thread, which would end
        # silently on a full disk.
        self._path = workdir / "events"
        self._folder = tempfile.TemporaryDirectory() if is_bucket(workdir) else None
        with explain_write_errors(self._path):
            self._open()
            # This event tells TensorBoard to drop the events of later steps.
            start = SessionLog(status=SessionLog.START)
            event = Event(wall_time=time.time(), step=step + 1, session_log=start)
            self._events.write_event(event)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write one TensorBoard event for each metric of a step."""
        with explain_write_errors(self._path):
            for name, value in metrics.items():
                # tensorboardX's own function would warn of NaN, as the run does.
                summary = Summary(value=[Summary.Value(tag=name, simple_value=value)])
                event = Event(wall_time=time.time(), step=step, summary=summary)
                self._events.write_event(event)
            self._events.flush()

    def sync(self) -> None:
        """Send the events to a bucket. On disk, each step is flushed."""
        if self._folder:
            self._close()
            with explain_write_errors(self._path):
                self._open()

    def close(self) -> None:
        """Close the event file."""
        self._close()
        if self._folder:
            self._folder.cleanup()

    def _open(self) -> None:
        """Open a new event file, with a name that sorts after the names of earlier ones."""
        # TensorBoard reads event files in the order of their names, which contain the time. The
        # system's clock may have been set back since the latest file.
        name = f"{self._path.name}.out.tfevents."
        earlier = [file.name for file in self._path.parent.glob(f"{name}*")]
        latest = max((file.removeprefix(name)[:10] for file in earlier), default="")
        is_later = latest < str(int(time.time()))
        prefix = self._path.name if is_later else f"{name}{latest}~{len(earlier):04d}"
        folder = self._folder.name if self._folder else self._path.parent
        self._events = EventsWriter(str(Path(folder, prefix)), f".{time.time_ns()}")

    def _close(self) -> None:
        """Close the event file, and move it to the bucket if the workdir is in one."""
        with explain_write_errors(self._path):
            self._events.close()
            if self._folder:
                for file in Path(self._folder.name).iterdir():
                    self._path.with_name(file.name).write_bytes(file.read_bytes())
                    file.unlink()


def logger(workdir: Path, step: int, config: Mapping[str, object]) -> TensorBoard:
    """Open a new TensorBoard event file for a run."""
    return TensorBoard(workdir, step)
