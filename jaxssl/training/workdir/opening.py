"""Open the workdir of a run: take the lock, write the config, and start the log."""

import fnmatch
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from jaxssl import distributed
from jaxssl.errors import TransientError, UserError, WriteError, explain_write_errors
from jaxssl.training.config import (
    conflicts,
    custom,
    join_differences,
    load,
    read_config,
    validate,
    values,
)
from jaxssl.training.output import file_io, logs
from jaxssl.training.workdir import checkpoint, goodput
from jaxssl.training.workdir.run_lock import lock

# NFS may take a minute to show a new file on a host that has looked for it before.
PATIENCE = 75.0
# Files of a workdir that only the run that holds the lock writes.
LOCKED = ("config.json", "goodput.json", "metrics.jsonl", "run.json", "train.log")


def check_shared(workdir: Path) -> None:
    """Raise UserError in all processes of a run unless all of them see the same workdir.

    The first process writes a file of a random name, for which the others look.
    """
    if distributed.process_count() == 1:
        return
    name = distributed.gather_process_texts(uuid.uuid4().hex)[0]
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
            with suppress(OSError):  # raised if another process has written to the folder
                workdir.rmdir()
    if not seen.all():
        raise UserError(
            f"process {int(np.argmin(seen))} does not see the workdir of process 0 (here "
            f"{workdir}); pass all processes the same --workdir, on a shared file system"
        )


def resume_config(
    workdir: Path,
    extend_to: float | None = None,
    overrides: Sequence[tuple[str, object]] = (),
    *,
    trust: bool = False,
) -> ConfigDict:
    """Return the config that continues a run, or that extends it to more epochs.

    An extended run has the schedules of a run of the new length from its start. They hold from the
    last checkpoint on. The config key "extended" lists the earlier lengths, and the steps at which
    they ended.

    Args:
        workdir: folder of the run.
        extend_to: epochs of the longer run. None, or the epochs of the run, only continue it.
        overrides: pairs (key, value) for `jaxssl.configs.base.CHANGEABLE_KEYS` and paths of data.
        trust: as for `jaxssl.load_encoder`.

    Raises:
        UserError: if the run does not exist, or cannot be extended to this number of epochs.
    """
    config = take_lengths(load(workdir / "config.json", overrides, trust=trust), workdir)
    values.require("extend_to", extend_to, float | None)
    if extend_to is None or (config.epochs == extend_to and not config.total_steps):
        return config
    facts = checkpoint.read_all_facts(workdir)
    if not facts:
        raise UserError(f"{workdir} has no checkpoint to extend; resume the run first")
    step = max(facts)
    steps_per_epoch = facts[step].data["num_examples"] // config.batch_size
    epochs = config.total_steps / steps_per_epoch if config.total_steps else config.epochs
    if not extend_to > epochs:
        raise UserError(f"extend_to must be > {epochs:g}, the epochs of the run, got {extend_to:g}")
    with config.unlocked(), config.ignore_type():  # The epochs of a config file may be an int.
        entry = f"{epochs:g} epochs until step {step}"
        config.extended = (*config.get("extended", ()), entry)
        config.epochs, config.total_steps = float(extend_to), 0
    validate(config)
    return config


def check_same_config(config: ConfigDict, workdir: Path) -> None:
    """Raise UserError if the workdir holds a run of another config.

    Keys of `jaxssl.configs.base.CHANGEABLE_KEYS` and the paths of data may differ.
    """
    if not (workdir / "config.json").exists():
        return
    theirs = read_config(workdir)
    changed = conflicts(config, theirs.to_dict())
    if changed:
        epochs = theirs.get("epochs")
        is_longer = isinstance(epochs, int | float) and config.epochs > epochs
        is_extension = is_longer and len(changed) == 1 and not config.total_steps
        longer = f" --extend_to {config.epochs:g}" if is_extension else ""
        raise UserError(
            f"{workdir} holds a run of another config ({join_differences(changed)}); choose "
            "another --workdir, or go on with that run, without these settings: jaxssl train "
            f"--resume {workdir}{longer}"
        )


def take_lengths(config: ConfigDict, workdir: Path) -> ConfigDict:
    """Return the config with the earlier lengths of the run in the workdir, if it was extended."""
    if "extended" in config or not (workdir / "config.json").exists():
        return config
    lengths = custom.texts(read_config(workdir).get("extended"))
    return ConfigDict({**config, "extended": lengths}).lock() if lengths else config


def check_unfinished(workdir: Path) -> None:
    """Raise UserError for a run that has ended and lost its checkpoints.

    To train it again would replace its metrics.
    """
    times = goodput.read(workdir)
    if times and times["ended"] and not checkpoint.steps(workdir):
        raise UserError(
            f"{workdir} is a run that has ended, and its checkpoints are gone; move it away, or "
            "give another --workdir"
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
        str(path).encode()
    except UnicodeEncodeError as error:  # Python stands for other bytes by surrogates.
        raise UserError(
            f"the path {str(path)!r} of the workdir is not valid UTF-8; choose another --workdir, "
            "or set PYTHONUTF8=1 if the locale is an older one"
        ) from error


def check_links(workdir: Path) -> None:
    """Raise UserError if a workdir contains a link to outside, through which a run could write."""
    inside = workdir.resolve()
    for path in sorted(workdir.iterdir()):
        if path.is_symlink() and not path.resolve().is_relative_to(inside):
            raise UserError(
                f"{path} is a symbolic link out of the workdir; delete it, or put the whole "
                "workdir where it leads"
            )


def check_metrics(workdir: Path) -> None:
    """Raise UserError for metrics of another program, of which the run would drop rows."""
    if (workdir / "metrics.jsonl").exists() and not (workdir / "config.json").exists():
        raise UserError(
            f"{workdir} has a metrics.jsonl, but no config.json of a run; choose another --workdir"
        )


@contextmanager
def open_workdir(config: ConfigDict, workdir: Path) -> Iterator[Callable[[], None]]:
    """Lock a run's workdir, write the config to the folder, and log to train.log in it.

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
                # Check the config again, now that no other run can write one.
                check_same_config(config, workdir)
                check_metrics(workdir)
                file_io.write_json(workdir / "config.json", config.to_dict())
                for name in LOCKED:
                    file_io.remove_partials(workdir / name)
                for name in ("metrics.jsonl", "train.log"):
                    file_io.convert_copied_log(workdir / name)
                stack.enter_context(logs.log_to_file(workdir / "train.log"))
                return check_lock

            yield distributed.on_first_process(enter) or (lambda: None)
    except WriteError as error:
        rest = ""
        with suppress(OSError):  # The folder may be unreadable.
            if checkpoint.steps(workdir):
                rest = f"; the same command resumes at the last checkpoint in {workdir}"
        fault = TransientError if isinstance(error, TransientError) else UserError
        raise fault(f"{error}{rest}") from error
