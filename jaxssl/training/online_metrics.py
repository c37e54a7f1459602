"""Metrics measured during a run: loss on the test split, and accuracy of an online linear probe.

The held-out loss is the training loss on the test split, without any update. The probe is a linear
classifier of backbone features that is trained alongside the encoder. It cannot change the encoder,
because it has a program of its own, which runs after each training step. It takes the features of
the first view of each example. The backbone computes them in evaluation mode from the new
parameters, so that they are of the same kind as the features of test examples. The probe is float32
at every precision of the networks.
"""

from collections.abc import Callable
from contextlib import closing
from typing import Any, NamedTuple, cast

import jax
import numpy as np
import optax
from flax.typing import Collection
from jax import Array
from jax import numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from ml_collections import ConfigDict

from jaxssl import collectives, distributed
from jaxssl.augment.views import Augment
from jaxssl.data.batches import POSITION
from jaxssl.data.splits import Source, Splits
from jaxssl.methods.base import Batch, Carried, Method
from jaxssl.training.build import make_batches
from jaxssl.training.config.method import Length, make_augment, make_method
from jaxssl.training.state import TrainState, all_finite

# No step of a run has this number, so no step draws from the key of the held-out loss.
HELD_OUT_KEY = 2**32 - 1
RATE = 0.1  # learning rate of the probe for a batch of 256
MOMENTUM = 0.9


def make_held_out_loss(
    config: ConfigDict, method: Method, test: Source, mesh: Mesh
) -> tuple[str, Callable[[TrainState], float] | None]:
    """Return a line for the log, and the function that computes the loss on the test split.

    The loss is the mean of the training loss over the whole batches of the test split. The batches
    and all random draws are the same at every call. BatchNorm uses the statistics of the batch, and
    scheduled numbers have their values at the step of the state. A queue or another memory is read
    as the training left it. The examples left out depend on the seed. For DeCL on captions with a
    learned scale, CLIP's loss at that scale is computed, so that runs of both can be compared.

    Args:
        config: of the run.
        method: its loss is computed.
        test: the test split.
        mesh: the devices, over which a batch is split.

    Returns:
        A line for the log, and the function. It is None if the loss cannot be computed on the
        split, for the reason that the line names. All processes must call the function.

    Raises:
        UserError: as `make_batches`, for the test split.
    """
    captioned = config.text.name != "none"
    as_clip = captioned and config.loss.name == "decl" and config.loss.learn_scale
    if as_clip:
        config = ConfigDict({**config, "loss": {"name": "clip"}})
        method = make_method(config, Length(1, 1))
    if obstacle := _find_obstacle(config, method, test):
        return f"no held-out loss: {obstacle}", None
    batches = make_batches(config, test, mesh)
    augment = make_augment(config, batches.plan.crops)
    batch_loss = make_batch_loss(method, augment, mesh)
    num_batches = len(test) // config.batch_size

    def held_out_loss(state: TrainState) -> float:
        if as_clip:  # CLIP's loss has no memory.
            state = state.replace(carried=state.carried._replace(memory=()))
        batches.set_state({POSITION: 0})
        with closing(batches):
            losses = [float(batch_loss(state, batches.next())) for _ in range(num_batches)]
        return sum(losses) / num_batches

    name = "held-out loss (CLIP's)" if as_clip else "held-out loss"
    used = num_batches * config.batch_size
    return f"{name} of {used} of {len(test)} examples of {test.split}", held_out_loss


def _find_obstacle(config: ConfigDict, method: Method, test: Source) -> str | None:
    """Return why the held-out loss cannot be computed on the test split, or None if it can."""
    if any(jax.tree.leaves(method.per_example)):
        return f"loss {config.loss.name!r} keeps a memory of each training example"
    if config.method.get("labels") and not test.all_labelled:
        return f"the split {test.split!r} has examples without a label"
    if len(test) < config.batch_size:
        number = f"{len(test)} examples, fewer than batch_size={config.batch_size}"
        return f"the split {test.split!r} has {number}"
    return None


def make_batch_loss(
    method: Method, augment: Augment, mesh: Mesh
) -> Callable[[TrainState, Batch], Array]:
    """Return the jitted function ``(state, batch) -> training loss`` with fixed random draws."""
    axis = distributed.DATA_AXIS

    def loss(key: Array, step: Array, params: Collection, carried: object, batch: Batch) -> Array:
        augment_key, objective_key = jax.random.split(key)
        views = augment(augment_key, batch["input"], batch["index"])
        value, _ = method.loss(
            params, carried, {**batch, **views}, step=step, key=objective_key, axis_name=axis
        )
        return collectives.mean(value, axis)

    mapped = distributed.spmd(loss, mesh, (P(), P(), P(), P(), P(axis)), P())

    @jax.jit
    def batch_loss(state: TrainState, batch: Batch) -> Array:
        key = jax.random.fold_in(state.key, jnp.uint32(HELD_OUT_KEY))
        return mapped(key, state.step, state.params, state.carried, batch)

    return batch_loss


class ProbeState(NamedTuple):
    """Weights and optimiser state of the online linear probe.

    Attributes:
        params: "kernel" [f, classes] and "bias" [classes].
        opt_state: of SGD with momentum.
    """

    params: dict[str, Array]
    opt_state: optax.OptState


