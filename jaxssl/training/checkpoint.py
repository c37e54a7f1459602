"""Checkpoints of everything that the next step reads, written by Orbax in the background.

A checkpoint stores a checksum of every array, and a digest of its metadata. A checkpoint that was
cut off or altered is therefore never restored.
"""

import hashlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax import Array, lax
from jax import numpy as jnp

from jaxssl import distributed
from jaxssl.errors import UserError, one_line
from jaxssl.training.logs import log

NUM_LATEST = 2  # number of latest checkpoints to keep, in case the last one is damaged
DAMAGED = "damaged"  # folder in the workdir for damaged checkpoints
# time in which the remaining arrays of a damaged checkpoint also fail to load
STRAGGLER_SECONDS = 0.5


class Restored(NamedTuple):
    """A restored checkpoint: training state, data position, config and step.

    Attributes:
        step: number of steps done.
        state: the `TrainState`.
        data: position of the data iterator.
        config: the effective config, as a dict.
        damaged: later steps whose checkpoints could not be read.
    """

    step: int
    state: Any
    data: Any
    config: dict[str, Any]
    damaged: tuple[int, ...] = ()


class Manager:
    """Writer of a run's checkpoints, which keeps the latest ones and the one of the best k-NN.

    Orbax can keep the best checkpoint itself, but it reads the metric from a file without a digest.
    """

    def __init__(self, workdir: Path) -> None:
        self._scores = {step: _read_score(workdir, step) for step in steps(workdir)}
        options = ocp.CheckpointManagerOptions(
            preservation_policy=self, cleanup_tmp_directories=True
        )
        folder = (workdir / "checkpoints").absolute()
        self._orbax = ocp.CheckpointManager(folder, options=options)

    def save(
        self, step: int, state: Any, data: Any, config: dict[str, Any], knn_top1: float | None
    ) -> None:
        """Start to write a checkpoint. The state may be donated as soon as this returns."""
        sums = dict(zip(_names(state), map(int, jax.device_get(_checksums(state))), strict=True))
        facts = json.dumps({"data": data, "config": config, "score": knn_top1, "checksums": sums})
        items = ocp.args.Composite(
            state=ocp.args.StandardSave(state),
            facts=ocp.args.JsonSave({"facts": facts, "digest": _digest(facts)}),
        )
        self._scores[step] = knn_top1
        self._orbax.save(step, args=items)

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        """Tell Orbax which checkpoints to keep, in order from the oldest to the latest."""
        del context
        existing = [checkpoint.step for checkpoint in checkpoints]
        best = _best({step: self._scores.get(step) for step in existing})
        return [step in {*existing[-NUM_LATEST:], best} for step in existing]

    def wait_until_finished(self) -> None:
        """Wait until all checkpoints are written."""
        self._orbax.wait_until_finished()

    def close(self) -> None:
        """Wait until all checkpoints are written, and release the manager."""
        self._orbax.close()


def steps(workdir: Path) -> list[int]:
    """Return the steps of the complete checkpoints in a workdir, sorted."""
    folder = workdir / "checkpoints"
    # Orbax's manager would make the processes of a run wait for each other. Here one process may
    # look before another has made the folder.
    if not folder.is_dir():
        return []
    return sorted(entry.step for entry in ocp.path.step.standard_name_format().find_all(folder))


def best_step(workdir: Path) -> int:
    """Return the step with the best logged k-NN accuracy, the latest of equals.

    Raises:
        UserError: if no checkpoint has an accuracy that can be read.
    """
    best = _best({step: _read_score(workdir, step) for step in steps(workdir)})
    if best is None:
        raise UserError(f"{workdir} holds no checkpoint with an online k-NN figure; name a step")
    return best


def _read_score(workdir: Path, step: int) -> float | None:
    """Return the k-NN accuracy in a checkpoint, or None if it is missing or damaged."""
    try:
        return _guarded(workdir, step, lambda: _read_facts(workdir, step)["score"])
    except UserError as error:
        log.warning("%s", error)
        return None


def _best(scores: Mapping[int, float | None]) -> int | None:
    """Return the step with the largest score, the latest of equals, or None without any score."""
    ranked = [(score, step) for step, score in scores.items() if score is not None]
    return max(ranked)[1] if ranked else None


