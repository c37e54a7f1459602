"""The package's log, on the screen and in a file."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jaxssl.buckets import is_bucket
from jaxssl.errors import escape, explain_write_errors
from jaxssl.training.output.bucket_files import Parts
from jaxssl.training.output.console import screen, show, stream_errors

log = logging.getLogger("jaxssl")
SCREEN = "screen"  # name of the handler that writes to the screen


class _Formatter(logging.Formatter):
    """Formats a log record as one printable line."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        record.message = escape(record.message)
        return super().formatMessage(record)


class _Screen(logging.Handler):
    """Shows records above the progress bar, without padding or wrapping them."""

    def emit(self, record: logging.LogRecord) -> None:
        show(self.format(record))


def log_to_screen(process: int = 0) -> None:
    """Send the package's log to the screen from now on.

    Args:
        process: index of this process. Only the first process shows all messages, the others show
            warnings.
    """
    if any(handler.get_name() == SCREEN for handler in log.handlers):
        return
    if process:
        screen.quiet = True
        handler: logging.Handler = logging.StreamHandler()
        handler.setFormatter(_Formatter(f"process {process}: %(message)s"))
        handler.setLevel(logging.WARNING)
    else:
        handler = _Screen()
        handler.setFormatter(_Formatter())
    handler.set_name(SCREEN)
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False


class _LogFile(logging.StreamHandler):
    """Log file that raises write errors, so that a full disk stops the run."""

    def __init__(self, path: Path) -> None:
        super().__init__(Parts(path) if is_bucket(path) else path.open("a", encoding="utf-8"))
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        with explain_write_errors(self._path):
            super().emit(record)
            while stream_errors:
                # The log's other handler shows its records on the stream that is lost.
                loss = "the output cannot be shown any more (%s); the run continues"
                fields = log.name, logging.WARNING, __file__, 0, loss, (stream_errors.pop(),), None
                super().emit(log.makeRecord(*fields))

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        raise


@contextmanager
def log_to_file(path: Path) -> Iterator[None]:
    """Append the package's log to a file, in addition to the screen."""
    with explain_write_errors(path):
        file = _LogFile(path)
    file.setFormatter(_Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(file)
    try:
        yield
    finally:
        log.removeHandler(file)
        with explain_write_errors(path):  # Closing retries a write that failed.
            file.stream.close()
            file.close()


@contextmanager
def quiet() -> Iterator[None]:
    """Keep log messages and other text off the screen. They still go to the log file of a run."""
    from jaxssl import distributed  # imported here, so that reports need not import JAX

    log_to_screen(distributed.process_index())
    before, screen.quiet = screen.quiet, True
    try:
        yield
    finally:
        screen.quiet = before
