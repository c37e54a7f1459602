"""Restart the command of a run when the run was killed or has lost another process."""

import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from jaxssl.training.output.console import show_error

# Exit statuses: success, a user's error, and the signals after which a run has saved a checkpoint.
FINAL = (0, 2, 128 + signal.SIGINT, 128 + signal.SIGTERM)
# Seconds before the next start. By then the other processes have noticed that this one is gone
# (`jaxssl.training.processes`) and have ended too.
PAUSE = 30.0


def run(command: Sequence[str], retries: int) -> int:
    """Run a command until success or a final error, and return the last exit status.

    SIGTERM is passed on to the command, and so is SIGINT without a terminal, which would send it to
    the command too. After either, the command is not started again.

    Args:
        command: the words of a command that resumes when it is called again.
        retries: largest number of calls after the first, >= 0.

    Returns:
        The exit status, or 128 + N if signal N ended the command or arrived between two calls.
    """
    stopped: list[int] = []
    child: subprocess.Popen | None = None
    status = 0

    def stop(number: int, frame: object) -> None:
        stopped.append(number)
        if child and _is_passed_on(number):
            child.send_signal(number)

    previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for attempt in range(retries + 1):
            if attempt:
                show_error(f"the run ended with status {status}; retry {attempt} of {retries}")
                _pause(stopped)
            if stopped:
                return 128 + stopped[0]
            child = subprocess.Popen(command)
            for number in filter(_is_passed_on, stopped):  # They came before the command began.
                child.send_signal(number)
            status = child.wait()
            status = 128 - status if status < 0 else status
            if status in FINAL or stopped:
                break
        return status
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler or signal.SIG_DFL)


def _is_passed_on(number: int) -> bool:
    # A second SIGINT, after the terminal's, would end the command at once.
    return number == signal.SIGTERM or not _has_terminal()


def _has_terminal() -> bool:
    return sys.stdin is not None and not sys.stdin.closed and sys.stdin.isatty()


def _pause(stopped: list[int]) -> None:
    """Wait for `PAUSE` seconds, or until a signal is received."""
    end = time.monotonic() + PAUSE
    while not stopped and time.monotonic() < end:
        time.sleep(0.2)  # A signal does not interrupt it.
