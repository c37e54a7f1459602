"""Views of graphs: operations against loops, distribution of subgraphs, independent of packing."""

from collections import Counter
from functools import partial

import jax
import numpy as np
import pytest
from graph_cases import NUM_TAGS, graph, neighbours_of, packed, random_graphs, reached, unpacked
from jax import numpy as jnp
from scipy import stats
from scipy.sparse import csgraph

from jaxssl.augment import graph as ops
from jaxssl.augment import recipes
from jaxssl.kinds.graph import Room, pack, room_for, sizes_of
from jaxssl.models import gin

GRAPHS = [graph(1, [], [1]), *random_graphs(5, least=2, most=12), graph(4, [], [0, 1, 2, 0])]
GRAPHS += [graph(0, []), graph(10, [(i, j) for i in range(10) for j in range(i)])]
SHARES = (0.0, 0.1, 0.3, 0.5, 0.8, 1.0)
each_share = pytest.mark.parametrize("share", SHARES)


@pytest.fixture(scope="module")
def row():
    """Return all graphs in one row with padding, "x" in float32."""
    rows = packed(GRAPHS, 1, more=(5, 7))
    return ops.as_float({name: jnp.asarray(x[0]) for name, x in rows.items()})


def uniform(seed, *shape):
    return np.random.default_rng(seed).random(shape).astype(np.float32)


@partial(jax.jit, static_argnums=(0, 3))
def operation(name, drawn, row, share, add=False):
    """Apply one of the four operations, compiled once per fraction."""
    at = ops.layout(row)
    if name == "drop_nodes":
        return ops.drop_nodes(*drawn, row, share)
    if name == "mask_attributes":
        return ops.mask_attributes(*drawn, row, share)
    if name == "subgraph":
        return ops.subgraph(*drawn, row, at, share)
    return ops.perturb_edges(*drawn, row, at, share, name == "perturb_edges, add")


def first_nodes():
    sizes = [len(g.tag) for g in GRAPHS]
    return np.cumsum(sizes) - sizes


def smallest(u, count):
    """Return the indices of the ``count`` smallest numbers."""
    return set(sorted(range(len(u)), key=lambda i: (u[i], i))[:count])


def floor_of(share, n):
    """Return floor(share * n) in exact arithmetic, for multiples of 1/10."""
    return round(10 * share) * n // 10


def test_rank_equals_scipy_ordinal_ranks_per_group():
    rng = np.random.default_rng(0)
    for _ in range(5):
        values = rng.integers(0, 6, 40).astype(np.float32)  # few distinct values, so many ties
        group = rng.integers(0, 5, 40).astype(np.int32)
        actual = jax.jit(ops.rank)(values, group)
        for one in range(5):
            here = np.flatnonzero(group == one)
            expected = stats.rankdata(values[here], method="ordinal") - 1
            np.testing.assert_array_equal(actual[here], expected)


@each_share
def test_drop_nodes_and_mask_attributes_choose_nodes_with_the_smallest_random_numbers(row, share):
    u, noise = uniform(2, len(row["graph"])), uniform(3, *row["x"].shape)
    dropped = operation("drop_nodes", (u,), row, share)
    masked = operation("mask_attributes", (u, noise), row, share)
    expected = {name: np.array(x) for name, x in row.items()}
    for first, one in zip(first_nodes(), GRAPHS, strict=True):
        n = len(one.tag)
        for place in smallest(u[first : first + n], floor_of(share, n)):
            expected["graph"][first + place] = len(GRAPHS)
            expected["x"][first + place] = noise[first + place]
    for name, x in row.items():
        np.testing.assert_array_equal(dropped[name], expected[name] if name == "graph" else x)
        np.testing.assert_array_equal(masked[name], expected[name] if name == "x" else x)


def test_fractions_in_percent_select_their_floor_of_nodes():
    row = {"graph": jnp.zeros(100, jnp.int32), "size": jnp.array([100])}
    drop = jax.jit(lambda u, share: ops.drop_nodes(u, row, share)["graph"])
    dropped = [np.sum(drop(uniform(7, 100), percent / 100) == 1) for percent in range(101)]
    assert dropped == list(range(101))


