"""A linear classifier of backbone features that is trained beside the encoder.

The probe cannot change the encoder, because it has a program of its own, which runs after each
training step. It takes the features of the first view of each example. The backbone computes them
in evaluation mode from the new parameters, so that they are of the same kind as the features of
test examples. The probe is float32 at every precision of the networks.
"""

from collections.abc import Callable
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
from jaxssl.data.splits import Splits
from jaxssl.methods.base import Batch, Carried, Method
from jaxssl.training.state import TrainState

RATE = 0.1  # learning rate for a batch of 256
MOMENTUM = 0.9


class Probe(NamedTuple):
    """Weights and optimiser state of the online linear probe.

    Attributes:
        params: "kernel" [f, classes] and "bias" [classes].
        opt_state: of SGD with momentum.
    """

    params: dict[str, Array]
    opt_state: optax.OptState


class ProbedState(TrainState):
    """A training state that includes an online linear probe."""

    probe: Probe


class OnlineProbe(NamedTuple):
    """The functions that initialise and update the online linear probe.

    Attributes:
        init: ``state -> state`` adds an untrained probe to a training state.
        update: ``(probe, state, data, indices [k, B]) -> probe`` trains the probe on the first
            batch of ``indices``, with which the last step has led to the training state. A step
            that was skipped or is not finite changes nothing. The probe is donated.
    """

    init: Callable[[TrainState], ProbedState]
    update: Callable[[Probe, TrainState, Batch, Array], Probe]


def has_online_probe(settings: ConfigDict, splits: Splits) -> bool:
    """Return True if a run trains an online linear probe, which needs labels in all splits.

    Args:
        settings: the group `eval` of the config.
        splits: the data.
    """
    return settings.online_linear and splits.train.labelled and splits.labelled


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
    """Build the probe of the backbone that a method evaluates.

    SGD with momentum 0.9, a constant learning rate of 0.1 B / 256 and no weight decay minimises the
    cross-entropy. Weights start at 0. Lightly's linear evaluation has these settings, apart from
    the constant rate and the start. Lightly and solo-learn also train an online classifier on
    features without gradient, with the optimiser of the encoder.

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
        kernel, bias = np.zeros((shapes.shape[1], num_classes)), np.zeros(num_classes)
        weights = jax.tree.map(np.float32, {"kernel": kernel, "bias": bias})
        probe = Probe(weights, jax.tree.map(np.asarray, optimiser.init(weights)))
        return with_probe(state, distributed.replicate(probe, mesh))

    def gradient(replicated: tuple, data: Batch, indices: Array) -> dict[str, Array]:
        weights, params, carried, key = replicated
        batch = distributed.take_rows(data, indices)
        x, label = features(params, carried, batch, key), batch["label"]

        def loss(weights: dict[str, Array]) -> Array:
            logits = x @ weights["kernel"] + weights["bias"][None]
            return optax.softmax_cross_entropy_with_integer_labels(logits, label).mean()

        return collectives.mean(jax.grad(loss)(weights), axis)

    specs = P(), P() if resident else P(axis), P(axis)
    mapped = distributed.spmd(gradient, mesh, specs, P())

    def update(probe: Probe, state: TrainState, data: Batch, indices: Array) -> Probe:
        # The probe draws the same augmentations as the training step before it.
        key, _ = jax.random.split(jax.random.fold_in(state.key, state.step - 1))
        carried = state.carried._replace(memory=())
        grads = mapped((probe.params, state.params, carried, key), data, indices[0])
        updates, opt_state = optimiser.update(grads, probe.opt_state)
        new = Probe(cast(Any, optax.apply_updates(probe.params, updates)), opt_state)
        finite = jnp.stack([jnp.isfinite(x).all() for x in jax.tree.leaves(new)]).all()
        taken = finite & (state.skipped[1] == 0)
        return jax.tree.map(lambda a, b: jnp.where(taken, a, b), new, probe)

    replicated = distributed.replicated_sharding(mesh)
    return OnlineProbe(init, jax.jit(update, donate_argnums=0, out_shardings=replicated))


def without_probe(state: TrainState) -> TrainState:
    """Return a training state without the online probe."""
    return TrainState(**{k: value for k, value in vars(state).items() if k != "probe"})


def with_probe(state: TrainState, probe: Probe) -> ProbedState:
    """Return a training state with the given online probe."""
    return ProbedState(**vars(state), probe=probe)


def predict(probe: Probe, features: np.ndarray) -> np.ndarray:
    """Return the class [n] that a probe predicts from each row of features [n, f]."""
    weights = {name: np.asarray(x.addressable_data(0)) for name, x in probe.params.items()}
    return np.argmax(features @ weights["kernel"] + weights["bias"], axis=1)
