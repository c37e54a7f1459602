"""The training state and the training step."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import optax
from flax import struct
from flax.typing import Collection
from jax import Array, lax
from jax import numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxssl import collectives, distributed
from jaxssl.augment.views import Augment
from jaxssl.methods.base import Batch, Carried, Method, init_variables
from jaxssl.training.output import compile_cache

# Signature: (state, batch) -> (state, metrics, embeddings [V, B, d]).
Step = Callable[["TrainState", Batch], tuple["TrainState", dict[str, Array], Array]]
# Signature: (state, data, indices [k, B], n) -> (state, metrics and embeddings of the last step,
# losses [k]).
Steps = Callable[..., tuple["TrainState", dict[str, Array], Array, Array]]


class TrainState(struct.PyTreeNode):
    """Training state: all that a training step reads besides the batch. Checkpoints hold it all.

    Attributes:
        step: number of steps taken, including skipped ones.
        skipped: [2] int32, steps skipped so far, and steps skipped in a row up to now.
        key: random key from which all random draws are derived.
        params: trained parameters.
        carried: non-trainable state.
        opt_state: state of the optimiser.
    """

    step: Array
    skipped: Array
    key: Array
    params: Collection
    carried: Carried
    opt_state: optax.OptState


class Measure(NamedTuple):
    """Size of the arrays of a module.

    Attributes:
        norm: Euclidean norm of all values, float32.
        num_not_finite: number of values that are NaN or infinite, int32.
    """

    norm: Array
    num_not_finite: Array


class Gradient(NamedTuple):
    """Gradient of the loss of one global batch, and other results of its computation.

    Attributes:
        views: the entries of the batch that the augmentation makes.
        grads: gradient of the parameters.
        metrics: scalars, with the loss.
        carried: non-trainable state after the batch.
        embeddings: [V, B, d], the input of the loss.
    """

    views: dict[str, Array]
    grads: Collection
    metrics: dict[str, Array]
    carried: Carried
    embeddings: Array


def make_init(
    method: Method,
    optimiser: optax.GradientTransformation,
    augment: Augment,
    batch: Batch,
    num_examples: int,
    mesh: Mesh,
    *,
    sharding: str = "none",
) -> Callable[[int], TrainState]:
    """Return the jitted function ``seed -> training state`` that initialises the training.

    Args:
        method: the training scheme.
        optimiser: updates its parameters.
        augment: makes the views. Only their shapes matter here.
        batch: an example batch with "input" and "index". Two examples are enough.
        num_examples: size of the training set, for per-example memory.
        mesh: the devices.
        sharding: "none", "optimizer" or "all", see `shardings`.

    Returns:
        A function of the seed >= 0 of all randomness: weights, augmentation and objective.
    """
    key = jax.eval_shape(lambda: jax.random.key(0))
    views = jax.eval_shape(augment, key, batch["input"], batch["index"])

    def init(seed: Array) -> TrainState:
        key = jax.random.key(seed)
        rows = distributed.round_up(num_examples, mesh.size)
        params, carried = init_variables(method, views, rows, key)
        carried = _clear_padding(method, carried, num_examples)
        run_key = jax.random.split(key)[1]
        skipped = jnp.zeros(2, jnp.int32)
        return TrainState(jnp.int32(0), skipped, run_key, params, carried, optimiser.init(params))

    # The state is initialised under jit with out_shardings. It is never transferred, and no host
    # holds the shards of other hosts.
    layout = shardings(method, jax.eval_shape(init, 0), mesh, sharding)
    options = compile_cache.fast_compile_options()
    return jax.jit(init, out_shardings=layout, compiler_options=options)


def _clear_padding(method: Method, carried: Carried, num_examples: int) -> Carried:
    """Set the padding rows of per-example buffers to 0, so that padding may be cut or extended."""

    def clear(x: Array) -> Array:
        is_example = jnp.arange(len(x), dtype=jnp.int32) < num_examples
        return jnp.where(is_example.reshape(-1, *[1] * (x.ndim - 1)), x, jnp.zeros((), x.dtype))

    def clear_branch(per_example: bool, tree: object) -> object:
        return jax.tree.map(clear, tree) if per_example else tree

    return jax.tree.map(clear_branch, method.per_example, carried)


def shardings(method: Method, state: TrainState, mesh: Mesh, sharding: str) -> TrainState:
    """Return the sharding of every array of a training state.

    Per-example buffers are sharded over the devices along axis 0. With "optimizer" the optimiser's
    state is sharded too: every device stores and updates its part, and sends the updated parameters
    to the others (ZeRO, stage 1). With "all", parameters and the momentum network are stored in
    parts too, and every step gathers them (ZeRO, stage 3). All other arrays are replicated.

    References:
        Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models,
        2020.
    """
    replicated = distributed.replicated_sharding(mesh)

    def branch(per_example: bool, tree: object) -> object:
        placement = distributed.data_sharding(mesh) if per_example else replicated
        return jax.tree.map(lambda _: placement, tree)

    carried = jax.tree.map(branch, method.per_example, state.carried)
    layout = jax.tree.map(lambda _: replicated, state).replace(carried=carried)
    split = partial(jax.tree.map, lambda x: distributed.split_sharding(x.shape, mesh))
    if sharding == "all":
        carried = carried._replace(target=split(state.carried.target))
        layout = layout.replace(params=split(state.params), carried=carried)
    return layout if sharding == "none" else layout.replace(opt_state=split(state.opt_state))


def make_gradient(
    method: Method, augment: Augment, mesh: Mesh, sharding: str = "none"
) -> Callable[[TrainState, Batch], Gradient]:
    """Return the function that computes the gradient of a batch split over the devices.

    Value, gradient and carried state equal the results of the whole batch on one device, because
    every random draw is keyed by step and example. The gradient is sharded as the parameters.
    """
    axis = distributed.DATA_AXIS

    def gather(x: Array, spec: P) -> Array:
        return collectives.gather(x, axis, axis=spec.index(axis)) if axis in spec else x

    def mean(grad: Array, spec: P) -> Array:
        # The backward pass of `gather` has summed a split gradient over devices (reduce-scatter).
        return grad / mesh.size if axis in spec else collectives.mean(grad, axis)

    def local_gradient(specs: Any, state: TrainState, batch: Batch) -> Gradient:
        def loss(params: Any, *args: Any, **kwargs: Any) -> Any:
            return method.loss(jax.tree.map(gather, params, specs), *args, **kwargs)

        augment_key, objective_key = jax.random.split(jax.random.fold_in(state.key, state.step))
        views = augment(augment_key, batch["input"], batch["index"])
        batch = {**batch, **views}
        value_and_grad = jax.value_and_grad(loss, has_aux=True)
        (value, (carried, metrics, embeddings)), grads = value_and_grad(
            state.params, state.carried, batch, step=state.step, key=objective_key, axis_name=axis
        )
        # The mean of the devices' local gradients is the global gradient, as jaxssl/collectives.py
        # explains.
        grads = _in_layout_of_params(jax.tree.map(mean, grads, specs))
        metrics = collectives.mean({"loss": value, **metrics}, axis)
        return Gradient(views, grads, metrics, carried, embeddings)

    def gradient(state: TrainState, batch: Batch) -> Gradient:
        layout = shardings(method, state, mesh, sharding)
        specs: Any = jax.tree.map(lambda x: x.spec, layout.params)
        # XLA gathers a split momentum network before this function, and splits it again after it.
        carried: Any = jax.tree.map(
            lambda per_example: P(axis) if per_example else P(), method.per_example
        )
        whole: Any = P()
        by_example: Any = P(None, axis)
        state_specs = TrainState(whole, whole, whole, specs, carried, opt_state=whole)
        out_specs = Gradient(by_example, specs, whole, carried, by_example)
        local = partial(local_gradient, specs)
        return distributed.spmd(local, mesh, (state_specs, P(axis)), out_specs)(state, batch)

    return gradient


def make_train_step(
    method: Method,
    optimiser: optax.GradientTransformation,
    augment: Augment,
    mesh: Mesh,
    *,
    max_skipped: int = 10,
    sharding: str = "none",
) -> Step:
    """Return the jitted training step ``(state, batch) -> (state, metrics, embeddings)``.

    The step donates ``state``. It equals a step on one device with the whole batch.

    A step is skipped if its loss, gradient or outcome is not finite: only the numbers of steps and
    of skipped steps change. After ``max_skipped`` skipped steps in a row nothing changes any more,
    so that `make_diagnosis` can find the cause.

    Args:
        method: the training scheme.
        optimiser: updates its parameters.
        augment: makes the views of a batch.
        mesh: the devices, over which the batch is split by examples.
        max_skipped: steps that may be skipped in a row, > 0.
        sharding: "none", "optimizer" or "all", see `shardings`. The results are the same.

    Returns:
        The training step. Its metrics are scalars, equal on all devices. The embeddings [V, B, d]
        are the input of the loss, in the order of the batch.
    """
    gradient = make_gradient(method, augment, mesh, sharding)

    @partial(jax.jit, donate_argnums=0)
    def step(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, Array], Array]:
        _, grads, metrics, carried, embeddings = gradient(state, batch)
        updates, opt_state = optimiser.update(grads, state.opt_state, state.params)
        params = method.constrain(optax.apply_updates(state.params, updates), state.step + 1)
        outcome = metrics["loss"], grads, params, opt_state, carried.batch_stats
        # A loss leaves out anchors without a positive, so the embeddings themselves are checked.
        lost = jnp.sum(~jnp.isfinite(embeddings), dtype=jnp.int32)
        finite = all_finite(outcome) & (lost == 0)
        carried = method.after(params, carried, state.step)

        total, in_a_row = state.skipped
        stopped = in_a_row >= max_skipped
        taken = finite & ~stopped
        new, old = (params, carried, opt_state), (state.params, state.carried, state.opt_state)
        chosen = jax.tree.map(lambda a, b: jnp.where(taken, a, b), new, old)
        one = jnp.where(stopped, 0, 1)
        total = total + jnp.where(finite, 0, one)
        in_a_row = jnp.where(taken, 0, in_a_row + one)
        skipped = jnp.stack([total, in_a_row])
        state = TrainState(state.step + one, skipped, state.key, *chosen)
        state = lax.with_sharding_constraint(state, shardings(method, state, mesh, sharding))
        metrics |= {"skipped_steps": total, "skipped_in_a_row": in_a_row}
        return state, metrics, embeddings

    return step


def make_train_steps(
    make_step: Callable[..., Step], mesh: Mesh, *, resident: bool, loop: bool = True
) -> Steps:
    """Return a jitted function that takes several training steps in one call.

    Every step gathers its batch on the devices, so a call costs the host as much as one step. The
    number of steps is an argument of the compiled program, and the result does not depend on how
    steps are divided into calls.

    Args:
        make_step: ``numbers -> step`` makes the training step from the argument ``numbers``.
        mesh: the devices.
        resident: True if ``data`` is replicated on all devices, False if it is split over them.
        loop: False takes one step in a call, with the first row of ``indices``.

    Returns:
        ``(state, data, indices, n, *, numbers) -> (state, metrics, embeddings, losses)``, which
        donates the state. ``data`` holds examples with their "index" in the data set. ``indices``
        [k, B] int32 are the rows of k batches in the data of each device, split over the devices
        along axis 1, and n <= k. Metrics and embeddings are of the last step. The first n entries
        of ``losses`` [k] are the losses of all steps.
    """
    split = P(distributed.DATA_AXIS)
    in_specs = P() if resident else split, split
    gather = distributed.spmd(distributed.take_rows, mesh, in_specs, split)

    def steps(
        state: TrainState, data: Batch, indices: Array, n: int, *, numbers: object = None
    ) -> tuple[TrainState, dict[str, Array], Array, Array]:
        step = make_step(numbers)
        if not loop:
            state, metrics, embeddings = step(state, gather(data, indices[0]))
            return state, metrics, embeddings, metrics["loss"][None]

        def body(i: Array, carry: tuple) -> tuple:
            state, _, _, losses = carry
            state, metrics, embeddings = step(state, gather(data, indices[i]))
            return state, metrics, embeddings, losses.at[i].set(metrics["loss"])

        batch = jax.eval_shape(gather, data, indices[0])
        _, metrics, embeddings = jax.eval_shape(step, state, batch)
        blank = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), (metrics, embeddings))
        losses = jnp.zeros(len(indices), metrics["loss"].dtype)
        return lax.fori_loop(0, n, body, (state, *blank, losses))

    return jax.jit(steps, donate_argnums=0)


def make_diagnosis(
    method: Method, augment: Augment, mesh: Mesh
) -> Callable[[TrainState, Batch], dict[str, dict[str, Measure]]]:
    """Return the jitted function ``(state, batch) -> measures`` of all quantities of a step.

    The measures are by quantity and by module. The quantities come in the order of their
    computation: parameters, statistics, views, embeddings, terms of the loss, gradient.
    """
    gradient = make_gradient(method, augment, mesh)

    @jax.jit
    def diagnose(state: TrainState, batch: Batch) -> dict[str, dict[str, Measure]]:
        views, grads, metrics, _, embeddings = gradient(state, batch)
        quantities = {
            "parameters": state.params,
            "statistics": state.carried.batch_stats,
            "views": views,
            "embeddings": {"of all views": embeddings},
            "loss": metrics,
            "gradient": grads,
        }
        return {name: _measure(tree) for name, tree in quantities.items()}

    return diagnose


def _measure(tree: object) -> dict[str, Measure]:
    """Measure each module of a tree. The first two words of a leaf's path name its module."""
    sums: dict[str, tuple[Array, Array]] = {}
    for path, x in jax.tree_util.tree_leaves_with_path(tree):
        name = "/".join(jax.tree_util.keystr(path, simple=True, separator="/").split("/")[:2])
        squares, count = sums.get(name, (jnp.float32(0), jnp.int32(0)))
        x = x.astype(jnp.float32)
        count += jnp.sum(~jnp.isfinite(x), dtype=jnp.int32)
        sums[name] = squares + jnp.sum(x**2), count
    return {name: Measure(jnp.sqrt(squares), count) for name, (squares, count) in sums.items()}


def _in_layout_of_params(grads: Collection) -> Collection:
    """Give gradients the memory layout of the parameters.

    A GPU's convolutions return the gradient of a kernel in another layout. XLA would compute the
    optimiser's update in that layout, and transpose parameters and moments there and back.
    """

    def constrain(x: Array) -> Array:
        return with_layout_constraint(x, Layout(major_to_minor=tuple(range(x.ndim))))

    return lax.optimization_barrier(jax.tree.map(constrain, grads))


def all_finite(tree: object) -> Array:
    """Return True if all numbers of a tree are finite, with one reduction per array shape."""
    by_shape: dict[tuple[int, ...], Array] = {}
    for x in jax.tree.leaves(tree):
        if jnp.issubdtype(x.dtype, jnp.floating):
            by_shape[x.shape] = by_shape.get(x.shape, True) & jnp.isfinite(x)
    each = jnp.stack([jnp.all(finite) for finite in by_shape.values()])
    # The first entry of a sort is the minimum. XLA never fuses a sort, whereas it would recompute a
    # fused reduction for every array that waits for it, and take ten times as long to compile.
    return jnp.sort(each)[0]
