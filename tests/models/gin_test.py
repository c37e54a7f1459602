"""The graph isomorphism network against float64 loops, over packings, devices and dtypes."""

import re
from functools import cache, partial

import jax
import numpy as np
import pytest
from graph_cases import NUM_TAGS, graph, packed, random_graphs
from jax import numpy as jnp
from jax.sharding import PartitionSpec as P

from jaxssl import collectives, distributed
from jaxssl.augment.graph import as_float
from jaxssl.kinds.graph import Room, pack
from jaxssl.models import gin
from jaxssl.models._layers import MaskedBatchNorm
from jaxssl.models.transfer import FixedNorms, Transfer

WIDTH, LAYERS = 5, 3
NET = gin.net(width=WIDTH, layers=LAYERS)
# Graphs of different sizes, so that devices hold different numbers of nodes. One has no edge.
GRAPHS = [graph(1, [], [2]), *random_graphs(3, most=3), *random_graphs(4, least=9, most=14)]
close = partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-5)


@cache
def variables():
    """Random variables, including the running statistics, which otherwise are 0 and 1."""
    example = jax.tree.map(jnp.asarray, as_float(packed(GRAPHS[:2])))
    shapes = jax.eval_shape(partial(NET.init, train=False), jax.random.key(0), example)
    rng = np.random.default_rng(0)

    def draw(path, leaf):
        x = rng.normal(size=leaf.shape) * 0.4
        return np.float32(np.exp(x) if path[-1].key in ("scale", "var") else x)

    return jax.tree_util.tree_map_with_path(draw, shapes)


@partial(jax.jit, static_argnums=2)
def apply(tree, rows, train):
    """Return features and updated statistics."""
    return NET.apply(tree, as_float(rows), train=train, mutable=["batch_stats"])


def oracle(tree, graphs, train):
    """Return features [n, layers * width] and updated statistics, by float64 loops over nodes."""
    tree = jax.tree.map(np.float64, tree)
    h = [np.eye(NUM_TAGS)[tag] for one in graphs for tag in one.tag]
    of = [number for number, one in enumerate(graphs) for _ in one.tag]
    first = np.cumsum([0, *(len(one.tag) for one in graphs)])
    edges = [(a + f, b + f) for one, f in zip(graphs, first, strict=False) for a, b in one.edge]
    features, moved = np.zeros((len(graphs), 0)), {}
    for layer in range(LAYERS):
        total = [x.copy() for x in h]
        for a, b in edges:
            total[a] += h[b]
            total[b] += h[a]
        for number in (2 * layer, 2 * layer + 1):
            dense = tree["params"][f"Dense_{number}"]
            total = [np.maximum(x @ dense["kernel"] + dense["bias"], 0) for x in total]
        name = f"MaskedBatchNorm_{layer}"
        norm, running = tree["params"][name], tree["batch_stats"][name]
        mean, var = running["mean"], running["var"]
        if train:
            mean = sum(total) / len(total)
            var = sum((x - mean) ** 2 for x in total) / len(total)
            moved[name] = {
                "mean": 0.9 * running["mean"] + 0.1 * mean,
                "var": 0.9 * running["var"] + 0.1 * var,
            }
        h = [norm["scale"] * (x - mean) / np.sqrt(var + 1e-5) + norm["bias"] for x in total]
        sums = np.zeros((len(graphs), WIDTH))
        for x, number in zip(h, of, strict=True):
            sums[number] += x
        features = np.concatenate([features, sums], axis=1)
    return features, moved if train else tree["batch_stats"]


def test_frozen_norms_use_running_statistics_in_training():
    rows = jax.tree.map(jnp.asarray, as_float(packed(GRAPHS)))
    fixed = FixedNorms(NET, Transfer(freeze=("net",)))
    features, updated = fixed.apply(variables(), rows, train=True, mutable=["batch_stats"])
    np.testing.assert_array_equal(features, NET.apply(variables(), rows, train=False))
    jax.tree.map(np.testing.assert_array_equal, updated["batch_stats"], variables()["batch_stats"])


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize(("rows", "more"), [(1, (0, 0)), (1, (11, 9)), (2, (0, 0)), (8, (3, 1))])
def test_gin_equals_float64_loops_for_any_padding_and_packing(rows, more, train):
    actual, moved = apply(variables(), packed(GRAPHS, rows, more=more), train)
    expected, stats = oracle(variables(), GRAPHS, train)
    assert actual.shape == (len(GRAPHS), WIDTH * LAYERS) and actual.dtype == jnp.float32
    close(actual, expected)
    jax.tree.map(close, moved["batch_stats"], stats)


def test_gin_kernels_are_initialised_as_in_pytorch():
    """Uniform in [-1 / sqrt(fan_in), 1 / sqrt(fan_in)]."""
    init = jax.jit(partial(gin.net(width=64, layers=1).init, train=False))
    kernel = init(jax.random.key(0), as_float(packed(GRAPHS)))["params"]["Dense_1"]["kernel"]
    bound = 64**-0.5
    assert 0.99 * bound < np.abs(kernel).max() <= bound
    np.testing.assert_allclose(np.var(kernel), bound**2 / 3, rtol=0.05)


WEIGHT = np.random.default_rng(3).normal(size=(1, WIDTH * LAYERS)).astype(np.float32)


def loss_of(features, xp=jnp):
    """A mean over graphs that depends on all features."""
    return xp.mean(xp.sum(xp.sin(features) * WEIGHT, axis=1))


def step(tree, rows, axis_name=None):
    """Return gradients, features and statistics in training."""

    def loss(params):
        updated = {**tree, "params": params}
        options = {"train": True, "axis_name": axis_name, "mutable": ["batch_stats"]}
        out, moved = NET.apply(updated, as_float(rows), **options)
        return loss_of(out), (out, moved["batch_stats"])

    grads, (out, stats) = jax.grad(loss, has_aux=True)(tree["params"])
    return collectives.mean(grads, axis_name), out, stats


