"""The train state and the one function that moves it."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
from flax import struct
from jax import Array, lax
from jax import numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxssl import collectives, distributed
from jaxssl.methods.base import Batch, Carried, Method
from jaxssl.training import compile_cache

# (key, input, index) -> {"views": [V, b, h, w, c], ...}, what a method's batch has of its input
Augment = Callable[[Array, Any, Array], dict[str, Array]]
Step = Callable[["TrainState", Batch], tuple["TrainState", dict[str, Array], Array]]
# (state, data, index [k, B], n) -> (state, metrics and embeddings of the last step, losses [k])
Steps = Callable[
    ["TrainState", Batch, Array, int], tuple["TrainState", dict[str, Array], Array, Array]
]


class TrainState(struct.PyTreeNode):
    """All that the next step reads besides its batch; all of it is checkpointed.

    Attributes:
        step: steps taken, those left out too.
        skipped: [2] int32, steps left out so far, and those in a row just now.
        key: of all random draws.
        params: what the optimiser moves.
        carried: what else a step hands on.
        opt_state: the optimiser's.
    """

    step: Array
    skipped: Array
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
    *,
    sharded: bool = False,
) -> TrainState:
    """The untrained state of `make_init` for ``seed``."""
    stages = method, optimiser, augment
    return make_init(*stages, batch, num_examples, mesh, sharded=sharded)(seed)


def make_init(
    method: Method,
    optimiser: optax.GradientTransformation,
    augment: Augment,
    batch: Batch,
    num_examples: int,
    mesh: Mesh,
    *,
    sharded: bool = False,
) -> Callable[[int], TrainState]:
    """`seed -> state`: an untrained state on ``mesh``, whole on every device.

    Args:
        method: what is trained.
        optimiser: moves its parameters.
        augment: makes the views; only their shape matters here.
        batch: an example batch, "input" and "index"; two examples are enough.
        num_examples: size of the training set, for per-example memory.
        mesh: the devices.
        sharded: split the optimiser's state over them, see `shardings`.

    Returns:
        A function of the seed of all randomness: weights, augmentation, objective.
    """
    key = jax.eval_shape(lambda: jax.random.key(0))
    views = jax.eval_shape(augment, key, batch["input"], batch["index"])

    def init(seed: Array) -> TrainState:
        key = jax.random.key(seed)
        rows = -(-num_examples // mesh.size) * mesh.size
        params, carried = init_variables(method, views, rows, key)
        carried = _filled_up(method, carried, num_examples)
        run_key = jax.random.split(key)[1]
        none = jnp.zeros(2, jnp.int32)
        return TrainState(jnp.int32(0), none, run_key, params, carried, optimiser.init(params))

    # Made on every device: nothing is sent, and a process has not to hold the devices of others.
    layout = shardings(method, jax.eval_shape(init, np.uint32(0)), mesh, sharded)
    jitted = jax.jit(
        init, out_shardings=layout, compiler_options=compile_cache.fast_compile_options()
    )
    return lambda seed: jitted(np.uint32(seed % 2**32))


def _filled_up(method: Method, carried: Carried, num_examples: int) -> Carried:
    """Rows of no example are 0, so that there may be more of them, or fewer, on other devices."""

    def fill(x: Array) -> Array:
        real = jnp.arange(len(x), dtype=jnp.int32) < num_examples
        return jnp.where(real.reshape(-1, *[1] * (x.ndim - 1)), x, jnp.zeros((), x.dtype))

    def branch(split: bool, tree: Any) -> Any:
        return jax.tree.map(fill, tree) if split else tree

    return jax.tree.map(branch, method.per_example, carried)


def shardings(method: Method, state: TrainState, mesh: Mesh, sharded: bool) -> TrainState:
    """Where a state's arrays lie: whole on every device, but for what is split.

    The devices share the rows of numbers for every example. With ``sharded`` they share the
    optimiser's state: every device keeps and computes its part, and sends the others what it makes
    of their parameters (ZeRO, stage 1).

    References:
        Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models,
        2020.
    """
    whole = jax.tree.map(lambda _: distributed.replicated_sharding(mesh), state)

    def branch(split: bool, tree: Any) -> Any:
        place = distributed.data_sharding(mesh) if split else distributed.replicated_sharding(mesh)
        return jax.tree.map(lambda _: place, tree)

    whole = whole.replace(carried=jax.tree.map(branch, method.per_example, state.carried))
    if not sharded:
        return whole
    split = jax.tree.map(lambda x: distributed.split_sharding(x.shape, mesh), state.opt_state)
    return whole.replace(opt_state=split)


def _specs(method: Method) -> tuple[TrainState, Carried]:
    """How a step's devices see a state, and what is carried on."""
    carried = jax.tree.map(
        lambda split: P(distributed.DATA_AXIS) if split else P(), method.per_example
    )
    return TrainState(P(), P(), P(), P(), carried, P()), carried