@each_share
@pytest.mark.parametrize("add", [False, True])
def test_perturb_edges_drops_edges_and_adds_random_edges(row, share, add):
    # For the random number just below 1, the drawn node must be the last one.
    u = uniform(4, len(row["edge"]), 3)
    u[::3, 1:] = np.nextafter(np.float32(1), np.float32(0))
    actual = operation("perturb_edges" + ", add" * add, (u,), row, share)
    expected = np.array(row["edge"])
    edge = 0
    for first, one in zip(first_nodes(), GRAPHS, strict=True):
        n, m = len(one.tag), len(one.edge)
        for place in smallest(u[edge : edge + m, 0], floor_of(share, m)):
            a = min(int(u[edge + place, 1] * n), n - 1)
            others = [b for b in (*range(a + 1, n), *range(a)) if b != a]
            b = others[min(int(u[edge + place, 2] * (n - 1)), n - 2)]
            new = (first + a, first + b) if add else (len(row["graph"]),) * 2
            expected[edge + place] = new
        edge += m
    np.testing.assert_array_equal(actual["edge"], expected)
    assert not add or (actual["edge"][:edge, 0] != actual["edge"][:edge, 1]).all()
    for name in ("x", "graph", "size"):
        np.testing.assert_array_equal(actual[name], row[name])


@each_share
def test_subgraph_keeps_the_nodes_that_dijkstra_reaches_first(row, share):
    """The subgraph is also connected, and has the given size or is a whole component."""
    wait = -np.log1p(-uniform(5, len(row["graph"])))
    start = uniform(6, len(GRAPHS))
    start[0] = np.nextafter(np.float32(1), np.float32(0))
    actual = operation("subgraph", (wait, start), row, share)
    expected = np.full(len(wait), len(GRAPHS))
    for number, (first, one) in enumerate(zip(first_nodes(), GRAPHS, strict=True)):
        n = len(one.tag)
        if not n:
            continue
        near, source = neighbours_of(one), min(int(start[number] * n), n - 1)
        lengths = np.zeros((n, n))  # 0 means that there is no edge
        for a, others in near.items():
            lengths[a, list(others)] = wait[first + np.array(list(others), int)]
        times = csgraph.dijkstra(lengths, indices=source)
        order = [node for node in np.argsort(times) if times[node] < np.inf]
        kept = set(order[: max(1, floor_of(share, n))])
        assert source in kept and reached(near, source, kept) == kept
        component = reached(near, source, set(range(n)))
        assert len(kept) == min(max(1, floor_of(share, n)), len(component))
        for place in kept:
            expected[first + place] = number
    np.testing.assert_array_equal(actual["graph"], expected)


def subgraph_distribution(one, count):
    """Return the probability of each node set, growing by uniform draws from a uniform start."""
    near, n = neighbours_of(one), len(one.tag)
    states = {frozenset([start]): 1 / n for start in range(n)}
    done = Counter()
    while states:
        grown = Counter()
        for nodes, probability in states.items():
            frontier = set().union(*(near[node] for node in nodes)) - nodes
            if len(nodes) >= count or not frontier:
                done[nodes] += probability
                continue
            for node in frontier:
                grown[nodes | {node}] += probability / len(frontier)
        states = grown
    return done