@cache
def on_devices(devices):
    """Return gradients, features and statistics, with one row of graphs per device."""
    mesh, axis = distributed.make_mesh(jax.devices()[:devices]), distributed.DATA_AXIS
    local = partial(step, axis_name=axis)
    run = jax.jit(distributed.spmd(local, mesh, (P(), P(axis)), (P(), P(axis), P())))
    return jax.device_get(run(variables(), distributed.shard(packed(GRAPHS, devices), mesh)))


@pytest.mark.parametrize("devices", [4, pytest.param(8, marks=pytest.mark.long)])
def test_gin_on_devices_with_unequal_node_counts_equals_one_device(devices):
    nodes = (packed(GRAPHS, devices)["graph"] < len(GRAPHS) // devices).sum(1)
    assert nodes.max() > 2 * nodes.min()
    grads, out, stats = on_devices(devices)
    one = on_devices(1)
    close(out, one[1])
    jax.tree.map(close, stats, one[2])

    def agrees(a, b):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5 * np.abs(b).max())

    jax.tree.map(agrees, grads, one[0])


def test_gin_gradient_equals_finite_differences():
    """The differences are of the float64 oracle."""
    grads = on_devices(1)[0]
    rng, tree, step = np.random.default_rng(0), jax.tree.map(np.float64, variables()), 1e-5
    for _ in range(3):
        towards = jax.tree.map(lambda x: rng.normal(size=x.shape), tree["params"])
        ends = []
        for sign in (step, -step):
            moved = jax.tree.map(lambda x, d, s=sign: x + s * d, tree["params"], towards)
            features, _ = oracle({**tree, "params": moved}, GRAPHS, train=True)
            ends.append(loss_of(features, np))
        slope = sum(jax.tree.leaves(jax.tree.map(lambda g, d: np.sum(g * d), grads, towards)))
        np.testing.assert_allclose(slope, (ends[0] - ends[1]) / (2 * step), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("train", [False, True])
def test_bfloat16_features_of_gin_are_bfloat16_and_close_to_float64(train):
    tree = variables()
    half = {**tree, "params": jax.tree.map(lambda x: jnp.bfloat16(x), tree["params"])}
    rows = as_float(packed(GRAPHS, 2))
    rows["x"] = rows["x"].astype(jnp.bfloat16)
    run = jax.jit(partial(NET.apply, train=train, mutable=["batch_stats"]))
    actual, moved = run(half, rows)
    expected, stats = oracle(tree, GRAPHS, train)
    assert actual.dtype == jnp.bfloat16
    assert {x.dtype.name for x in jax.tree.leaves(moved)} == {"float32"}
    error = np.linalg.norm(np.float64(actual) - expected) / np.linalg.norm(expected)
    assert 1e-4 < error < 0.03
    near = partial(np.testing.assert_allclose, rtol=0.03, atol=0.03)
    jax.tree.map(near, moved, {"batch_stats": stats})


def test_bfloat16_sums_of_a_hub_with_many_neighbours_are_float32():
    """In bfloat16 a sum of ones ends at 256, because 256 + 1 is 256."""
    leaves = 1024
    edge = jnp.array([(0, leaf) for leaf in range(1, leaves + 1)])
    add = jax.jit(lambda h: gin._sum_neighbours(h, edge))
    total, gradient = jax.vjp(add, jnp.ones((leaves + 1, 1), jnp.bfloat16))
    assert total.dtype == jnp.bfloat16 and total[0] == leaves
    assert gradient(jnp.ones_like(total))[0][0] == leaves


NOTHING = graph(0, [])


@pytest.mark.parametrize("graphs", [[NOTHING] * 4, [graph(2, [])] * 4, [NOTHING, graph(1, [])] * 2])
def test_gin_gives_finite_features_and_gradients_for_empty_graphs(graphs):
    results = jax.jit(step)(variables(), pack(graphs, 2, NUM_TAGS, Room(8, 8)))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(results))
    empty = [not len(one.tag) for one in graphs]
    assert not np.asarray(results[1])[empty].any()


def test_masked_batch_norm_ignores_masked_rows():
    """The masked rows hold 0 or 1e6."""
    rng = np.random.default_rng(0)
    x, mask = rng.normal(size=(9, 4)).astype(np.float32), np.arange(9) % 3 != 1
    norm = MaskedBatchNorm(use_running_average=False)
    tree = norm.init(jax.random.key(0), x, mask)
    run = jax.jit(partial(norm.apply, mutable=["batch_stats"]))
    assert not tree["batch_stats"]["mean"].any() and (tree["batch_stats"]["var"] == 1).all()
    for other in (0.0, 1e6):
        filled = np.where(mask[:, None], x, np.float32(other))
        actual, moved = run(tree, filled, mask)
        centred = (x[mask] - x[mask].mean(0)) / np.sqrt(x[mask].var(0) + 1e-5)
        close(actual[mask], centred)
        close(moved["batch_stats"]["mean"], 0.1 * x[mask].mean(0))
        close(moved["batch_stats"]["var"], 0.9 + 0.1 * x[mask].var(0))


@pytest.mark.parametrize("shape", [(2, 8, 8, 3), (2, 4, 8, 8, 3), (2, 77)])
def test_gin_refuses_images_videos_and_tokens_by_their_shape(shape):
    with pytest.raises(ValueError, match=re.escape(f"takes graphs, got an array {[*shape]}; set")):
        NET.init(jax.random.key(0), jnp.zeros(shape), train=False)
