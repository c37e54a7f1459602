"""Loggers of training metrics: one per file, with a function `logger`, named after the file.

``logger(workdir, step, config) -> Logger`` opens the log of a run that starts or resumes at a step.
If a logger needs an optional package, its file names the package in ``PACKAGE``.
"""

import importlib.util
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from jaxssl import components
from jaxssl.buckets import is_bucket
from jaxssl.errors import UserError, explain_damage, one_line, suggest
from jaxssl.training.output import file_io

log = logging.getLogger("jaxssl")
METHODS = ("write", "sync", "close")


class Logger(Protocol):
    """Receiver of the metrics of a run. Only the first process has loggers."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics of a step. The values may be NaN or infinite."""

    def sync(self) -> None:
        """Make sure that the metrics survive a crash, as far as the logger can."""

    def close(self) -> None:
        """Close the log. The same run may open and continue it later."""


class ServiceState:
    """Identity of a run at a tracking service, and the last step sent to the service.

    It is stored in the workdir, so that a resumed run continues the same log and sends no step
    twice. In a bucket, a run that was killed sends the steps since its last checkpoint again.

    Args:
        path: JSON file of the state, named after the service.
        new_id: identity of a run that has no such file.
    """

    def __init__(self, path: Path, new_id: str) -> None:
        self.path, self.id, self.last_step = path, new_id, 0
        if path.exists():
            with explain_damage(path, "move it away, and the run begins a new log"):
                state = file_io.read_json(path)
                self.id, self.last_step = str(state["id"]), int(state["last_step"])

    def save(self, last_step: int) -> None:
        """Store in the workdir the run's identity at the service, and the last step sent to it."""
        self.last_step = last_step
        file_io.write_json(self.path, {"id": self.id, "last_step": last_step})


class ServiceLogger:
    """Logger of a service with a client that has ``log(metrics, step=step)`` and ``finish()``.

    Training continues without a service that fails. The first failure is logged.

    Args:
        run: the client's run.
        state: identity and last step of the run.
    """

    def __init__(self, run: Any, state: ServiceState) -> None:
        self._run, self._state, self._has_failed = run, state, False
        self._save_later = is_bucket(state.path)  # Each write to a bucket is a request.
        state.save(state.last_step)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Send the metrics of a step, unless the run sent them before it was interrupted."""
        if step <= self._state.last_step:
            return
        if self._call(lambda: self._run.log(dict(metrics), step=step)):
            self._state.last_step = step
            if not self._save_later:
                self._state.save(step)

    def sync(self) -> None:
        """Store the last step in a bucket. The client sends in the background."""
        if self._save_later:
            self._state.save(self._state.last_step)

    def close(self) -> None:
        """Wait until the client has sent everything, and end the run at the service."""
        self._call(self._run.finish)

    def _call(self, action: Callable[[], object]) -> bool:
        """Call the client, and return whether that succeeded."""
        try:
            action()
        except Exception as error:  # Clients raise errors of their own types.
            if not self._has_failed:
                log.warning(
                    "the logger %r fails (%s); its service may lack steps that metrics.jsonl has",
                    self._state.path.stem,
                    one_line(error),
                )
            self._has_failed = True
            return False
        return True


def check(names: Sequence[str]) -> None:
    """Raise UserError if a logger of the config key `log` is unknown or needs a missing package."""
    for name in names:
        if components.is_custom(name):
            try:
                inspect.signature(components.factory("log", name)).bind("workdir", "step", "config")
            except TypeError as error:
                raise UserError(
                    f"the logger {name!r} must be a function (workdir, step, config): "
                    f"{one_line(error)}"
                ) from error
            continue
        if name not in (valid := components.names("log")):
            raise UserError(
                f"config key 'log' has the unknown logger {name!r}{suggest(name, valid)}"
            )
        package = getattr(components.module("log", name), "PACKAGE", None)
        if package and importlib.util.find_spec(package) is None:
            raise UserError(
                f"the logger {name!r} needs the package {package}; install it with: "
                f'pip install "jaxssl[{name}]"'
            )


def open_logger(name: str, workdir: Path, step: int, config: Mapping[str, object]) -> Logger:
    """Open a logger for a run that starts or resumes at a step.

    Raises:
        UserError: if the logger cannot be opened, or a user's logger lacks a method.
    """
    try:
        logger = components.factory("log", name)(workdir, step, config)
    except UserError:
        raise
    except Exception as error:  # Clients of services raise errors of their own types.
        raise UserError(
            f"the logger {name!r} cannot be opened ({one_line(error)}); fix this or remove the "
            "logger from the config key 'log'"
        ) from error
    missing = [method for method in METHODS if not callable(getattr(logger, method, None))]
    if missing:
        raise UserError(
            f"the logger {name!r} must return an object with write(step, metrics), sync() and "
            f"close(), got {type(logger).__name__} without {', '.join(missing)}"
        )
    return logger