# Graphs of six nodes, of which a subgraph keeps three.
DISTRIBUTIONS = {
    "cycle with chord": graph(6, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (0, 5), (1, 4)]),
    "two parts": graph(6, [(0, 1), (1, 2), (0, 2), (3, 4)]),
}
COPIES = 4000


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_random_subgraph_has_the_distribution_of_adding_neighbours_one_by_one(name):
    one = DISTRIBUTIONS[name]
    # A chi-squared test with a fixed seed.
    expected = subgraph_distribution(one, 3)
    row = {key: jnp.asarray(x[0]) for key, x in packed([one] * COPIES, num_tags=1).items()}
    recipe = recipes.graph(choices=("subgraph",), keep=0.5)
    keys = jax.random.split(jax.random.key(0), COPIES)
    actual = np.asarray(jax.jit(recipe)(keys, ops.as_float(row))["graph"])
    n = len(one.tag)
    there = actual[: COPIES * n].reshape(COPIES, n) == np.arange(COPIES)[:, None]
    counts = Counter(frozenset(np.flatnonzero(nodes).tolist()) for nodes in there)
    assert set(counts) <= set(expected)
    sets = sorted(expected, key=sorted)
    test = stats.chisquare([counts[s] for s in sets], [COPIES * expected[s] for s in sets])
    assert test.pvalue > 1e-3


ALL = dict(choices=ops.CHOICES, drop=0.3, perturb=0.4, mask=0.5, keep=0.6)
augment = jax.jit(ops.make_graph_views([recipes.graph(**ALL), recipes.graph(**ALL)]))
KEY = jax.random.key(3)


def views_of(graphs, index, rows, room=None):
    """Return the two views of each graph, as (features of its nodes, edges)."""
    k = -(-len(graphs) // rows)
    index = np.array([*index, *[0] * (rows * k - len(index))], np.int32)
    room = room or room_for(sizes_of(graphs), rows)
    views = augment(KEY, pack(graphs, rows, NUM_TAGS, room), index)["views"]
    first, second = ({name: np.asarray(x[v]) for name, x in views.items()} for v in (0, 1))
    return list(zip(unpacked(first), unpacked(second), strict=True))


@pytest.fixture(scope="module")
def many():
    """Return graphs, their indices in a data set, and their views."""
    graphs = random_graphs(24, least=2, most=12, seed=7)
    index = np.random.default_rng(0).permutation(100)[:24]
    return graphs, index, views_of(graphs, index, 1)


def assert_same_views(actual, expected):
    for views, others in zip(actual, expected, strict=True):
        for (x, edge), (y, other) in zip(views, others, strict=True):
            np.testing.assert_array_equal(x, y)
            assert edge == other


WIDE = Room(96, 200)


@pytest.mark.parametrize(
    ("rows", "room"),
    [
        pytest.param(1, Room(300, 700), marks=pytest.mark.long),
        pytest.param(4, WIDE, marks=pytest.mark.long),
        (5, None),
    ],
)
def test_graph_views_do_not_depend_on_the_packing_or_padding_of_the_batch(many, rows, room):
    graphs, index, expected = many
    assert_same_views(views_of(graphs, index, rows, room)[:24], expected)


def test_graph_views_depend_only_on_the_graph_and_its_index(many):
    graphs, index, expected = many
    order = np.random.default_rng(1).permutation(24)
    actual = views_of([graphs[i] for i in order], index[order], 4, WIDE)
    assert_same_views(actual, [expected[i] for i in order])
    assert_same_views(views_of(graphs[5:6], index[5:6], 1), expected[5:6])


def test_graph_views_differ_between_views_indices_and_keys(many):
    graphs, index, _ = many
    one = [graphs[0]] * 8 + [random_graphs(1, least=12, most=12)[0]] * 32
    actual = [str(view) for views in views_of(one, range(40), 1)[8:] for view in views]
    assert len(set(actual)) > 50
    rows = packed(graphs, 1)
    first, second = (augment(jax.random.key(seed), rows, index)["views"]["x"] for seed in (0, 1))
    assert not np.array_equal(first, second)


def test_graph_recipe_without_operations_returns_the_graph_unchanged(many):
    graphs, index, _ = many
    rows = packed(graphs, 2)
    view = jax.jit(ops.make_graph_views([recipes.graph(choices=())]))(KEY, rows, index)["views"]
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x[0], y), view, rows)
    assert view["x"].dtype == np.float32


