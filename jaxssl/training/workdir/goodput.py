"""Goodput: the share of a run's wall time that training steps took, and the uses of the rest."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from jaxssl.components import Settings
from jaxssl.errors import JSON_ERRORS
from jaxssl.training.output import file_io

NAME = "goodput.json"
# Uses of the wall time of a run.
PARTS = ("steps", "input wait", "compilation", "checkpoints", "evaluation", "start", "restarts")
T = TypeVar("T")


class Goodput:
    """The seconds that a run has spent on each of `PARTS`. They are kept in goodput.json.

    The time between the last checkpoint and the moment at which a run resumes counts as restarts:
    the steps that are repeated, the time without processes, and the set-up.

    Args:
        workdir: folder of goodput.json.
        began: value of `time.perf_counter` at the start of the command.
        resumes: whether the run continues from a checkpoint.
    """

    def __init__(self, workdir: Path, began: float, *, resumes: bool) -> None:
        self._path, self._last = workdir / NAME, began
        self._seconds: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        earlier = read(workdir) if resumes else None
        if earlier:
            self._seconds |= {part: float(earlier["seconds"][part]) for part in PARTS}
            if not earlier["ended"]:
                # The system's clock may have been set back.
                self._seconds["restarts"] += max(0.0, time.time() - earlier["time"])
                self._last = time.perf_counter()
        self.lap("restarts" if resumes else "start")

    def lap(self, part: str) -> None:
        """Count the wall time since the last call of this method as time of ``part``."""
        now = time.perf_counter()
        self._seconds[part] += now - self._last
        self._last = now

    def call(self, part: str, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function. Count its time as ``part``, and the time since the last lap as steps."""
        self.lap("steps")
        result = function(*arguments)
        self.lap(part)
        return result

    def write(self, *, ended: bool = False) -> str:
        """Write goodput.json in process 0 and return its description. All processes must call this.

        Args:
            ended: whether the steps end now on purpose. The time until the next start is then not
                counted.
        """
        from jaxssl import distributed  # imported here, so that reports need not import JAX

        waits = distributed.gather_processes(np.array(self._seconds["input wait"], np.float32))
        slowest = int(np.argmax(waits))
        document = {"seconds": self._seconds, "time": time.time(), "ended": ended}
        if len(waits) > 1:
            document["longest input wait"] = {"process": slowest, "seconds": float(waits[slowest])}
        if distributed.is_first_process():
            file_io.write_json(self._path, document)
        return describe(document)


def read(workdir: Path) -> Settings | None:
    """Return the content of goodput.json, or None if it is missing or damaged."""
    try:
        document = file_io.read_json(workdir / NAME)
        describe(document)  # raises an error unless the seconds of all parts are numbers
        is_complete = isinstance(document["time"], float) and isinstance(document["ended"], bool)
        return document if is_complete else None
    except JSON_ERRORS:
        return None


def describe(document: Settings) -> str:
    """Describe how the wall time is shared between steps, input and so on, the largest first."""
    seconds = {part: float(document["seconds"][part]) for part in PARTS}
    total = max(sum(seconds.values()), 1e-9)
    parts = sorted(seconds, key=lambda part: -seconds[part])
    text = ", ".join(f"{part} {100 * seconds[part] / total:.1f} %" for part in parts)
    if longest := document.get("longest input wait"):
        share = 100 * longest["seconds"] / total
        text += f"; longest input wait {share:.1f} %, in process {longest['process']}"
    return f"{total:,.0f} s: {text}"
