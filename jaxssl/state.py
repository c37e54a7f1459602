"""The train state and the one function that moves it."""

from collections.abc import Callable
from typing import Any

import jax
import optax
from flax import struct
from jax import Array
from jax import numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxssl import parallel
from jaxssl.method import Batch, Carried, Method

# (key, images, index) -> {"views": [V, b, h, w, c], ...}, what a method's batch has of images
Augment = Callable[[Array, Any, Array], dict[str, Array]]
Step = Callable[["TrainState", Batch], tuple["TrainState", dict[str, Array], Array]]


class TrainState(struct.PyTreeNode):
    """All that the next step reads besides its batch; all of it is checkpointed."""

    step: Array
    key: Array
    params: Any
    carried: Carried
    opt_state: Any


def init_state(
    method: Method,
    optimiser: optax.GradientTransformation,
    augment: Augment,
    batch: Batch,
    num_examples: int,
    seed: int,
    mesh: Mesh,
) -> TrainState:
    """A fresh state, replicated over ``mesh``.

    Args:
        method: what is trained.
        optimiser: moves its parameters.
        augment: makes the views; only their shape matters here.
        batch: an example batch, "image" and "index"; two examples are enough.
        num_examples: size of the training set, for per-example memory.
        seed: of all randomness: weights, augmentation, objective.
        mesh: the devices.
    """
    key = jax.random.key(seed)
    views = jax.eval_shape(augment, key, batch["image"], batch["index"])

    def init(key: Array) -> TrainState:
        params, carried = init_variables(method, views, num_examples, key)
        run_key = jax.random.split(key)[1]
        return TrainState(jnp.int32(0), run_key, params, carried, optimiser.init(params))

    return parallel.replicate(jax.jit(init)(key), mesh)


def init_variables(
    method: Method, views: Batch, num_examples: int, key: Array
) -> tuple[Any, Carried]:
    """What a run with this key starts from; of ``views`` the shapes are enough."""
    blank = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), views)
    return method.init(jax.random.split(key)[0], blank, num_examples)


def make_train_step(
    method: Method, optimiser: optax.GradientTransformation, augment: Augment, mesh: Mesh
) -> Step:
    """The jitted step: ``(state, batch) -> (state, metrics, embeddings)``; it donates ``state``.

    The batch is split over the mesh by examples; value, gradient and everything carried are those
    of the whole batch on one device, because every random draw is keyed by step and example.

    Returns:
        A function whose metrics are scalars, equal on all devices, and whose embeddings [V, B, d]
        are those the loss saw, in the order of the batch.
    """
    axis = parallel.DATA_AXIS

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, Array], Array]:
        augment_key, objective_key = jax.random.split(jax.random.fold_in(state.key, state.step))
        views = augment(augment_key, batch["image"], batch["index"])
        gradient = jax.value_and_grad(method.loss, has_aux=True)
        (loss, (carried, metrics, embeddings)), grads = gradient(
            state.params,
            state.carried,
            {**batch, **views},
            step=state.step,
            key=objective_key,
            axis_name=axis,
        )
        # The mean of the local gradients: see parallel.py.
        grads, metrics = parallel.mean((grads, {"loss": loss, **metrics}), axis)
        updates, opt_state = optimiser.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        carried = method.after(params, carried, state.step)
        state = TrainState(state.step + 1, state.key, params, carried, opt_state)
        return state, metrics, embeddings

    mapped = parallel.spmd(step, mesh, (P(), P(axis)), (P(), P(), P(None, axis)))
    return jax.jit(mapped, donate_argnums=0)
