"""Trace a range of steps of a run with JAX's profiler: `jaxssl train --profile 100:110`."""

import re
import shutil
import sys
import tempfile
from pathlib import Path

import jax

from jaxssl import distributed
from jaxssl.buckets import is_bucket
from jaxssl.errors import UserError, write_error
from jaxssl.training.output.logs import log
from jaxssl.training.workdir import checkpoint

FOLDER = "profile"  # folder of the traces in the workdir


def parse(text: str) -> range:
    """Parse "A:B", the steps A to B - 1, counted from 0.

    Raises:
        UserError: if the text is of another form, or names no step.
    """
    match = re.fullmatch(r"([0-9]{1,12}):([0-9]{1,12})", text)
    if not match or int(match[1]) >= int(match[2]):
        raise UserError(
            f"--profile must be FIRST:END with FIRST < END, such as 100:110, got {text!r}"
        )
    return range(int(match[1]), int(match[2]))


def check(steps: range, workdir: Path, total: int) -> None:
    """Raise UserError unless a run of ``total`` steps in this workdir takes all steps to trace.

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
    """Context manager that traces a range of training steps into a folder of the workdir.

    Only the first process writes a trace.

    Args:
        steps: the steps, or None for no trace.
        workdir: workdir of the run.
    """

    def __init__(self, steps: range | None, workdir: Path) -> None:
        self._steps = steps if distributed.is_first_process() else None
        self._borders = (steps.start, steps.stop) if steps else (0, 0)
        self._folder = workdir / FOLDER
        self._tracing = False

    def __enter__(self) -> "Profiler":
        """Return this profiler."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop a trace that is still running, because the training was interrupted."""
        if self._tracing:
            self._stop()

    def steps_until_border(self, step: int) -> int:
        """Return the number of steps after ``step`` that are all traced, or all not traced."""
        later = [border - step for border in self._borders if border > step]
        return min(later, default=sys.maxsize)

    def begin(self, step: int, state: object) -> None:
        """Start the trace before the first step of the range.

        Args:
            step: number of steps that have been taken.
            state: result of these steps, which must not run on into the trace.
        """
        if self._steps and step == self._steps.start:
            jax.block_until_ready(state)
            # JAX writes to a folder on disk, which is then copied to a bucket.
            self._on_disk = Path(tempfile.mkdtemp()) if is_bucket(self._folder) else self._folder
            jax.profiler.start_trace(self._on_disk, create_perfetto_trace=True)
            self._tracing = True

    def end(self, step: int, state: object) -> None:
        """Write the trace after the last step of the range. The arguments are those of `begin`."""
        if self._tracing and step == self._borders[-1]:
            jax.block_until_ready(state)
            self._stop()
            log.info("profile    of the steps %d:%d in %s", *self._borders, self._folder)

    def _stop(self) -> None:
        self._tracing = False
        try:
            jax.profiler.stop_trace()
        except (OSError, RuntimeError) as error:
            raise write_error(self._folder, error) from error
        if is_bucket(self._folder):
            for file in self._on_disk.rglob("*"):
                if file.is_file():
                    to = self._folder / file.relative_to(self._on_disk)
                    to.write_bytes(file.read_bytes())
            shutil.rmtree(self._on_disk)
