"""Checkpoints: everything that the next step reads, written by Orbax in the background.

Every array has a checksum beside it and every fact a digest, so that a checkpoint which was cut off
or altered is never taken for a good one.
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

KEPT = 2  # latest checkpoints: should the last one be damaged, there is another
ASIDE = "damaged"  # folder of a workdir
STRAGGLE = 0.5  # seconds in which the other arrays of a damaged checkpoint fail


class Restored(NamedTuple):
    """A checkpoint.

    Attributes:
        step: steps done.
        state: the `TrainState`.
        data: the position of the data iterator.
        config: the effective config, as a dict.
        damaged: later steps whose checkpoints could not be read.
    """

    step: int
    state: Any
    data: Any
    config: dict[str, Any]
    damaged: tuple[int, ...] = ()


class Manager:
    """Writes the checkpoints of a workdir; keeps the two latest and that of the best online k-NN.

    Orbax' own way to keep the best reads a file of figures that has no digest, hence this one.
    """

    def __init__(self, workdir: Path) -> None:
        self._scores = {step: _score(workdir, step) for step in steps(workdir)}
        options = ocp.CheckpointManagerOptions(
            preservation_policy=self, cleanup_tmp_directories=True
        )
        folder = (workdir / "checkpoints").absolute()
        self._orbax = ocp.CheckpointManager(folder, options=options)

    def save(
        self, step: int, state: Any, data: Any, config: dict[str, Any], knn_top1: float | None
    ) -> None:
        """Begin to write a checkpoint; the state may be donated as soon as this returns."""
        sums = dict(zip(_names(state), map(int, jax.device_get(_checksums(state))), strict=True))
        facts = json.dumps({"data": data, "config": config, "score": knn_top1, "checksums": sums})
        items = ocp.args.Composite(
            state=ocp.args.StandardSave(state),
            facts=ocp.args.JsonSave({"facts": facts, "digest": _digest(facts)}),
        )
        self._scores[step] = knn_top1
        self._orbax.save(step, args=items)

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        """Orbax asks: which of the checkpoints, from the oldest on, shall be kept."""
        del context
        known = [checkpoint.step for checkpoint in checkpoints]
        kept = {*known[-KEPT:], _best({step: self._scores.get(step) for step in known})}
        return [step in kept for step in known]

    def wait_until_finished(self) -> None:
        """Return when all is written."""
        self._orbax.wait_until_finished()

    def close(self) -> None:
        """Return when all is written, and be used no more."""
        self._orbax.close()


def steps(workdir: Path) -> list[int]:
    """The steps of the complete checkpoints in a workdir, in order; [] if there are none."""
    folder = workdir / "checkpoints"
    # Not by a manager of Orbax, which has the processes of a run wait for each other: one of them
    # may look before another has made the folder, and one after.
    if not folder.is_dir():
        return []
    return sorted(found.step for found in ocp.path.step.standard_name_format().find_all(folder))


def best_step(workdir: Path) -> int:
    """The step with the best online k-NN of those in a workdir; the latest of equals.

    Raises:
        UserError: if no checkpoint there has a figure that can be read.
    """
    best = _best({step: _score(workdir, step) for step in steps(workdir)})
    if best is None:
        raise UserError(f"{workdir} holds no checkpoint with an online k-NN figure; name a step")
    return best


def _score(workdir: Path, step: int) -> float | None:
    """The figure in a checkpoint; None if there is none, or it is damaged."""
    try:
        return _guarded(workdir, step, lambda: _facts(workdir, step)["score"])
    except UserError as error:
        log.warning("%s", error)
        return None


def _best(scores: Mapping[int, float | None]) -> int | None:
    """The step with the best figure, the latest of equals; None if there is none."""
    found = {step: score for step, score in scores.items() if score is not None}
    return max(found, key=lambda step: (found[step], step), default=None)


def restore(workdir: Path, template: Any, step: int | None = None) -> Restored:
    """Read a checkpoint onto other devices, or the same, whatever devices wrote it.

    Args:
        workdir: of the run.
        template: a state of the same structure, whose arrays lie where those restored shall lie.
        step: which; by default the latest that can be read, with a warning of those that cannot.

    Raises:
        UserError: if there is no such checkpoint, it cannot be read, or it is of another network.
    """
    target = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), template
    )

    def read(checkpoints: ocp.CheckpointManager, step: int) -> Any:
        # Not strict: numbers for every example are filled up with zeros, to a number of rows that
        # the devices share. The checksums, in which zeros at the end do not count, see all else.
        args = ocp.args.Composite(state=ocp.args.StandardRestore(target, strict=False))
        return checkpoints.restore(step, args=args).state

    return _read(workdir, step, read)


def restore_arrays(workdir: Path, step: int | None = None) -> Restored:
    """Read a checkpoint as nested dicts of NumPy arrays, without knowing its structure.

    Args:
        workdir: of the run.
        step: which; by default the latest that can be read, with a warning of those that cannot.

    Raises:
        UserError: if there is no such checkpoint or it cannot be read.
    """
    return _read(workdir, step, lambda _, step: _numpy_tree(_folder(workdir, step) / "state"))


def set_aside(workdir: Path, damaged: Sequence[int]) -> None:
    """Move damaged checkpoints out of the way of the run that will write their steps again."""
    for step in damaged:
        to = workdir / ASIDE / str(step)
        while to.exists():
            to = to.with_name(to.name + "+")
        to.parent.mkdir(exist_ok=True)
        os.replace(_folder(workdir, step), to)


def _read(
    workdir: Path, step: int | None, read: Callable[[ocp.CheckpointManager, int], Any]
) -> Restored:
    """`restore` and `restore_arrays`.

    Several processes try the steps together, and each of them reads all of a checkpoint before
    Orbax has them wait for each other: a file that one cannot read is damaged for all.
    """
    known = steps(workdir)
    if not known:
        raise UserError(f"{workdir} holds no checkpoint; train first: train.py --workdir {workdir}")
    if step is not None and step not in known:
        raise UserError(f"{workdir} holds no checkpoint of step {step}, only of {known}")

    def restored(checkpoints: ocp.CheckpointManager, step: int) -> Restored:
        facts = _facts(workdir, step)
        state = jax.block_until_ready(read(checkpoints, step))
        _verify(state, facts["checksums"])
        return Restored(step, state, facts["data"], facts["config"])

    errors: dict[int, UserError] = {}
    with _stragglers_ignored(), _reader(workdir) as checkpoints:
        for tried in reversed(known) if step is None else (step,):
            try:
                if distributed.process_count() > 1:
                    distributed.raise_together(lambda tried=tried: _check(workdir, tried))
                found = _guarded(workdir, tried, lambda tried=tried: restored(checkpoints, tried))
            except UserError as error:
                errors[tried] = error
                time.sleep(STRAGGLE)
                continue
            for error in errors.values():
                log.warning("%s; going back to step %d", error, tried)
            return found._replace(damaged=tuple(errors))
    others = [other for other in known if other not in errors]
    mend = f"there are also {others}" if others else "no other is left: take another --workdir"
    raise UserError(f"{next(iter(errors.values()))}; {mend}")


def _check(workdir: Path, step: int) -> None:
    """Raise UserError unless this process can read all of a checkpoint."""

    def check() -> None:
        sums = _facts(workdir, step)["checksums"]
        _verify(_numpy_tree(_folder(workdir, step) / "state"), sums)

    _guarded(workdir, step, check)


@contextmanager
def _stragglers_ignored() -> Iterator[None]:
    """Of a damaged checkpoint one array is reported; the others fail when nobody waits any more."""
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
    try:
        return read()
    except Exception as error:  # Orbax and TensorStore raise many kinds for a damaged file
        raise UserError(
            f"checkpoint {_folder(workdir, step)} is damaged or incomplete: {one_line(error, 200)}"
        ) from error


def _folder(workdir: Path, step: int) -> Path:
    return (workdir / "checkpoints" / str(step)).absolute()


def _facts(workdir: Path, step: int) -> dict[str, Any]:
    # Read without Orbax, for which all processes would have to wait for each other.
    found = json.loads((_folder(workdir, step) / "facts" / "metadata").read_text())
    if found["digest"] != _digest(found["facts"]):
        raise ValueError("its facts do not have the digest that they were written with")
    return json.loads(found["facts"])


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _names(tree: Any) -> list[str]:
    """Of a tree's arrays, the same whether its nodes are tuples, dicts or dataclasses."""
    paths = (path for path, _ in jax.tree_util.tree_leaves_with_path(tree))
    return [jax.tree_util.keystr(path, simple=True, separator="/") for path in paths]