def restore(workdir: Path, template: Any, step: int | None = None) -> Restored:
    """Restore a checkpoint onto the devices of ``template``, whichever devices wrote it.

    Args:
        workdir: workdir of the run.
        template: a state of the same structure, whose arrays have the shardings to restore to.
        step: step of the checkpoint; by default the latest that can be read, with a warning of
            later ones that cannot.

    Raises:
        UserError: if the checkpoint does not exist, cannot be read, or is of another network.
    """
    target = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), template
    )

    def read(checkpoints: ocp.CheckpointManager, step: int) -> Any:
        # The restore is not strict, because per-example buffers are padded with zeros to a multiple
        # of the device count. Zeros do not change a checksum, so the checksums still detect other
        # changes.
        args = ocp.args.Composite(state=ocp.args.StandardRestore(target, strict=False))
        return checkpoints.restore(step, args=args)["state"]

    return _read(workdir, step, read)


def restore_arrays(workdir: Path, step: int | None = None) -> Restored:
    """Read a checkpoint as nested dicts of NumPy arrays, without a template.

    Args:
        workdir: workdir of the run.
        step: step of the checkpoint; by default the latest that can be read, with a warning of
            later ones that cannot.

    Raises:
        UserError: if the checkpoint does not exist or cannot be read.
    """
    return _read(workdir, step, lambda _, step: _read_numpy(_folder(workdir, step) / "state"))


def set_aside(workdir: Path, damaged: Sequence[int]) -> None:
    """Move damaged checkpoints aside, so that the run can write their steps again."""
    for step in damaged:
        to = workdir / DAMAGED / str(step)
        while to.exists():
            to = to.with_name(to.name + "+")
        to.parent.mkdir(exist_ok=True)
        os.replace(_folder(workdir, step), to)


def _read(
    workdir: Path, step: int | None, read: Callable[[ocp.CheckpointManager, int], Any]
) -> Restored:
    """Read one checkpoint, or the latest that can be read.

    Several processes try the steps together. Each of them first reads the whole checkpoint on its
    own, because Orbax makes them wait for each other: a file that one process cannot read counts as
    damaged in all.
    """
    existing = steps(workdir)
    if not existing:
        raise UserError(
            f"{workdir} holds no checkpoint; train first: jaxssl train --workdir {workdir}"
        )
    if step is not None and step not in existing:
        raise UserError(f"{workdir} holds no checkpoint of step {step}, only of {existing}")

    def read_step(checkpoints: ocp.CheckpointManager, step: int) -> Restored:
        facts = _read_facts(workdir, step)
        state = jax.block_until_ready(read(checkpoints, step))
        _verify(state, facts["checksums"])
        return Restored(step, state, facts["data"], facts["config"])

    errors: dict[int, UserError] = {}
    with _stragglers_ignored(), _open_for_reading(workdir) as checkpoints:
        for tried in reversed(existing) if step is None else (step,):
            try:
                if distributed.process_count() > 1:
                    distributed.raise_together(lambda tried=tried: _check(workdir, tried))
                restored = _guarded(
                    workdir, tried, lambda tried=tried: read_step(checkpoints, tried)
                )
            except UserError as error:
                errors[tried] = error
                time.sleep(STRAGGLER_SECONDS)
                continue
            for error in errors.values():
                log.warning("%s; going back to step %d", error, tried)
            return restored._replace(damaged=tuple(errors))
    others = [other for other in existing if other not in errors]
    advice = f"there are also {others}" if others else "no other is left: take another --workdir"
    raise UserError(f"{next(iter(errors.values()))}; {advice}")


def _check(workdir: Path, step: int) -> None:
    """Raise UserError unless this process can read the whole checkpoint."""

    def check() -> None:
        sums = _read_facts(workdir, step)["checksums"]
        _verify(_read_numpy(_folder(workdir, step) / "state"), sums)

    _guarded(workdir, step, check)


