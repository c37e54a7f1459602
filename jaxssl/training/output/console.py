"""The terminal: all text that the package prints goes through this file.

Names and paths of the user are printed as they are. Nothing in them is markup, and control
characters are shown escaped.
"""

import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from jaxssl.errors import escape

stream_errors: list[str] = []  # why a stream was lost, for the log file of the run


class _PlainConsole(Console):
    """A console that interprets nothing in a text, not even control characters."""

    def render_str(self, text: str, **options: Any) -> Text:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().render_str(escape(text, keep="\n"), **options)


# Tables for a pipe or a file, which has no width, are 160 characters wide at most.
screen = _PlainConsole(
    width=None if sys.stdout and sys.stdout.isatty() else 160,
    markup=False,
    emoji=False,
    highlight=False,
    force_jupyter=False,  # Lines of text, as in a pipe, without the widgets of rich.
)


def show(line: str) -> None:
    """Print a line to stdout, without wrapping it at the width of the terminal."""
    screen.print(escape(line), soft_wrap=True)


def show_table(table: Table) -> None:
    """Print a table to stdout."""
    screen.print(table)


def show_error(line: str) -> None:
    """Print a line to stderr."""
    print(escape(line), file=sys.stderr, flush=True)


class _Stream(io.FileIO):
    """A file descriptor that is replaced by /dev/null when it can no longer be written to."""

    def write(self, data: Any) -> int | None:
        try:
            return super().write(data)
        except OSError as error:
            stream_errors.append(error.strerror or str(error))
            _discard(self.fileno())
            return len(data)


def outlive_terminal() -> None:
    """Let this process continue when the terminal or the reader of a pipe is gone, like nohup.

    Output that cannot be written is dropped. Characters that the encoding of a stream lacks are
    written as escapes. Streams that were replaced, as by a test, stay as they are.
    """
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is not getattr(sys, f"__{name}__"):
            continue
        if stream is None:  # closed by the shell; the next file that is opened would take its place
            _discard(descriptor)
        else:
            stream.flush()
        raw = _Stream(descriptor, "w", closefd=False)
        text = io.TextIOWrapper(
            io.BufferedWriter(raw),
            encoding=stream.encoding if stream else "utf-8",
            errors="backslashreplace",
            # With `python -u` only write_through is set, which does not empty the BufferedWriter.
            line_buffering=bool(stream and (stream.line_buffering or stream.write_through)),
            write_through=bool(stream and stream.write_through),
        )
        setattr(sys, name, text)
    if hasattr(signal, "SIGHUP") and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # Reader processes inherit this.


def _discard(descriptor: int) -> None:
    """Send all further output of a file descriptor to /dev/null."""
    null = os.open(os.devnull, os.O_WRONLY)
    if null != descriptor:
        os.dup2(null, descriptor)
        os.close(null)


@contextmanager
def repeat_lost_interrupts() -> Iterator[None]:
    """Send SIGINT again if its KeyboardInterrupt was lost in a callback of garbage collection.

    Python ignores exceptions there, and JAX registers such a callback.
    """
    usual = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if unraisable.exc_type is not KeyboardInterrupt:
            return usual(unraisable)
        # A moment later, because an exception in this hook would be ignored as well.
        again = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
        again.daemon = True
        again.start()

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = usual