class ProbedState(TrainState):
    """A training state that includes an online linear probe."""

    probe: ProbeState


class OnlineProbe(NamedTuple):
    """The functions that initialise and update the online linear probe.

    Attributes:
        init: ``state -> state`` adds an untrained probe to a training state.
        update: ``(probe, state, data, indices [k, B]) -> probe`` trains the probe on the first row
            of ``indices``, the batch of the step that produced ``state``. If that step was skipped,
            or the new probe is not finite, nothing changes. The probe is donated.
    """

    init: Callable[[TrainState], ProbedState]
    update: Callable[[ProbeState, TrainState, Batch, Array], ProbeState]


def has_online_probe(settings: ConfigDict, splits: Splits) -> bool:
    """Return True if a run trains an online linear probe, which needs labels in all splits.

    Args:
        settings: the group `eval` of the config.
        splits: the data.
    """
    return settings.online_linear and splits.labelled and splits.train.all_labelled


def make_online_probe(
    method: Method,
    augment: Augment,
    example: Batch,
    num_classes: int,
    batch_size: int,
    mesh: Mesh,
    *,
    resident: bool,
) -> OnlineProbe:
    """Build the functions of the online linear probe of a method's backbone.

    SGD with momentum 0.9, a constant learning rate of 0.1 B / 256 and no weight decay minimises the
    cross-entropy. Weights start at 0. Lightly's linear evaluation has these settings, apart from
    the constant learning rate and the start. Lightly and solo-learn also train an online classifier
    on features without gradient, with the optimiser of the encoder.

    Args:
        method: its backbone computes the features.
        augment: makes the views of a batch.
        example: an example batch.
        num_classes: number of classes.
        batch_size: B, over all devices.
        mesh: the devices, over which the batch is split.
        resident: as in `jaxssl.training.state.make_train_steps`.

    References:
        Susmelj et al., Lightly (github.com/lightly-ai/lightly), benchmarks, 2020.
        da Costa et al., solo-learn: A Library of Self-supervised Methods for Visual Representation
        Learning, JMLR 2022.
    """
    optimiser = optax.sgd(RATE * batch_size / 256, momentum=MOMENTUM)
    axis = distributed.DATA_AXIS

    def features(params: Collection, carried: Carried, batch: Batch, key: Array) -> Array:
        views = augment(key, batch["input"], batch["index"])["views"]
        return method.features(params, carried, jax.tree.map(lambda x: x[0], views))

    def init(state: TrainState) -> ProbedState:
        shapes = jax.eval_shape(features, state.params, state.carried, example, state.key)
        kernel = np.zeros((shapes.shape[1], num_classes), np.float32)
        weights = {"kernel": kernel, "bias": np.zeros(num_classes, np.float32)}
        probe = ProbeState(weights, jax.tree.map(np.asarray, optimiser.init(weights)))
        return with_probe(state, distributed.replicate(probe, mesh))

    def gradient(replicated: tuple, data: Batch, indices: Array) -> dict[str, Array]:
        weights, params, carried, key = replicated
        batch = distributed.take_rows(data, indices)
        x, label = features(params, carried, batch, key), batch["label"]

        def loss(weights: dict[str, Array]) -> Array:
            logits = jnp.matmul(x, weights["kernel"], precision="highest") + weights["bias"][None]
            return optax.softmax_cross_entropy_with_integer_labels(logits, label).mean()

        return collectives.mean(jax.grad(loss)(weights), axis)

    specs = P(), P() if resident else P(axis), P(axis)
    mapped = distributed.spmd(gradient, mesh, specs, P())

    def update(probe: ProbeState, state: TrainState, data: Batch, indices: Array) -> ProbeState:
        # The probe draws the same augmentations as the training step before it.
        key, _ = jax.random.split(jax.random.fold_in(state.key, state.step - 1))
        carried = state.carried._replace(memory=())
        grads = mapped((probe.params, state.params, carried, key), data, indices[0])
        updates, opt_state = optimiser.update(grads, probe.opt_state)
        new = ProbeState(cast(Any, optax.apply_updates(probe.params, updates)), opt_state)
        taken = all_finite(new) & (state.skipped[1] == 0)
        return jax.tree.map(lambda a, b: jnp.where(taken, a, b), new, probe)

    sharding = distributed.replicated_sharding(mesh)
    return OnlineProbe(init, jax.jit(update, donate_argnums=0, out_shardings=sharding))


def without_probe(state: TrainState) -> TrainState:
    """Return a training state without the online probe."""
    return TrainState(**{k: value for k, value in vars(state).items() if k != "probe"})


def with_probe(state: TrainState, probe: ProbeState) -> ProbedState:
    """Return a training state with the given online probe."""
    return ProbedState(**vars(state), probe=probe)


def predict(probe: ProbeState, features: np.ndarray) -> np.ndarray:
    """Return the class [n] that a probe predicts from each row of features [n, f]."""
    weights = {name: np.asarray(x.addressable_data(0)) for name, x in probe.params.items()}
    return np.argmax(features @ weights["kernel"] + weights["bias"], axis=1)
