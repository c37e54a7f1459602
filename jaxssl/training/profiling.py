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
    """Parse "FIRST:END" as the steps FIRST to END - 1, counted from 0.

    Raises:
        UserError: if the text is of another form, or names no step.
    """
    # Python refuses to parse numbers of thousands of digits.
    match = re.fullmatch(r"([0-9]{1,12}):([0-9]{1,12})", text)
    if not match or int(match[1]) >= int(match[2]):
        raise UserError(
            f"--profile must be FIRST:END with FIRST < END, such as 100:110, got {text!r}"
        )
    return range(int(match[1]), int(match[2]))


def check(steps: range, workdir: Path, total: int) -> None:
    """Raise UserError if the run does not take all of these steps.

    It ends at step ``total``, and a resumed run begins at its last checkpoint.
    """
    flag = f"--profile {steps.start}:{steps.stop}"
    if steps.stop > total:
        raise UserError(f"{flag}: the run ends at step {total}")
    last = max(checkpoint.steps(workdir), default=0)
    if steps.start < last:
        raise UserError(
            f"{flag}: the run in {workdir} resumes at step {last}; name steps from {last} on, or "
            "another --workdir"
        )


class Profiler:
    """Traces a range of training steps into a folder of the workdir, on the first process.

    Args:
        steps: the steps, or None for no trace.
        workdir: workdir of the run.
    """

    def __init__(self, steps: range | None, workdir: Path) -> None:
        self._steps = steps or range(0)
        self._folder = workdir / FOLDER
        self._on_disk: Path | None = None  # where JAX writes the running trace

    def steps_until_border(self, step: int) -> int:
        """Return the number of steps after ``step`` until the trace begins or ends."""
        borders = self._steps.start, self._steps.stop
        return min((border - step for border in borders if border > step), default=sys.maxsize)

    def begin(self, step: int, state: object) -> None:
        """Start the trace before the first step of the range.

        Args:
            step: number of steps that have been taken.
            state: result of these steps. The trace begins when it is computed.
        """
        if self._steps and step == self._steps.start and distributed.is_first_process():
            jax.block_until_ready(state)
            # JAX writes to a folder on disk, which is then copied to a bucket.
            on_disk = Path(tempfile.mkdtemp()) if is_bucket(self._folder) else self._folder
            jax.profiler.start_trace(on_disk, create_perfetto_trace=True)
            self._on_disk = on_disk

    def end(self, step: int, state: object) -> None:
        """Write the trace after the last step of the range. The arguments are as in `begin`."""
        if self._on_disk and step == self._steps.stop:
            jax.block_until_ready(state)
            self.close()

    def close(self) -> None:
        """Write the running trace, if any. An interrupted run ends it early."""
        if not self._on_disk:
            return
        on_disk, self._on_disk = self._on_disk, None
        try:
            jax.profiler.stop_trace()
            if is_bucket(self._folder):
                for file in filter(Path.is_file, on_disk.rglob("*")):
                    (self._folder / file.relative_to(on_disk)).write_bytes(file.read_bytes())
        except (OSError, RuntimeError) as error:
            if "No profile started" in str(error):
                line = "--profile: other code has ended the trace of JAX's profiler; leave one out"
                raise UserError(line) from error
            raise write_error(self._folder, error) from error
        finally:
            if is_bucket(self._folder):
                shutil.rmtree(on_disk)
        log.info("profile    %s", self._folder)
