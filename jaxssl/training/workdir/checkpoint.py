"""Checkpoints of everything that the next step reads, written by Orbax in the background.

A checkpoint stores a digest of every array, and a digest of its metadata. A checkpoint that was
cut off or altered is therefore never restored.
"""

import hashlib
import json
import logging
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.errors import JaxRuntimeError

from jaxssl import buckets, distributed, errors
from jaxssl.errors import UserError, explain_write_errors, one_line, train_first
from jaxssl.training.output import file_io
from jaxssl.training.output.logs import log
from jaxssl.training.workdir import digests

NUM_LATEST = 2  # number of latest checkpoints to keep, in case the last one is damaged
DAMAGED = "damaged"  # folder in the workdir for damaged checkpoints
STRAGGLER_SECONDS = 0.5  # until the other arrays of a damaged checkpoint have failed to load too
NO_DAMAGE = (buckets.BucketError, errors.TransientError)  # faults outside of a checkpoint's files
# Arrays take at most this many times the size of their files. A checkpoint that claims more was
# forged, because trained parameters hardly compress.
MOST_EXPANSION = 100
SLACK = 2**28  # bytes that arrays may take beyond that, however small their files are


class Facts(NamedTuple):
    """Metadata of a checkpoint. Checkpoints of version 0.1 lack the values that may be None.

    Attributes:
        data: position of the data iterator, from `jaxssl.data.batches.Batches.get_state`.
        config: the effective config, as a dict.
        checksums: digest of each array by name, see `digests.compute`.
        score: k-NN accuracy, if it was measured at this step.
        step: number of steps done.
        run: id of the run.
        fingerprint: fingerprint of the training data.
        environment: see `run_record.environment`.
        init: report of the weights that the run started from.
    """

    data: dict
    config: dict
    checksums: dict
    score: float | int | None = None
    step: int | None = None
    run: str | None = None
    fingerprint: str | None = None
    environment: dict | None = None
    init: dict | None = None


class Restored(NamedTuple):
    """A restored checkpoint: step, training state and metadata.

    Attributes:
        step: number of steps done.
        state: the `TrainState`.
        facts: its metadata.
        damaged: later steps with checkpoints that could not be read.
    """

    step: int
    state: Any
    facts: Facts
    damaged: tuple[int, ...] = ()


class Manager:
    """Writer of a run's checkpoints, which keeps the latest ones and the one of the best k-NN.

    Orbax can keep the best checkpoint itself, but it reads the metric from a file without a digest.

    Args:
        workdir: workdir of the run.
        record: the fields of a `run_record.RunRecord`, which every checkpoint stores.
    """

    def __init__(self, workdir: Path, record: Mapping[str, object] | None = None) -> None:
        self._record = record or {}
        existing = read_all_facts(workdir, warn=True)
        self._scores = {step: facts.score for step, facts in existing.items()}
        options = ocp.CheckpointManagerOptions(
            preservation_policy=self, cleanup_tmp_directories=True
        )
        self._folder = (workdir / "checkpoints").absolute()
        with explain_write_errors(self._folder, Exception):
            self._orbax = ocp.CheckpointManager(self._folder, options=options)

    def save(
        self, step: int, state: object, data: object, config: object, knn_top1: float | None
    ) -> None:
        """Start to write a checkpoint in the background. The state may be donated afterwards.

        Args:
            step: number of steps done.
            state: the training state.
            data: position of the data iterator, serialisable as JSON.
            config: the effective config, serialisable as JSON.
            knn_top1: k-NN accuracy in percent, or None if it was not measured at this step.

        Raises:
            WriteError: if this checkpoint or the one before cannot be written.
        """
        values = {"step": step, "data": data, "config": config, "score": knn_top1}
        facts = json.dumps({**values, "checksums": digests.compute(state), **self._record})
        items = ocp.args.Composite(
            state=ocp.args.StandardSave(state),
            facts=ocp.args.JsonSave({"facts": facts, "digest": _digest(facts)}),
        )
        self._scores[step] = knn_top1
        self.wait_until_finished()
        with explain_write_errors(self._folder, Exception):
            self._orbax.save(step, args=items)

    def should_preserve(self, checkpoints: Sequence[Any], *, context: object) -> list[bool]:
        """Tell Orbax which checkpoints to keep, in order from the oldest to the latest."""
        existing = [checkpoint.step for checkpoint in checkpoints]
        best = _best({step: self._scores.get(step) for step in existing})
        return [step in {*existing[-NUM_LATEST:], best} for step in existing]

    def wait_until_finished(self) -> None:
        """Wait until all checkpoints that were started are written."""
        with explain_write_errors(self._folder, Exception):
            buckets.call_while_up(self._folder, self._orbax.wait_until_finished)

    def close(self) -> None:
        """Wait until all checkpoints are written, and release the manager."""
        with explain_write_errors(self._folder, Exception):
            buckets.call_while_up(self._folder, self._orbax.close)


