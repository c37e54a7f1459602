"""The training loss on the test split, without any update."""

from collections.abc import Callable

import jax
from flax.typing import Collection
from jax import Array
from jax import numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from ml_collections import ConfigDict

from jaxssl import collectives, distributed
from jaxssl.augment.views import Augment
from jaxssl.data.batches import POSITION
from jaxssl.data.splits import Source
from jaxssl.methods.base import Batch, Method
from jaxssl.training.build import make_batches
from jaxssl.training.config.method import Length, make_augment, make_method
from jaxssl.training.state import TrainState

# No step of a run has this number, so no step draws from the key of the held-out loss.
KEY_NUMBER = 2**32 - 1


def make_held_out_loss(
    config: ConfigDict, method: Method, test: Source, mesh: Mesh
) -> tuple[str, Callable[[TrainState], float] | None]:
    """Return a line for the log, and the function that computes the loss on the test split.

    The loss is the mean of the training loss over the whole batches of the test split. The batches
    and all random draws are the same at every call. BatchNorm uses the statistics of the batch, and
    scheduled numbers have their values at the step of the state. A queue or another memory is read
    as the training left it. Images and captions have CLIP's loss with the learned scale if their
    loss learns one too, as DeCL's does, so that runs with either loss can be compared.

    Args:
        config: of the run.
        method: its loss is computed.
        test: the test split.
        mesh: the devices, over which a batch is split.

    Returns:
        A line for the log, and the function. It is None if the loss cannot be computed on the
        split, for the reason that the line names. All processes must call the function.
    """
    name = ""
    if config.method.name == "two_tower" and config.loss.get("learn_scale"):
        config = ConfigDict({**config, "loss": {"name": "clip"}})
        method, name = make_method(config, Length(1, 1)), " (CLIP's)"
    if reason := _find_obstacle(config, method, test):
        return f"no held-out loss: {reason}", None
    stream = make_batches(config, test, mesh)
    augment = make_augment(config, stream.crops)
    stream.close()
    batch_loss = make_batch_loss(method, augment, mesh)
    num_batches = len(test) // config.batch_size

    def held_out_loss(state: TrainState) -> float:
        if name:  # The loss is CLIP's, which has no memory.
            state = state.replace(carried=state.carried._replace(memory=()))
        try:
            stream.set_state({**stream.get_state(), POSITION: 0})
            losses = [float(batch_loss(state, stream.next())) for _ in range(num_batches)]
        finally:
            stream.close()
        return sum(losses) / num_batches

    left_out = len(test) % config.batch_size
    rest = f", without the last {left_out} of {len(test)}" if left_out else ""
    return f"held-out loss{name} of {num_batches} batches of {test.split}{rest}", held_out_loss


def make_batch_loss(
    method: Method, augment: Augment, mesh: Mesh
) -> Callable[[TrainState, Batch], Array]:
    """Return the jitted function ``(state, batch) -> training loss`` with fixed random draws."""
    axis = distributed.DATA_AXIS

    def share(key: Array, step: Array, params: Collection, carried: object, batch: Batch) -> Array:
        augment_key, objective_key = jax.random.split(key)
        views = augment(augment_key, batch["input"], batch["index"])
        value, _ = method.loss(
            params, carried, {**batch, **views}, step=step, key=objective_key, axis_name=axis
        )
        return collectives.mean(value, axis)

    mapped = distributed.spmd(share, mesh, (P(), P(), P(), P(), P(axis)), P())

    @jax.jit
    def batch_loss(state: TrainState, batch: Batch) -> Array:
        key = jax.random.fold_in(state.key, jnp.uint32(KEY_NUMBER))
        return mapped(key, state.step, state.params, state.carried, batch)

    return batch_loss


def _find_obstacle(config: ConfigDict, method: Method, test: Source) -> str | None:
    """Return why a run cannot compute a held-out loss, or None if it can."""
    if any(jax.tree.leaves(method.per_example)):
        return f"loss {config.loss.name!r} keeps a memory of each training example"
    if config.method.get("labels") and not test.labelled:
        return f"the split {test.split!r} has examples without a label"
    if len(test) < config.batch_size:
        return (
            f"the split {test.split!r} has {len(test)} examples, fewer than "
            f"batch_size={config.batch_size}"
        )
    return None
