"""Trace some steps of a run with JAX's profiler: `jaxssl train --profile 100:110`."""

import re
import sys
from pathlib import Path

import jax

from jaxssl import distributed
from jaxssl.errors import UserError
from jaxssl.training import checkpoint
from jaxssl.training.logs import log

FOLDER = "profile"  # in the workdir


def parse(text: str) -> range:
    """Parse "A:B", the steps A to B - 1, counted from 0.

    Raises:
        UserError: if the text is of another form, or names no step.
    """
    match = re.fullmatch(r"(\d+):(\d+)", text)
    if not match or int(match[1]) >= int(match[2]):
        raise UserError(
            f"--profile must be FIRST:END with FIRST < END, such as 100:110, got {text!r}"
        )
    return range(int(match[1]), int(match[2]))


def check(steps: range, workdir: Path, total: int) -> None:
    """Raise UserError if a run of ``total`` steps in this workdir does not take all of the steps.

    A run that resumes does not repeat the steps before its last checkpoint.
    """
    if steps.stop > total:
        raise UserError(f"--profile {steps.start}:{steps.stop}: the run ends at step {total}")
    last = max(checkpoint.steps(workdir), default=0)
    if steps.start < last:
        raise UserError(
            f"--profile {steps.start}:{steps.stop}: the run in {workdir} resumes at step {last}; "
            "take later steps, or another --workdir"
        )


class Profiler:
    """Traces the steps of a range into a folder of the workdir. Use it as a context.

    Only the first process writes a trace.

    Args:
        steps: the steps, or None for no trace.
        workdir: workdir of the run.
    """

    def __init__(self, steps: range | None, workdir: Path) -> None:
        self._steps = steps if distributed.is_first_process() else None
        self._borders = (steps.start, steps.stop) if steps else ()
        self._folder = workdir / FOLDER
        self._tracing = False

    def __enter__(self) -> "Profiler":
        """Return the profiler."""
        return self

    def __exit__(self, *_: object) -> None:
        """End a trace whose steps were interrupted."""
        if self._tracing:
            jax.profiler.stop_trace()

    def steps_until_border(self, step: int) -> int:
        """Return the number of steps after ``step`` that are all traced, or all not traced."""
        return min(
            (border - step for border in self._borders if border > step), default=sys.maxsize
        )

    def update(self, step: int, state: object) -> None:
        """Start or stop the trace, if ``step`` steps have been taken. ``state`` is their result."""
        if self._steps is None or step not in self._borders:
            return
        jax.block_until_ready(state)
        if self._tracing:
            jax.profiler.stop_trace()
            log.info("profile    of the steps %d:%d in %s", *self._borders, self._folder)
        else:
            jax.profiler.start_trace(self._folder, create_perfetto_trace=True)
        self._tracing = not self._tracing
