"""Training steps: equal on any number of devices, compiled once, skipped if not finite."""

import logging
from functools import partial
from importlib import import_module
from typing import Any

import jax
import numpy as np
import optax
import pytest
from jax import numpy as jnp
from marks import long_except
from method_cases import as_numpy

from jaxssl import distributed
from jaxssl.augment.views import make_views
from jaxssl.methods.base import Carried, Method
from jaxssl.models import convnet
from jaxssl.models.encoder import Encoder
from jaxssl.models.heads import MLP
from jaxssl.training import optim
from jaxssl.training.state import (
    make_diagnosis,
    make_init,
    make_train_step,
    make_train_steps,
)

long = pytest.mark.long
SHARDINGS = ("none", "optimizer", "all")
# name -> method, settings of the method, loss, settings of the loss
RUNS = {
    "auc_cl": ("siamese", {}, "auc_cl", {}),
    "decl": ("siamese", {}, "decl", {"weight": "alternate"}),
    "mmcl": ("siamese", {}, "mmcl", {"num_steps": 20}),
    "moco_v3": ("momentum", {"momentum": 0.9}, "info_nce", {}),
    "xbm": ("siamese", {"queue_size": 20}, "nt_xent", {}),
}
STEPS, BATCH, NUM_EXAMPLES = 2, 8, 24  # Each further step multiplies rounding differences.


def noisy(size):
    """A recipe that compiles quickly."""

    def view(key, image):
        return (image[:size, :size] + jax.random.uniform(key, (size, size, 1))) / 2

    return view


def batch_at(step: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(step)
    return {
        "input": rng.integers(0, 256, (BATCH, 8, 8, 1), np.uint8),
        "label": rng.integers(0, 3, BATCH, np.int32),
        "index": rng.choice(NUM_EXAMPLES, BATCH, replace=False).astype(np.int32),
    }


def parts(name: str):
    method, settings, loss, hyper = RUNS[name]
    predictor = MLP(8, 6, 2) if name == "moco_v3" else None
    net = convnet.net(widths=(4, 8), strides=(2, 2))
    encoder = Encoder(net, MLP(8, 6, 2), predictor)
    objective = import_module(f"jaxssl.losses.{loss}").objective(**hyper)
    make = import_module(f"jaxssl.methods.{method}").method
    # Adam would turn the rounding error of a vanishing gradient into a full step.
    augment = make_views([noisy(8)] * 2)
    return make(encoder, objective, **settings), optax.sgd(0.05, momentum=0.9), augment


def run(name: str, devices: int) -> Any:
    """Return the final state as NumPy, the losses, and the embeddings of the first step."""
    method, optimiser, augment = parts(name)
    mesh = distributed.make_mesh(jax.devices()[:devices])
    state = make_init(method, optimiser, augment, batch_at(0), NUM_EXAMPLES, mesh)(0)
    step = make_train_step(method, optimiser, augment, mesh)
    batches = [distributed.shard(batch_at(i), mesh) for i in range(STEPS)]
    losses, first = [], None
    for batch in batches:
        state, metrics, embeddings = step(state, batch)
        losses.append(float(metrics["loss"]))
        first = np.asarray(embeddings) if first is None else first
    return as_numpy(state), losses, first


# whole_step_test.py tests steps of the other methods and losses on eight devices.
@pytest.mark.parametrize("name", long_except(("auc_cl",), ("auc_cl", "moco_v3", "mmcl", "xbm")))
def test_training_steps_do_not_depend_on_the_number_of_devices(name):
    (state, losses, embeddings), eight = run(name, 1), run(name, 8)
    np.testing.assert_allclose(eight[1], losses, rtol=1e-4)
    np.testing.assert_allclose(eight[2], embeddings, rtol=1e-4, atol=1e-5)

    def close(a, b):
        # Sums over the batch cancel, so rounding errors are relative to the largest entry.
        largest = np.abs(np.where(np.isfinite(b), b, 0)).max(initial=1)
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=5e-5 * largest)

    jax.tree.map(close, eight[0], state)