def init_variables(
    method: Method, views: Batch, num_examples: int, key: Array
) -> tuple[Any, Carried]:
    """What a run with this key starts from; of ``views`` the shapes are enough."""
    blank = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), views)
    return method.init(jax.random.split(key)[0], blank, num_examples)


def make_train_step(
    method: Method,
    optimiser: optax.GradientTransformation,
    augment: Augment,
    mesh: Mesh,
    *,
    max_skipped: int = 10,
    sharded: bool = False,
) -> Step:
    """The jitted training step: ``(state, batch) -> (state, metrics, embeddings)``.

    It donates ``state``.

    The batch is split over the mesh by examples; value, gradient and everything carried are those
    of the whole batch on one device, because every random draw is keyed by step and example.

    A step whose loss, gradient or outcome is not finite is left out: the state stays as it was, but
    for the numbers of steps and of steps skipped. After ``max_skipped`` of them in a row nothing
    changes any more, so that `make_diagnosis` can look into what went wrong.

    With ``sharded`` the optimiser's state lies as `shardings` says; the figures are the same.

    Returns:
        A function whose metrics are scalars, equal on all devices, and whose embeddings [V, B, d]
        are those the loss saw, in the order of the batch.
    """
    options = {"max_skipped": max_skipped, "sharded": sharded}
    return jax.jit(train_step(method, optimiser, augment, mesh, **options), donate_argnums=0)


def make_train_steps(
    method: Method,
    optimiser: optax.GradientTransformation,
    augment: Augment,
    mesh: Mesh,
    *,
    resident: bool,
    loop: bool = True,
    max_skipped: int = 10,
    sharded: bool = False,
) -> Steps:
    """Several training steps in one call; not compiled yet.

    The function ``(state, data, places, n) -> (state, metrics, embeddings, losses)`` takes n steps
    as `make_train_step` does. Each gathers its batch on the devices, so a call costs the host as
    much as one step. The number n is an argument of the compiled program: the same program runs
    whatever n is, and a run does not depend on how its steps are divided into calls.

    Args:
        method: as in `make_train_step`, like the other arguments.
        optimiser: likewise.
        augment: likewise.
        mesh: likewise.
        resident: whether ``data`` lies whole on every device, or split over them.
        loop: False gives a function of one step, number n of ``places``, counted from 0.
        max_skipped: as in `make_train_step`.
        sharded: likewise.

    Returns:
        A function to be jitted. ``data`` holds examples, with their "index" in the data set;
        ``places`` [k, B] int32 says which of the examples on its device make up to k batches, and
        is split over the devices along its second axis; ``n`` <= k. Metrics and embeddings are
        those of the last step, and the first n of ``losses`` [k] those of all of them.
    """
    options = {"max_skipped": max_skipped, "sharded": sharded}
    step = train_step(method, optimiser, augment, mesh, **options)
    each = P(distributed.DATA_AXIS)
    gather = distributed.spmd(distributed.take_rows, mesh, (P() if resident else each, each), each)

    def take(state: TrainState, data: Batch, places: Array) -> tuple[Any, Any, Array]:
        return step(state, gather(data, places))

    def steps(state: TrainState, data: Batch, places: Array, n: Array) -> Any:
        def body(i: Array, carry: Any) -> Any:
            state, _, _, losses = carry
            state, metrics, embeddings = take(state, data, places[i])
            return state, metrics, embeddings, losses.at[i].set(metrics["loss"])

        _, metrics, embeddings = jax.eval_shape(take, state, data, places[0])
        blank = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), (metrics, embeddings))
        losses = jnp.zeros(len(places), metrics["loss"].dtype)
        return lax.fori_loop(0, n, body, (state, *blank, losses))

    def one_step(state: TrainState, data: Batch, places: Array, i: Array) -> Any:
        state, metrics, embeddings = take(state, data, places[i])
        return state, metrics, embeddings, metrics["loss"][None]

    return steps if loop else one_step