def steps(workdir: Path) -> list[int]:
    """Return the steps of the complete checkpoints in a workdir, sorted.

    Symbolic links are ignored, because they lead to checkpoints of other runs or other steps.
    """
    folder = workdir / "checkpoints"
    # Orbax's manager, which would make all processes of a run wait for each other, is not used: a
    # process may get here before another has made the folder.
    if not folder.is_dir():
        return []
    entries = ocp.path.step.standard_name_format().find_all(folder)
    return sorted(entry.step for entry in entries if not (folder / str(entry.step)).is_symlink())


def best_step(workdir: Path) -> int:
    """Return the step with the best logged k-NN accuracy, the latest of equals.

    Raises:
        UserError: if no checkpoint has an accuracy that can be read.
    """
    existing = read_all_facts(workdir, warn=True)
    best = _best({step: facts.score for step, facts in existing.items()})
    if best is None:
        raise UserError(f"{workdir} holds no checkpoint with a k-NN accuracy; give a step")
    return best


def _best(scores: Mapping[int, float | None]) -> int | None:
    """Return the step with the largest score, the latest of equals, or None without any score."""
    ranked = [(score, step) for step, score in scores.items() if score is not None]
    return max(ranked)[1] if ranked else None


def restore(workdir: Path, template: object) -> Restored:
    """Restore the latest readable checkpoint, which other devices may have written.

    A warning names later checkpoints that cannot be read.

    Args:
        workdir: workdir of the run.
        template: a state of the same structure. Its arrays have the shardings to restore to.

    Raises:
        UserError: if no checkpoint can be restored, or it is of another network.
    """
    target = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), template
    )

    def read(checkpoints: ocp.CheckpointManager, step: int) -> Any:
        # The restore is not strict, because per-example buffers are padded with zeros to a multiple
        # of the device count. Zeros at the end do not change a digest, other changes do.
        args = ocp.args.Composite(state=ocp.args.StandardRestore(target, strict=False))
        return checkpoints.restore(step, args=args)["state"]

    return _read(workdir, None, read)


def restore_arrays(workdir: Path, step: int | None = None) -> Restored:
    """Read a checkpoint as nested dicts of NumPy arrays, without a template.

    Args:
        workdir: workdir of the run.
        step: step of the checkpoint, by default as for `restore`.

    Raises:
        UserError: if the checkpoint does not exist or cannot be read.
    """
    return _read(workdir, step, lambda _, step: _read_numpy(_folder(workdir, step) / "state"))


def set_aside(workdir: Path, damaged: Sequence[int] = ()) -> None:
    """Move damaged checkpoints to another folder, because the run will write their steps again.

    Args:
        workdir: workdir of the run, which holds its lock.
        damaged: steps of the checkpoints. Symbolic links are always moved.
    """
    folder = workdir / "checkpoints"
    links = [path for path in folder.glob("*") if path.is_symlink()]
    for link in links:
        log.warning("%s is a symbolic link; it is ignored and moved to %s", link, DAMAGED)
    for path in (*links, *(folder / str(step) for step in damaged)):
        to = workdir / DAMAGED / path.name
        while to.is_symlink() or to.exists():
            to = to.with_name(to.name + "+")
        with explain_write_errors(to):
            to.parent.mkdir(exist_ok=True)
            path.replace(to)


def read_all_facts(workdir: Path, *, warn: bool = False) -> dict[int, Facts]:
    """Return the metadata of all undamaged checkpoints by step, and ``warn`` of damaged ones."""
    facts = {}
    for step in steps(workdir):
        try:
            with _explain_damage(workdir, step):
                facts[step] = _read_facts(workdir, step)
        except NO_DAMAGE:
            raise
        except UserError as error:
            if warn:
                log.warning("%s", error)
    return facts