@pytest.mark.long
@pytest.mark.parametrize(
    ("run", "optimiser"),
    [("moco_v3", "lars"), pytest.param("auc_cl", "adamw", marks=long)],
)
def test_sharded_training_state_takes_the_same_steps(run, optimiser):
    method, _, augment = parts(run)
    settings = {"weight_decay": 0.01, "momentum": 0.9, "clip_norm": 1}
    optimiser = optim.optimiser(optimiser, lambda _: jnp.float32(0.01), **settings)
    mesh, actual = distributed.make_mesh(), {}
    start = method, optimiser, augment, batch_at(0), NUM_EXAMPLES, mesh
    for sharding in SHARDINGS:
        state = make_init(*start, sharding=sharding)(0)
        step = make_train_step(method, optimiser, augment, mesh, sharding=sharding)
        for i in range(STEPS):
            state, _, _ = step(state, distributed.shard(batch_at(i), mesh))
        actual[sharding] = as_numpy(state)
        for part in (state.opt_state, state.params, state.carried.target):
            split = {"none": False, "optimizer": part is state.opt_state, "all": True}[sharding]
            for leaf in jax.tree.leaves(part):
                divisible = leaf.ndim > 1 and any(n % mesh.size == 0 for n in leaf.shape)
                assert leaf.sharding.is_fully_replicated != (split and divisible)
    close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    for sharding in SHARDINGS[1:]:
        jax.tree.map(close, actual[sharding], actual["none"])


def test_training_step_compiles_once_and_donates_the_state(caplog):
    method, optimiser, augment = parts("moco_v3")
    mesh = distributed.make_mesh()
    state = make_init(method, optimiser, augment, batch_at(0), NUM_EXAMPLES, mesh)(0)
    step = make_train_step(method, optimiser, augment, mesh)
    old = state
    state, _, _ = step(state, distributed.shard(batch_at(0), mesh))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves((old.params, old.carried)))
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        for i in range(1, STEPS):
            state, _, _ = step(state, distributed.shard(batch_at(i), mesh))
        # No later step is compiled. A new function shows that the log reports compilations.
        assert "Compiling" not in caplog.text
        jax.jit(lambda x: x + len(caplog.text) + 12345)(1.0)
        assert "Compiling" in caplog.text


@pytest.fixture(scope="module")
def spoilt():
    """A step function for a run in which the views of example 0 are not finite."""
    method, optimiser, _ = parts("auc_cl")

    def view(key, image):
        return jnp.where(image[0, 0, 0] == 0, jnp.nan, noisy(8)(key, image))

    augment = make_views([view] * 2)
    mesh = distributed.make_mesh()
    step = make_train_step(method, optimiser, augment, mesh, max_skipped=2)
    init = make_init(method, optimiser, augment, batch_at(0), NUM_EXAMPLES, mesh)

    def batch(number, bad):
        made = batch_at(number)
        made["input"] = np.maximum(made["input"], 1)
        if bad:
            made["input"][3] = 0
        return distributed.shard(made, mesh)

    return partial(init, 0), step, batch, make_diagnosis(method, augment, mesh)


def test_nonfinite_step_is_skipped_and_counted(spoilt):
    start, step, batch, _ = spoilt
    state = start()
    state, _, _ = step(state, batch(0, bad=False))
    before = as_numpy(state)
    state, metrics, _ = step(state, batch(1, bad=True))
    assert metrics["skipped_steps"] == metrics["skipped_in_a_row"] == 1
    after = as_numpy(state)
    counts = {"step": after.step, "skipped": after.skipped}
    jax.tree.map(np.testing.assert_array_equal, after, before.replace(**counts))
    assert after.step == 2 and after.skipped.tolist() == [1, 1]
    state, metrics, _ = step(state, batch(2, bad=False))
    assert np.isfinite(metrics["loss"])
    assert state.step == 3 and state.skipped.tolist() == [1, 0]
    assert (metrics["skipped_steps"], metrics["skipped_in_a_row"]) == (1, 0)
    same = jax.tree.map(np.array_equal, as_numpy(state).params, after.params)
    assert not any(jax.tree.leaves(same))


def one_view(key, x, index):
    return {"views": x[None]}


