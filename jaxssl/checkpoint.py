"""Checkpoints: everything that the next step reads, written by Orbax in the background."""

import logging
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import Mesh
from orbax.checkpoint.checkpoint_managers import preservation_policy as keep

from jaxssl import parallel
from jaxssl.errors import UserError

BEST_METRIC = "knn_top1"


class Restored(NamedTuple):
    """A checkpoint.

    Attributes:
        step: steps done.
        state: the `TrainState`.
        data: the position of the data iterator.
        config: the effective config, as a dict.
    """

    step: int
    state: Any
    data: Any
    config: dict[str, Any]


def manager(workdir: Path) -> ocp.CheckpointManager:
    """Writes the checkpoints of a workdir; keeps the latest and the one of the best online k-NN.

    Orbax' own `best_fn` with `max_to_keep` may delete the latest one, hence the policies; without
    `best_fn` it would not write the figures down.
    """
    policy = keep.AnyPreservationPolicy(
        [
            keep.LatestN(1),
            keep.BestN(get_metric_fn=_score, n=1, keep_checkpoints_without_metrics=False),
        ]
    )
    options = ocp.CheckpointManagerOptions(
        preservation_policy=policy, best_fn=_score, cleanup_tmp_directories=True
    )
    return ocp.CheckpointManager((workdir / "checkpoints").absolute(), options=options)


def _score(metrics: Any) -> float:
    return metrics[BEST_METRIC]


def save(
    checkpoints: ocp.CheckpointManager,
    step: int,
    state: Any,
    data: Any,
    config: dict[str, Any],
    knn_top1: float | None,
) -> None:
    """Begin to write a checkpoint; the state may be donated as soon as this returns."""
    items = ocp.args.Composite(
        state=ocp.args.StandardSave(state),
        data=ocp.args.JsonSave(data),
        config=ocp.args.JsonSave(config),
    )
    metrics = None if knn_top1 is None else {BEST_METRIC: knn_top1}
    checkpoints.save(step, args=items, metrics=metrics)


def steps(workdir: Path) -> list[int]:
    """The steps of the complete checkpoints in a workdir, in order; [] if there are none."""
    if not (workdir / "checkpoints").is_dir():
        return []
    with _reader(workdir) as checkpoints:
        return sorted(checkpoints.all_steps())


def best_step(workdir: Path) -> int:
    """The step with the best online k-NN of those in a workdir; the latest of equals.

    Raises:
        UserError: if no checkpoint there has a figure.
    """
    with _reader(workdir) as checkpoints:
        scores = {step: checkpoints.metrics(step) for step in sorted(steps(workdir))}
    scores = {step: _score(metrics) for step, metrics in scores.items() if metrics}
    if not scores:
        raise UserError(f"{workdir} holds no checkpoint with an online k-NN figure; name a step")
    return max(scores, key=lambda step: (scores[step], step))


def restore(workdir: Path, template: Any, mesh: Mesh, step: int | None = None) -> Restored:
    """Read a checkpoint onto ``mesh``, whatever mesh it was written from.

    Args:
        workdir: of the run.
        template: a state, or its `jax.ShapeDtypeStruct`s, of the same structure.
        mesh: the devices to put it on.
        step: which; by default the latest.

    Raises:
        UserError: if there is no such checkpoint, it cannot be read, or it is of another network.
    """
    target = parallel.replicated_like(template, mesh)
    return _read(workdir, step, ocp.args.StandardRestore(target))


def restore_arrays(workdir: Path, step: int | None = None) -> Restored:
    """Read a checkpoint as nested dicts of NumPy arrays, without knowing its structure.

    Args:
        workdir: of the run.
        step: which; by default the latest.

    Raises:
        UserError: if there is no such checkpoint or it cannot be read.
    """
    return _read(workdir, step, None)


def _read(workdir: Path, step: int | None, state_args: ocp.args.StandardRestore | None) -> Restored:
    known = steps(workdir)
    if not known:
        raise UserError(f"{workdir} holds no checkpoint; train first: train.py --workdir {workdir}")
    step = known[-1] if step is None else step
    if step not in known:
        raise UserError(f"{workdir} holds no checkpoint of step {step}, only of {known}")
    folder = (workdir / "checkpoints" / str(step)).absolute()
    items = {"data": ocp.args.JsonRestore(), "config": ocp.args.JsonRestore()}
    if state_args is not None:
        items["state"] = state_args
    try:
        with _reader(workdir) as checkpoints:
            found = checkpoints.restore(step, args=ocp.args.Composite(**items))
        state = found.state if state_args is not None else _numpy_tree(folder / "state")
        jax.block_until_ready(state)
    except Exception as error:  # Orbax and TensorStore raise many kinds for a damaged file
        message = " ".join(str(error).split())[:200]
        others = [s for s in known if s != step]
        mend = f"remove it to go back to step {others[-1]}" if others else f"remove {folder}"
        raise UserError(
            f"checkpoint {folder} is damaged or incomplete: {message}; {mend}"
        ) from error
    return Restored(step, state, found.data, found.config)


def _reader(workdir: Path) -> ocp.CheckpointManager:
    """For reading only: it leaves alone what a run beside it may be writing."""
    folder = (workdir / "checkpoints").absolute()
    return ocp.CheckpointManager(folder, options=ocp.CheckpointManagerOptions(create=False))


def _numpy_tree(folder: Path) -> Any:
    orbax_log = logging.getLogger("absl")
    orbax_log.addFilter(_is_about_something_else)
    try:
        with ocp.PyTreeCheckpointer() as reader:
            tree = reader.metadata(folder).item_metadata.tree
            as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
            return reader.restore(folder, args=ocp.args.PyTreeRestore(restore_args=as_numpy))
    finally:
        orbax_log.removeFilter(_is_about_something_else)


def _is_about_something_else(message: logging.LogRecord) -> bool:
    """Orbax warns that an item's folder lacks the metadata of a whole checkpoint, as it must."""
    return "Metadata file does not exist" not in message.getMessage()
