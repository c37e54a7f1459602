"""Open the workdir of a run: its lock, config and log, with clear write errors."""

import fnmatch
import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from jaxssl import distributed
from jaxssl.errors import UserError, WriteError, explain_write_errors
from jaxssl.training import atomic_files, logs
from jaxssl.training.config import conflicts, read_config
from jaxssl.training.run_lock import lock

# A shared file system may take some seconds to show a new file on another host.
PATIENCE = 10.0


def check_shared(workdir: Path) -> None:
    """Raise UserError in all processes of a run unless all of them see the same workdir.

    The first process writes a file of a random name, for which the others look.
    """
    if distributed.process_count() == 1:
        return
    name = distributed.gather_process_texts(uuid.uuid4().hex.encode())[0].decode()
    path = workdir / f"shared.{name}"
    is_new = not workdir.exists()

    def write() -> None:
        with explain_write_errors(workdir):
            workdir.mkdir(parents=True, exist_ok=True)
            path.touch()

    distributed.on_first_process(write)
    end = time.monotonic() + PATIENCE
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.1)
    seen = distributed.gather_processes(np.asarray(path.exists()))
    if distributed.is_first_process():
        path.unlink(missing_ok=True)
        if is_new:
            with suppress(OSError):  # Another process has written to it meanwhile.
                workdir.rmdir()
    if not seen.all():
        raise UserError(
            f"process {int(np.argmin(seen))} does not see the workdir of process 0 (here "
            f"{workdir}); pass all processes the same --workdir, on a shared file system"
        )


def check_same_config(config: ConfigDict, workdir: Path) -> None:
    """Raise UserError if the workdir holds a run of another config.

    Keys of `jaxssl.training.config.CHANGEABLE_KEYS` may differ.
    """
    if not (workdir / "config.json").exists():
        return
    changed = conflicts(config, read_config(workdir).to_dict())
    if changed:
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        raise UserError(
            f"{workdir} holds a run of another config ({'; '.join(changed[:3])}{more}); "
            "choose another --workdir, or the same config to resume"
        )


def check_name(workdir: Path) -> None:
    """Raise UserError if Orbax could not write checkpoints to a workdir of this name.

    Orbax finds the files of a checkpoint with glob patterns, which begin with the name.
    """
    path = workdir.absolute()
    for part in path.parts:
        if set(part) & set("*?") or not fnmatch.fnmatchcase(part, part):
            raise UserError(
                f"the path {str(path)!r} of the workdir has *, ? or [...] in its part {part!r}, "
                "which checkpoints cannot have; choose another --workdir"
            )
    try:
        os.fsencode(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"the path {str(path)!r} of the workdir is not valid UTF-8; choose another --workdir"
        ) from error


def check_links(workdir: Path) -> None:
    """Raise UserError if an entry of a workdir is a link out of it, which a run could write to."""
    inside = workdir.resolve()
    for path in sorted(workdir.iterdir()):
        if path.is_symlink() and not path.resolve().is_relative_to(inside):
            raise UserError(
                f"{path} is a symbolic link out of the workdir; delete it, or put the whole "
                "workdir where it leads"
            )


@contextmanager
def open_workdir(config: ConfigDict, workdir: Path) -> Iterator[Callable[[], None]]:
    """Lock a run's workdir, write the config to it, and log to its train.log.

    The value of the with block is a function that raises UserError if the lock is lost, which the
    run calls before it writes.

    Raises:
        UserError: if another run holds the lock or has another config, or if the workdir cannot be
            written, now or later inside the context.
    """
    try:
        with ExitStack() as stack:

            def enter() -> Callable[[], None]:
                with explain_write_errors(workdir):
                    workdir.mkdir(parents=True, exist_ok=True)
                    check_links(workdir)
                    check_lock = stack.enter_context(lock(workdir))
                # The check is repeated, because only now can no other run write the config.
                check_same_config(config, workdir)
                atomic_files.write_json(workdir / "config.json", config.to_dict())
                stack.enter_context(logs.log_to_file(workdir / "train.log"))
                return check_lock

            yield distributed.on_first_process(enter) or (lambda: None)
    except WriteError as error:
        raise UserError(
            f"{error}; the same command resumes at the last checkpoint in {workdir}"
        ) from error
