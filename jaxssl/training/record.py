"""The files of a workdir: metrics.jsonl, TensorBoard events, train.log, JSON documents."""

import functools
import json
import logging
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.logging import RichHandler
from tensorboardX import summary
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog

log = logging.getLogger("jaxssl")
SCREEN = "screen"
console = Console() if sys.stdout.isatty() else Console(width=160)  # a file has no width


class Recorder:
    """Appends lines to metrics.jsonl and scalars to TensorBoard.

    Lines of steps after ``step`` are dropped first: a resumed run writes them again.
    """

    def __init__(self, workdir: Path, step: int) -> None:
        path = workdir / "metrics.jsonl"
        write_text(
            path, "".join(f"{json.dumps(row)}\n" for row in read(path) if row["step"] <= step)
        )
        self._file = path.open("a")
        # tensorboardX' SummaryWriter writes in a thread, which a full disk would end unnoticed.
        self._events = EventsWriter(str(workdir / "events"), f".{time.time_ns()}")
        if step:  # TensorBoard drops what was written of later steps
            start = SessionLog(status=SessionLog.START)
            self._events.write_event(Event(wall_time=time.time(), step=step + 1, session_log=start))

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """One line; a value that is not finite is written as null and logged."""
        for name in (n for n, v in metrics.items() if not math.isfinite(v)):
            log.warning("step %d: %s is not finite (%s)", step, name, metrics[name])
        finite = {n: v if math.isfinite(v) else None for n, v in metrics.items()}
        self._file.write(json.dumps({"step": step, **finite}) + "\n")
        self._file.flush()
        for name, value in metrics.items():
            shown = summary.scalar(name, value)
            self._events.write_event(Event(wall_time=time.time(), step=step, summary=shown))
        self._events.flush()

    def sync(self) -> None:
        """Return when what was written would outlive a crash of the machine."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Finish the files."""
        try:
            self._file.close()
        finally:
            self._events.close()


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl, without a last one that was cut off; [] if there is no file."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line)
            row["step"] + 0
            rows.append(row)
        except (ValueError, KeyError, TypeError, RecursionError):
            log.warning("%s: a line is damaged, or was cut off, and is left out", path)
    return rows


def write_json(path: Path, document: Any) -> None:
    """Replace ``path`` in one move, so that nobody reads half of it."""
    write_text(path, json.dumps(document, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Replace ``path`` in one move."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Replace ``path`` in one move."""
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # or a machine that crashes might leave the name alone
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


@functools.cache
def commit() -> str:
    """Of the checkout that this code lies in, with "-dirty" if it was changed; "" without one.

    JAXSSL_COMMIT in the environment says it for a copy of the files without their history.
    """
    if os.environ.get("JAXSSL_COMMIT"):
        return os.environ["JAXSSL_COMMIT"]
    checkout = Path(__file__).parents[2]
    if not (checkout / ".git").exists():
        return ""
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except OSError:  # no git
        return ""


def show_log(process: int = 0) -> None:
    """Send the package's log to the screen, from here on.

    Args:
        process: number of this process; of those but the first, only warnings are shown.
    """
    if any(handler.get_name() == SCREEN for handler in log.handlers):
        return
    if process:
        console.quiet = True
        handler: logging.Handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(f"process {process}: %(message)s"))
        handler.setLevel(logging.WARNING)
    else:
        plain = {"show_time": False, "show_level": False, "show_path": False}
        handler = RichHandler(console=console, **plain)
    handler.set_name(SCREEN)
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False


class _LogFile(logging.FileHandler):
    """A full disk stops the run, as any other file does."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        raise


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Send the package's log to a file too."""
    file = _LogFile(path)
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(file)
    try:
        yield
    finally:
        log.removeHandler(file)
        file.close()
