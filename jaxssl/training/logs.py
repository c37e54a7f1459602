"""The package's log, on the screen and in a file, and the console that tables are printed on."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.logging import RichHandler

log = logging.getLogger("jaxssl")
SCREEN = "screen"  # name of the handler that writes to the screen
console = Console() if sys.stdout.isatty() else Console(width=160)  # a pipe or file has no width


def log_to_screen(process: int = 0) -> None:
    """Send the package's log to the screen from now on.

    Args:
        process: index of this process. Only the first process shows all messages, the others show
            warnings.
    """
    if any(handler.get_name() == SCREEN for handler in log.handlers):
        return
    if process:
        console.quiet = True
        handler: logging.Handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(f"process {process}: %(message)s"))
        handler.setLevel(logging.WARNING)
    else:
        handler = RichHandler(console=console, show_time=False, show_level=False, show_path=False)
    handler.set_name(SCREEN)
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False


class _LogFile(logging.FileHandler):
    """A log file whose write errors are raised: a full disk stops the run."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        raise


@contextmanager
def log_to_file(path: Path) -> Iterator[None]:
    """Append the package's log to a file, in addition to the screen."""
    file = _LogFile(path)
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(file)
    try:
        yield
    finally:
        log.removeHandler(file)
        file.close()