@pytest.fixture(scope="module")
def fragile():
    """A step whose loss, gradient, statistics or embeddings can be spoilt one at a time."""

    def loss(params, carried, batch, *, step, key, axis_name):
        value, root, statistic, embedding = batch["views"].mean((0, 1))
        total = params["p"] * value + jnp.sqrt(params["p"] * root)  # infinite gradient at root = 0
        z = embedding * jnp.ones((2, len(batch["index"]), 3))
        return total, (Carried({"s": statistic}, (), carried.memory + 1), {}, z)

    def init(key, batch, num_examples):
        return {"p": jnp.ones(())}, Carried({"s": jnp.ones(())}, (), jnp.ones(()))

    method = Method(Encoder(MLP(1, 1, 1), MLP(1, 1, 1)), init, loss)
    mesh = distributed.make_mesh(jax.devices()[:1])
    example = {"input": np.ones((2, 4), np.float32), "index": np.arange(2, dtype=np.int32)}
    start = make_init(method, optax.sgd(0.1), one_view, example, 2, mesh)
    step = make_train_step(method, optax.sgd(0.1), one_view, mesh)
    return lambda row: step(start(0), {**example, "input": np.array([row, row], np.float32)})[0]


@pytest.mark.parametrize(
    ("place", "value"),
    [(0, 1), (0, np.inf), (1, 0), (2, np.nan), (3, np.inf)],
    ids=["nothing", "loss", "gradient", "statistics", "embeddings"],
)
def test_step_is_skipped_if_one_of_its_results_is_not_finite(fragile, place, value):
    row, skipped = np.ones(4), value != 1
    row[place] = value
    state = fragile(row)
    assert state.skipped.tolist() == [skipped, skipped]
    assert (state.params["p"] == 1) == bool(skipped)
    assert state.carried.batch_stats["s"] == 1
    assert state.carried.memory == (1 if skipped else 2)


def test_parameters_are_constrained_after_each_update():
    def loss(params, carried, batch, *, step, key, axis_name):
        value = -params["p"] * batch["views"].mean()
        return value, (carried, {}, jnp.ones((2, 1, 3)))

    init = lambda key, batch, n: ({"p": jnp.ones(())}, Carried({}, (), ()))  # noqa: E731
    constrain = lambda params, step: {"p": jnp.minimum(params["p"], jnp.float32(2 - step))}  # noqa: E731
    method = Method(Encoder(MLP(1, 1, 1), MLP(1, 1, 1)), init, loss, constrain)
    mesh = distributed.make_mesh(jax.devices()[:1])
    batch = {"input": np.full((1, 4), 9, np.float32), "index": np.zeros(1, np.int32)}
    state = make_init(method, optax.sgd(1.0), one_view, batch, 1, mesh)(0)
    step = make_train_step(method, optax.sgd(1.0), one_view, mesh)
    for bound in (1, 0):
        state, _, _ = step(state, batch)
        assert state.params["p"] == bound


@pytest.mark.parametrize("part", ["parameters", "optimiser"])
def test_step_is_skipped_if_the_update_is_not_finite(part):
    def loss(params, carried, batch, *, step, key, axis_name):
        value = params["p"] * batch["views"].mean()
        return value, (carried, {"mean": value}, jnp.ones((2, 1, 3)))

    def spoil(updates, state, params=None) -> Any:
        bad = jax.tree.map(lambda g: g * jnp.inf, updates)
        return (bad, state) if part == "parameters" else (updates, bad)

    optimiser = optax.GradientTransformation(lambda params: params, spoil)
    init = lambda key, batch, n: ({"p": jnp.ones(())}, Carried({}, (), ()))  # noqa: E731
    method = Method(Encoder(MLP(1, 1, 1), MLP(1, 1, 1)), init, loss)
    mesh = distributed.make_mesh(jax.devices()[:4])
    batch = {"input": np.arange(1, 5, dtype=np.float32), "index": np.arange(4, dtype=np.int32)}
    state = make_init(method, optimiser, one_view, batch, 4, mesh)(0)
    step = make_train_step(method, optimiser, one_view, mesh)
    state, metrics, _ = step(state, distributed.shard(batch, mesh))
    assert state.skipped.tolist() == [1, 1] and state.params["p"] == 1
    assert metrics["mean"] == 2.5  # mean of the values 1 to 4, of which each device has one