@pytest.mark.parametrize("add", [False, True])
def test_graph_recipe_draws_operations_uniformly_and_applies_them(add):
    """The choices are recognised by their effects on a circle of ten nodes with ten chords."""
    circle = graph(10, [(i, (i + d) % 10) if i + d < 10 else ((i + d) % 10, i)
                        for i in range(10) for d in (1, 2)], [1] * 10)  # fmt: skip
    number = 800
    # drop_nodes leaves eight nodes, subgraph five.
    recipe = recipes.graph(choices=ops.CHOICES, drop=0.2, perturb=0.3, add=add, mask=0.4, keep=0.5)
    row = {name: jnp.asarray(x[0]) for name, x in packed([circle] * number).items()}
    keys = jax.random.split(jax.random.key(11), number)
    actual = jax.device_get(jax.jit(recipe)(keys, ops.as_float(row)))
    one_hot = np.eye(NUM_TAGS)[1]
    counts = Counter()
    for features, edges in unpacked({name: x[None] for name, x in actual.items()}):
        masked = int((features != one_hot).any(1).sum())
        gone, kept = 10 - len(features), {tuple(sorted(edge)) for edge in edges}
        if masked:
            assert (masked, gone, len(edges)) == (4, 0, 20)
            counts["mask_attributes"] += 1
        elif gone:
            assert gone in (2, 5)
            counts["drop_nodes" if gone == 2 else "subgraph"] += 1
        else:
            old = kept & {tuple(edge) for edge in circle.edge.tolist()}
            assert len(edges) == (20 if add else 14) and len(old) >= 14
            assert add or len(old) == 14
            counts["perturb_edges"] += 1
    assert set(counts) == set(ops.CHOICES)
    assert stats.chisquare(list(counts.values())).pvalue > 1e-3


def test_masked_node_attributes_become_normal_noise_with_mean_and_deviation_one_half():
    """Different nodes get different noise."""
    graphs = [graph(20, [])] * 100
    row = {name: jnp.asarray(x[0]) for name, x in packed(graphs).items()}
    recipe = recipes.graph(choices=("mask_attributes",), mask=1.0)
    keys = jax.random.split(jax.random.key(0), 100)
    values = np.asarray(jax.jit(recipe)(keys, ops.as_float(row))["x"])[:2000]
    assert len(np.unique(values, axis=0)) == 2000
    assert stats.kstest(values.ravel(), stats.norm(0.5, 0.5).cdf).pvalue > 1e-3


def test_dropped_nodes_have_no_effect_on_gin_features():
    """The features equal those of the graphs without the dropped nodes and their edges."""
    graphs = random_graphs(6, least=3, most=10, seed=2)
    rows = packed(graphs)
    row = ops.as_float({name: jnp.asarray(x[0]) for name, x in rows.items()})
    u = uniform(8, len(row["graph"]))
    dropped = jax.device_get(ops.drop_nodes(u, row, 0.5))
    dropped = {name: x[None] for name, x in dropped.items()}
    left = [graph(len(x), map(sorted, edges), x.argmax(1)) for x, edges in unpacked(dropped)]
    assert any(len(one.edge) for one in left)
    net = gin.net(width=4, layers=2)
    variables = jax.jit(partial(net.init, train=False))(jax.random.key(0), ops.as_float(rows))
    apply = jax.jit(partial(net.apply, variables, train=True, mutable=["batch_stats"]))
    actual, moved = apply(dropped)
    expected, stats_of = apply(ops.as_float(packed(left)))
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), moved, stats_of)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"choices": ("drop_node",)},
            "augment.choices must be any of drop_nodes, .* got 'drop_node'",
        ),
        ({"drop": 1.5}, r"drop must be in \[0, 1\], got 1.5"),
        ({"keep": -0.1}, r"keep must be in \[0, 1\], got -0.1"),
    ],
)
def test_invalid_graph_recipe_settings_raise_an_error_that_names_them(values, message):
    with pytest.raises(ValueError, match=message):
        recipes.graph(**values)