@contextmanager
def _stragglers_ignored() -> Iterator[None]:
    """Hide the late errors of a damaged checkpoint, after the first was reported."""
    usual = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            usual(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = usual


def _guarded(workdir: Path, step: int, read: Callable[[], Any]) -> Any:
    """Call ``read`` on a checkpoint, and raise UserError for any exception."""
    try:
        return read()
    # Orbax and TensorStore raise many exception types for a damaged file.
    except Exception as error:
        raise UserError(
            f"checkpoint {_folder(workdir, step)} is damaged or incomplete: {one_line(error, 200)}"
        ) from error


def _folder(workdir: Path, step: int) -> Path:
    return (workdir / "checkpoints" / str(step)).absolute()


def _read_facts(workdir: Path, step: int) -> dict[str, Any]:
    """Read the metadata of a checkpoint without Orbax, which would wait for all processes."""
    document = json.loads((_folder(workdir, step) / "facts" / "metadata").read_text())
    if document["digest"] != _digest(document["facts"]):
        raise ValueError("its metadata file does not match its digest")
    return json.loads(document["facts"])


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _names(tree: Any) -> list[str]:
    """Return the arrays' names, which are the same for trees of tuples, dicts and dataclasses."""
    paths = (path for path, _ in jax.tree_util.tree_leaves_with_path(tree))
    return [jax.tree_util.keystr(path, simple=True, separator="/") for path in paths]


@jax.jit
def _checksums(tree: Any) -> list[Array]:
    """Compute a checksum of every array that changes with any single entry."""

    def checksum(x: Array) -> Array:
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x = jax.random.key_data(x)
        if x.dtype == jnp.bool_:
            x = x.astype(jnp.uint8)
        bits = lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}")
        bits = bits.astype(jnp.uint32).reshape(-1)
        # Odd factors are invertible modulo 2^32, so every entry counts. A sum of integers does not
        # depend on the order of summation.
        return jnp.sum(bits * (2 * jnp.arange(bits.size, dtype=jnp.uint32) + 1), dtype=jnp.uint32)

    return [checksum(x) for x in jax.tree.leaves(tree)]


def _checksum(x: np.ndarray) -> int:
    """Compute the checksum of one NumPy array on the host."""
    bits = np.ascontiguousarray(x).reshape(-1).view(f"uint{8 * x.dtype.itemsize}")
    factors = np.arange(1, 2 * bits.size, 2, dtype=np.uint32)
    return int(np.sum(bits.astype(np.uint32) * factors, dtype=np.uint32))


def _verify(state: Any, expected: Mapping[str, int]) -> None:
    """Raise ValueError unless a checkpoint's arrays have the expected names and checksums."""
    names = _names(state)
    if set(names) != set(expected):
        name = min(set(names) ^ set(expected))
        raise ValueError(f"the array {name!r} is missing or unexpected")
    leaves = jax.tree.leaves(state)
    # Arrays on the host are not worth a compiled program.
    on_host = all(isinstance(x, np.ndarray) for x in leaves)
    sums = map(_checksum, leaves) if on_host else jax.device_get(_checksums(state))
    for name, checksum in zip(names, sums, strict=True):
        if int(checksum) != expected[name]:
            raise ValueError(f"the array {name!r} does not match its checksum")


def _open_for_reading(workdir: Path) -> ocp.CheckpointManager:
    """Open the checkpoints of a run read-only, because the run may still be writing."""
    folder = (workdir / "checkpoints").absolute()
    return ocp.CheckpointManager(folder, options=ocp.CheckpointManagerOptions(create=False))


def _read_numpy(folder: Path) -> Any:
    """Read the arrays of a checkpoint as NumPy arrays, without the other processes."""
    process = distributed.process_index()
    options = ocp.options.MultiprocessingOptions()
    if distributed.process_count() > 1:
        options = ocp.options.MultiprocessingOptions(
            primary_host=process, active_processes={process}
        )
    orbax_log = logging.getLogger("absl")
    orbax_log.addFilter(_keep_message)
    try:
        handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=options)
        with ocp.Checkpointer(handler, multiprocessing_options=options) as reader:
            tree = reader.metadata(folder).item_metadata.tree
            as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
            return reader.restore(folder, args=ocp.args.PyTreeRestore(restore_args=as_numpy))
    finally:
        orbax_log.removeFilter(_keep_message)


def _keep_message(message: logging.LogRecord) -> bool:
    """Filter out Orbax's warning that the folder of one item has no checkpoint metadata."""
    return "Metadata file does not exist" not in message.getMessage()