def train_step(
    method: Method,
    optimiser: optax.GradientTransformation,
    augment: Augment,
    mesh: Mesh,
    *,
    max_skipped: int,
    sharded: bool,
) -> Step:
    """The step of `make_train_step`, not compiled."""
    axis = distributed.DATA_AXIS

    def local(state: TrainState, batch: Batch) -> Any:
        _, grads, metrics, carried, embeddings = _gradient(method, augment, state, batch)
        # Losses take a row of NaN for one of zeros, so the embeddings are looked at themselves.
        lost = collectives.sum(jnp.sum(~jnp.isfinite(embeddings), dtype=jnp.int32), axis)
        return grads, metrics, carried, lost, embeddings

    of_state, of_carried = _specs(method)
    out = (P(), P(), of_carried, P(), P(None, axis))
    gradient = distributed.spmd(local, mesh, (of_state, P(axis)), out)

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, Array], Array]:
        grads, metrics, carried, lost, embeddings = gradient(state, batch)
        grads = _in_order(grads)
        updates, opt_state = optimiser.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        outcome = metrics["loss"], grads, params, opt_state, carried.batch_stats
        finite = _all_finite(outcome) & (lost == 0)
        carried = method.after(params, carried, state.step)

        total, in_a_row = state.skipped
        stopped = in_a_row >= max_skipped
        new, old = (params, carried, opt_state), (state.params, state.carried, state.opt_state)
        kept = jax.tree.map(lambda a, b: jnp.where(finite & ~stopped, a, b), new, old)
        one = jnp.where(stopped, 0, 1)
        total = total + jnp.where(finite, 0, one)
        skipped = jnp.stack([total, jnp.where(finite & ~stopped, 0, in_a_row + one)])
        state = TrainState(state.step + one, skipped, state.key, *kept)
        metrics |= {"skipped_steps": skipped[0], "skipped_in_a_row": skipped[1]}
        return (
            lax.with_sharding_constraint(state, shardings(method, state, mesh, sharded)),
            metrics,
            embeddings,
        )

    return step


def make_diagnosis(
    method: Method, augment: Augment, mesh: Mesh
) -> Callable[[TrainState, Batch], dict[str, dict[str, tuple[Array, Array]]]]:
    """The jitted ``(state, batch) -> {what: {module: (norm, not_finite)}}`` of a step.

    What there is of a step, in the order in which it comes to be: parameters, statistics, views,
    embeddings, the loss' terms, the gradient; of each module the Euclidean norm and how many
    numbers are not finite.
    """
    axis = distributed.DATA_AXIS

    def diagnose(state: TrainState, batch: Batch) -> Any:
        views, grads, metrics, _, embeddings = _gradient(method, augment, state, batch)
        own = {"views": _measures(views), "embeddings": _measures({"of all views": embeddings})}
        found = {
            "parameters": _measures(state.params),
            "statistics": _measures(state.carried.batch_stats),
            **collectives.sum(own, axis),
            "loss": _measures(metrics),
            "gradient": _measures(grads),
        }
        return {
            what: {name: (jnp.sqrt(squares), count) for name, (squares, count) in modules.items()}
            for what, modules in found.items()
        }

    return jax.jit(distributed.spmd(diagnose, mesh, (_specs(method)[0], P(axis)), P()))


def _measures(tree: Any) -> dict[str, tuple[Array, Array]]:
    """Of each module of a network, or array: sum of squares, and how many are not finite."""
    found: dict[str, tuple[Array, Array]] = {}
    for path, x in jax.tree_util.tree_leaves_with_path(tree):
        name = "/".join(jax.tree_util.keystr(path, simple=True, separator="/").split("/")[:2])
        squares, count = found.get(name, (jnp.float32(0), jnp.int32(0)))
        x = x.astype(jnp.float32)
        count += jnp.sum(~jnp.isfinite(x), dtype=jnp.int32)
        found[name] = squares + jnp.sum(x**2), count
    return found


def _gradient(method: Method, augment: Augment, state: TrainState, batch: Batch) -> Any:
    """Of the whole batch: views, gradient, metrics, what is carried on, embeddings."""
    augment_key, objective_key = jax.random.split(jax.random.fold_in(state.key, state.step))
    views = augment(augment_key, batch["input"], batch["index"])
    gradient = jax.value_and_grad(method.loss, has_aux=True)
    (loss, (carried, metrics, embeddings)), grads = gradient(
        state.params,
        state.carried,
        {**batch, **views},
        step=state.step,
        key=objective_key,
        axis_name=distributed.DATA_AXIS,
    )
    # The mean of the local gradients: see parallel.py.
    grads, metrics = collectives.mean((grads, {"loss": loss, **metrics}), distributed.DATA_AXIS)
    return views, grads, metrics, carried, embeddings


def _in_order(grads: Any) -> Any:
    """The same, lying in memory as parameters do.

    A GPU's convolutions give the gradient of a kernel in an order of their own. XLA would compute
    the optimiser's step in it, and turn parameters and moments there and back.
    """

    def own(x: Array) -> Array:
        return with_layout_constraint(x, Layout(major_to_minor=tuple(range(x.ndim))))

    return lax.optimization_barrier(jax.tree.map(own, grads))


def _all_finite(tree: Any) -> Array:
    """Whether all numbers of a tree are finite; one reduction for all arrays of a shape."""
    alike: dict[tuple[int, ...], Array] = {}
    for x in jax.tree.leaves(tree):
        if jnp.issubdtype(x.dtype, jnp.floating):
            alike[x.shape] = alike.get(x.shape, True) & jnp.isfinite(x)
    each = jnp.stack([jnp.all(found) for found in alike.values()])
    # The least of them by a sort, which XLA fuses with nothing: what is fused would be computed
    # anew for every array that waits for it, and takes ten times as long to compile.
    return jnp.sort(each)[0]