@jax.jit
def _checksums(tree: Any) -> list[Array]:
    """Of every array a number that any change of one of its entries changes."""

    def checksum(x: Array) -> Array:
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x = jax.random.key_data(x)
        if x.dtype == jnp.bool_:
            x = x.astype(jnp.uint8)
        bits = lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}")
        bits = bits.astype(jnp.uint32).reshape(-1)
        # Odd factors have inverses modulo 2^32, and integers add up alike in any order.
        return jnp.sum(bits * (2 * jnp.arange(bits.size, dtype=jnp.uint32) + 1), dtype=jnp.uint32)

    return [checksum(x) for x in jax.tree.leaves(tree)]


def _checksum(x: np.ndarray) -> int:
    """`_checksums` of an array of the host."""
    bits = np.ascontiguousarray(x).reshape(-1).view(f"uint{8 * x.dtype.itemsize}")
    factors = np.arange(1, 2 * bits.size, 2, dtype=np.uint32)
    return int(np.sum(bits.astype(np.uint32) * factors, dtype=np.uint32))


def _verify(state: Any, expected: Mapping[str, int]) -> None:
    """Raise ValueError unless these are the arrays that were written."""
    names = _names(state)
    if set(names) != set(expected):
        one = min(set(names) ^ set(expected))
        raise ValueError(f"the array {one!r} is missing, or one too many")
    leaves = jax.tree.leaves(state)
    # Arrays of the host are not worth a compiled program.
    on_host = all(isinstance(x, np.ndarray) for x in leaves)
    sums = map(_checksum, leaves) if on_host else jax.device_get(_checksums(state))
    for name, found in zip(names, sums, strict=True):
        if int(found) != expected[name]:
            raise ValueError(f"the array {name!r} does not have the checksum it was written with")


def _reader(workdir: Path) -> ocp.CheckpointManager:
    """For reading only: it leaves alone what a run beside it may be writing."""
    folder = (workdir / "checkpoints").absolute()
    return ocp.CheckpointManager(folder, options=ocp.CheckpointManagerOptions(create=False))


def _numpy_tree(folder: Path) -> Any:
    orbax_log = logging.getLogger("absl")
    orbax_log.addFilter(_is_about_something_else)
    try:
        alone = ocp.options.MultiprocessingOptions(
            primary_host=distributed.process_index(), active_processes={distributed.process_index()}
        )
        several = {"multiprocessing_options": alone} if distributed.process_count() > 1 else {}
        handler = ocp.PyTreeCheckpointHandler(**several)
        with ocp.Checkpointer(handler, **several) as reader:
            tree = reader.metadata(folder).item_metadata.tree
            as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
            return reader.restore(folder, args=ocp.args.PyTreeRestore(restore_args=as_numpy))
    finally:
        orbax_log.removeFilter(_is_about_something_else)


def _is_about_something_else(message: logging.LogRecord) -> bool:
    """Orbax warns that an item's folder lacks the metadata of a whole checkpoint, as it must."""
    return "Metadata file does not exist" not in message.getMessage()