def test_training_step_checks_each_array_for_finiteness_once(spoilt):
    start, step, batch, _ = spoilt
    state = start()
    text = step.lower(state, batch(0, bad=False)).compile().as_text()
    checked = state.params, state.params, state.opt_state, state.carried.batch_stats
    arrays = sum(jnp.issubdtype(x.dtype, jnp.floating) for x in jax.tree.leaves(checked))
    # Loss and embeddings are checked too, hence the 2. A check fused into the update of each array
    # would be computed once for each pair of arrays.
    assert 0 < text.count(" is-finite(") <= arrays + 2


@pytest.mark.long
@pytest.mark.parametrize("devices", [pytest.param(1, marks=long), 8])
def test_several_steps_per_call_equal_single_steps_bit_for_bit(devices, caplog):
    method, optimiser, augment = parts("decl")  # DeCL has per-example memory and a schedule.
    mesh = distributed.make_mesh(jax.devices()[:devices])
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (NUM_EXAMPLES, 8, 8, 1), np.uint8)
    index = np.arange(NUM_EXAMPLES, dtype=np.int32)
    data = {"input": images, "label": rng.integers(0, 3, NUM_EXAMPLES, np.int32), "index": index}
    data = distributed.replicate(data, mesh)
    order = np.stack([rng.permutation(NUM_EXAMPLES)[:BATCH] for _ in range(4)]).astype(np.int32)
    step = make_train_step(method, optimiser, augment, mesh)
    steps = make_train_steps(lambda _: step, mesh, resident=True)
    init = make_init(method, optimiser, augment, batch_at(0), NUM_EXAMPLES, mesh)

    def train(calls):
        state = init(0)
        actual, done, embeddings = [], 0, None
        for n in calls:
            rows = order[done:][[*range(n)] + [n - 1] * (4 - n)]
            index = distributed.shard_rows(rows, mesh, axis=1)
            state, metrics, embeddings, losses = steps(state, data, index, n)
            actual += list(np.asarray(losses)[:n])
            assert metrics["loss"] == actual[-1]
            done += n
        return as_numpy(state), actual, np.asarray(embeddings)

    expected = train([1, 1, 1, 1])
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        for calls in ([4], [1, 3]):
            jax.tree.map(np.testing.assert_array_equal, train(calls), expected)
        assert "Compiling" not in caplog.text
        jax.jit(lambda x: x + 1)(1.0)  # The log reports a new function.
        assert "Compiling" in caplog.text

    state = init(0)
    for index, loss in zip(order, expected[1], strict=True):
        rows = distributed.take_rows(data, distributed.shard_rows(index, mesh))
        state, metrics, _ = step(state, rows)
        np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)


def test_training_state_stays_constant_after_too_many_skipped_steps_in_a_row(spoilt):
    start, step, batch, diagnose = spoilt
    state = start()
    state, _, _ = step(state, batch(0, bad=False))
    for _ in range(2):
        state, _, _ = step(state, batch(1, bad=True))
    stopped = as_numpy(state)
    assert stopped.step == 3 and stopped.skipped.tolist() == [2, 2]
    state, metrics, _ = step(state, batch(2, bad=False))
    jax.tree.map(np.testing.assert_array_equal, as_numpy(state), stopped)
    assert metrics["skipped_in_a_row"] == 2

    state = state.replace(step=state.step - state.skipped[1])
    actual = jax.device_get(diagnose(state, batch(1, bad=True)))
    counts = {what: sum(n for _, n in modules.values()) for what, modules in actual.items()}
    assert counts["parameters"] == counts["statistics"] == 0
    assert counts["views"] == 2 * 8 * 8 and counts["embeddings"] == 2 * BATCH * 6
    kernel = stopped.params["projector"]["Dense_0"]
    norm = np.sqrt(sum(np.sum(np.square(x)) for x in jax.tree.leaves(kernel)))
    np.testing.assert_allclose(actual["parameters"]["projector/Dense_0"][0], norm, rtol=1e-5)