def _read(
    workdir: Path, step: int | None, read: Callable[[ocp.CheckpointManager, int], object]
) -> Restored:
    """Read the checkpoint of a step, or the latest that can be read.

    Several processes try the steps together. Each of them first reads the whole checkpoint on its
    own, because Orbax makes them wait for each other: a file that one process cannot read counts as
    damaged in all.
    """
    existing = steps(workdir)
    if not existing:
        raise UserError(f"{workdir} holds no checkpoint; {train_first(workdir)}")
    if step is not None and step not in existing:
        raise UserError(f"{workdir} holds no checkpoint of step {step}, only of {existing}")
    damage: dict[int, UserError] = {}  # by step

    def next_candidate() -> int | None:
        # A run may write new checkpoints and remove old ones meanwhile. Several processes must try
        # the same steps, so they try the steps that existed at the start.
        candidates = existing if distributed.process_count() > 1 else steps(workdir)
        candidates = candidates if step is None else [step]
        return max(set(candidates) - damage.keys(), default=None)

    folder = (workdir / "checkpoints").absolute()
    options = ocp.CheckpointManagerOptions(create=False)  # because the run may still write
    with ignore_late_orbax_errors(), ocp.CheckpointManager(folder, options=options) as checkpoints:
        while (candidate := next_candidate()) is not None:
            try:
                state, facts = _read_verified(workdir, candidate, partial(read, checkpoints))
            except NO_DAMAGE:
                raise
            except UserError as error:
                damage[candidate] = error
                time.sleep(STRAGGLER_SECONDS)
                continue
            damaged = tuple(later for later in damage if _folder(workdir, later).exists())
            for later in damaged:
                log.warning("%s; going back to step %d", damage[later], candidate)
            return Restored(candidate, state, facts, damaged)
    newest = existing[-1] if step is None else step
    error = next(iter(damage.values()), None)
    if error is None or (step is not None and not _folder(workdir, step).exists()):
        error = f"checkpoint {newest} of {workdir} was removed meanwhile"
    others = [other for other in steps(workdir) if other not in damage]
    advice = f"there are also {others}" if others else "no other is left: take another workdir"
    raise UserError(f"{error}; {advice}")


def _read_verified(workdir: Path, step: int, read: Callable[[int], object]) -> tuple[object, Facts]:
    """Read state and metadata of a checkpoint, or raise UserError if a process finds damage."""
    if distributed.process_count() > 1:
        distributed.raise_together(partial(_check, workdir, step))
    with _explain_damage(workdir, step):
        facts = _read_facts(workdir, step)
        file_io.count_bytes(_folder(workdir, step))  # raises an error for links, pipes and devices
        state = buckets.call_while_up(workdir, partial(read, step))
        state = jax.block_until_ready(state)
        digests.verify(state, facts.checksums)
        if facts.step not in (None, step):
            raise ValueError(f"the checkpoint was written at step {facts.step}")
    return state, facts


def _check(workdir: Path, step: int) -> None:
    """Raise UserError unless this process can read the whole checkpoint."""
    with _explain_damage(workdir, step):
        sums = _read_facts(workdir, step).checksums
        digests.verify(_read_numpy(_folder(workdir, step) / "state"), sums)


@contextmanager
def ignore_late_orbax_errors() -> Iterator[None]:
    """Hide errors that Orbax's event loop raises late, after a failed read or write."""
    usual = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            usual(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = usual


@contextmanager
def _explain_damage(workdir: Path, step: int) -> Iterator[None]:
    """Raise UserError for an exception while a checkpoint is read, not for a bucket or a device."""
    try:
        yield
    except (buckets.BucketError, JaxRuntimeError):
        raise
    except Exception as error:  # Orbax and TensorStore raise many types for a damaged file.
        buckets.check(workdir)
        fault, what = UserError, "is damaged or incomplete"
        if errors.is_transient(error):
            fault, what = errors.TransientError, "cannot be read"
        text = f"checkpoint {_folder(workdir, step)} {what}: {one_line(error, 200)}"
        raise fault(text) from error


def _folder(workdir: Path, step: int) -> Path:
    return (workdir / "checkpoints" / str(step)).absolute()


def _read_facts(workdir: Path, step: int) -> Facts:
    """Read the metadata of a checkpoint without Orbax, which would wait for all processes."""
    document = file_io.read_json(_folder(workdir, step) / "facts" / "metadata")
    if document["digest"] != _digest(document["facts"]):
        raise ValueError("the metadata do not match the digest in the metadata file")
    stored = json.loads(document["facts"])
    facts = Facts(*(stored.get(name) for name in Facts._fields))
    for name, kind in Facts.__annotations__.items():
        if not isinstance(getattr(facts, name), kind):
            raise ValueError(f"the metadata have no valid {name!r}")
    return facts


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _read_numpy(folder: Path) -> object:
    """Read a checkpoint as NumPy arrays in this process alone, without waiting for others."""
    process = distributed.process_index()
    alone: Any = {"primary_host": process, "active_processes": {process}}
    several = distributed.process_count() > 1
    options = ocp.options.MultiprocessingOptions(**alone if several else {})
    orbax_log = logging.getLogger("absl")
    orbax_log.addFilter(_keep_message)
    try:
        handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=options)
        with ocp.Checkpointer(handler, multiprocessing_options=options) as reader:
            tree = reader.metadata(folder).item_metadata.tree
            size = sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))
            if size > SLACK + MOST_EXPANSION * file_io.count_bytes(folder):
                raise ValueError(
                    f"the arrays claim {size} bytes, much more than the checkpoint's files have"
                )
            as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
            return reader.restore(folder, args=ocp.args.PyTreeRestore(restore_args=as_numpy))
    finally:
        orbax_log.removeFilter(_keep_message)


def _keep_message(message: logging.LogRecord) -> bool:
    """Filter out Orbax's warning that the folder of a single item has no metadata file."""
    return "Metadata file does not exist" not in message.getMessage()
