"""Graphs packed into rows: what goes in comes out, whatever the rows and their room."""

import jax
import numpy as np
import pytest
from data_cases import data_config
from file_cases import refused, unpack
from graph_cases import NUM_TAGS, assert_same, graph, packed, random_graphs, text, unpacked

from jaxssl import distributed
from jaxssl.data import source
from jaxssl.data.batches import Order, make_batches
from jaxssl.data.decoders.decoding import Crops
from jaxssl.data.records import PreparedSplit
from jaxssl.data.splits import Source
from jaxssl.kinds import graph as graph_kind
from jaxssl.kinds.graph import GraphArray, Room, pack, room_for, sizes_of

pytestmark = pytest.mark.fast

EMPTY = graph(0, [])
LONELY = graph(1, [], [2])
GRAPHS = random_graphs(16)
BATCH = 8


def test_packing_graphs_into_rows_returns_the_documented_arrays():
    triangle = graph(3, [(0, 1), (0, 2), (1, 2)], [0, 1, 2])
    actual = pack([triangle, LONELY, LONELY, triangle, triangle], 2, NUM_TAGS, Room(8, 6))
    shapes = {name: (x.shape, x.dtype) for name, x in actual.items()}
    assert shapes == {
        "x": ((2, 8, 3), np.uint8),
        "graph": ((2, 8), np.int32),
        "edge": ((2, 6, 2), np.int32),
        "size": ((2, 3), np.int32),
    }
    np.testing.assert_array_equal(actual["size"], [[3, 1, 1], [3, 3, 0]])
    np.testing.assert_array_equal(
        actual["graph"], [[0, 0, 0, 1, 2, 3, 3, 3], [0, 0, 0, 1, 1, 1, 3, 3]]
    )
    np.testing.assert_array_equal(actual["edge"][0, :3], triangle.edge)
    np.testing.assert_array_equal(actual["edge"][0, 3:], np.full((3, 2), 8))
    np.testing.assert_array_equal(actual["edge"][1], [*triangle.edge, *(triangle.edge + 3)])
    np.testing.assert_array_equal(actual["x"][0].argmax(1)[:5], [0, 1, 2, 2, 2])
    np.testing.assert_array_equal(actual["x"].sum(2), actual["graph"] < 3)


@pytest.mark.parametrize("more", [(0, 0), (13, 5)])
@pytest.mark.parametrize("rows", [1, 2, 3, 8, 16, 20])
def test_packing_and_unpacking_graphs_keeps_them_and_their_order(rows, more):
    actual = unpacked(packed(GRAPHS, rows, more=more))
    assert_same(actual[: len(GRAPHS)], GRAPHS)
    assert_same(actual[len(GRAPHS) :], [EMPTY] * (rows * -(-len(GRAPHS) // rows) - len(GRAPHS)))


def test_packing_keeps_empty_graphs():
    graphs = [EMPTY, LONELY, EMPTY, GRAPHS[3], LONELY, EMPTY]
    for rows in (1, 2, 3):
        assert_same(unpacked(packed(graphs, rows)), graphs)
    assert_same(unpacked(packed([EMPTY, EMPTY], 1)), [EMPTY, EMPTY])


@pytest.mark.parametrize("rows", [1, 2, 3, 5])
def test_node_and_edge_capacity_of_a_graph_batch_is_that_of_the_largest_row_rounded_up(rows):
    k = -(-len(GRAPHS) // rows)
    parts = [GRAPHS[first : first + k] for first in range(0, len(GRAPHS), k)]
    nodes = max(sum(len(g.tag) for g in part) for part in parts)
    edges = max(sum(len(g.edge) for g in part) for part in parts)
    for actual, need in zip(room_for(sizes_of(GRAPHS), rows), (nodes, edges), strict=True):
        assert need <= actual < need + graph_kind.ROUND and actual % graph_kind.ROUND == 0
    for tight in (Room(nodes - 1, edges), Room(nodes, edges - 1)):
        with pytest.raises(ValueError, match="nodes and .* edges do not fit into Room"):
            pack(GRAPHS, rows, NUM_TAGS, tight)
    assert_same(unpacked(pack(GRAPHS, rows, NUM_TAGS, Room(nodes, edges)))[: len(GRAPHS)], GRAPHS)


ORDER = Order(len(GRAPHS), BATCH, 0)


def source_of(graphs):
    """Return a split that consists of these graphs, whose labels alternate."""
    records = [{"graph": one, "label": i % 2} for i, one in enumerate(graphs)]
    part = PreparedSplit(records, decode=lambda record: record["graph"])
    parts = ((part, np.arange(len(graphs))),)
    return Source("made", "train", parts, ("a", "b"), (NUM_TAGS,), kind="graph")


def reader_of(rows, order=ORDER):
    return graph_kind.make_reader(source_of(GRAPHS), order, rows)


class LateGrowth(Order):
    """An order whose first epoch has only one small graph."""

    def __call__(self, step):
        return np.zeros(BATCH, np.int32) if step < len(GRAPHS) // BATCH else ORDER(step)


LATE_GROWTH = LateGrowth(*ORDER)


def same(found, expected):
    jax.tree.map(np.testing.assert_array_equal, found, expected)


# In "late growth", later batches exceed the capacity; all processes must agree on a larger one.
@pytest.mark.parametrize("order", [ORDER, LATE_GROWTH], ids=["usual", "late growth"])
@pytest.mark.parametrize("processes", [2, 4])
def test_each_process_packs_its_rows_of_a_graph_batch(monkeypatch, processes, order):
    monkeypatch.setattr(graph_kind, "EPOCHS", 1)
    read = reader_of(8, order).read
    for step in (2, 3, 4, 5):
        indices = order(step)
        whole = read(step, indices)
        assert_same(unpacked(whole["input"]), [GRAPHS[place] for place in indices])
        np.testing.assert_array_equal(whole["label"], indices % 2)
        shares = [read(step, part) for part in np.split(indices, processes)]
        same(jax.tree.map(lambda *x: np.concatenate(x), *shares), whole)


def test_graph_batch_capacity_grows_for_larger_batches(monkeypatch):
    enough = reader_of(2)
    monkeypatch.setattr(graph_kind, "EPOCHS", 1)
    small = reader_of(2, LATE_GROWTH)
    first = room_for(sizes_of([GRAPHS[0]] * BATCH), 2)
    for step in range(2, 20):
        indices = ORDER(step)
        need = room_for(sizes_of([GRAPHS[place] for place in indices]), 2)
        grown = small.read(step, indices)["input"]
        assert grown["x"].shape[1] == max(first.nodes, need.nodes)
        assert grown["edge"].shape[1] == max(first.edges, need.edges)
        shapes = jax.tree.map(lambda x: (x.shape, x.dtype), enough.read(step, indices))
        assert shapes == jax.tree.map(lambda x: (x.shape, x.dtype), enough.shapes)


def test_example_input_of_the_graph_reader_is_one_row_of_two_graphs():
    actual = reader_of(4).example
    assert_same(unpacked(actual["input"]), GRAPHS[:2])
    assert actual["index"].tolist() == [0, 1] and actual["input"]["size"].shape == (1, 2)


@pytest.mark.parametrize("number", [1, 5, 16])
@pytest.mark.parametrize(("size", "rows"), [(4, 1), (4, 2), (8, 8), (16, 4)])
def test_graph_blocks_have_one_shape_and_contain_every_graph_once(number, size, rows):
    array = GraphArray(GRAPHS[:number], NUM_TAGS)
    assert len(array) == number
    blocks = [
        array.block(slice(start, min(start + size, number)), size, rows)
        for start in range(0, number, size)
    ]
    assert len({tuple(x.shape for x in block.values()) for block in blocks}) == 1
    actual = [one for block in blocks for one in unpacked(block)]
    assert_same(actual, GRAPHS[:number] + [EMPTY] * (len(actual) - number))
    assert {len(block["size"].reshape(-1)) for block in blocks} == {size}


def test_graph_blocks_from_any_start_index_have_the_same_shape():
    large = random_graphs(1, least=30, most=30)
    # Three large graphs stand together, at an index that is no multiple of three.
    graphs = [*GRAPHS[:2], *large * 3, *GRAPHS[2:]]
    array = GraphArray(graphs, NUM_TAGS)
    shapes = set()
    for start in range(len(graphs)):
        block = array.block(slice(start, start + 6), 6, 2)
        part = graphs[start : start + 6]
        assert_same(unpacked(block), part + [EMPTY] * (6 - len(part)))
        shapes.add(tuple(x.shape for x in block.values()))
    assert len(shapes) == 1


@pytest.fixture(scope="module")
def opened(tmp_path_factory, prepared):
    """The graphs as a set."""
    labels = np.arange(len(GRAPHS)) % 2
    root = unpack(tmp_path_factory.mktemp("set"), {"S.txt": text(GRAPHS, labels)})
    return source.load(data_config(name="tu", path=str(root), dir=str(prepared)), "train", "graph")


@pytest.mark.parametrize(("devices", "parts"), [(1, 1), (2, 2), (8, 1)])
def test_graph_batches_have_the_shuffled_order_of_the_epoch(opened, devices, parts):
    mesh = distributed.make_mesh(jax.devices()[:devices])
    graphs = graph_kind.array(opened).graphs
    batches = make_batches(opened, BATCH, seed=3, crops=Crops((), (), 0), mesh=mesh, parts=parts)
    order, shapes = Order(len(GRAPHS), BATCH, 3), []
    for step in range(4):
        batch = batches.next()
        assert {len(x.sharding.device_set) for x in jax.tree.leaves(batch)} == {devices}
        batch = jax.device_get(batch)
        np.testing.assert_array_equal(batch["index"], order(step))
        np.testing.assert_array_equal(batch["label"], opened.labels[batch["index"]])
        assert batch["input"]["size"].shape == (devices * parts, BATCH // (devices * parts))
        assert_same(unpacked(batch["input"]), [graphs[place] for place in batch["index"]])
        shapes.append(jax.tree.map(lambda x: (x.shape, x.dtype), batch))
    batches.close()
    expected = jax.tree.map(lambda x: (x.shape, x.dtype), batches.shapes)
    assert all(actual == expected for actual in shapes)


def test_graphs_cannot_be_cached_on_the_device(opened):
    settings = {"seed": 0, "crops": Crops((), (), 0), "mesh": distributed.make_mesh()}
    with refused(
        "data.cache='device' cannot hold graphs, which are packed on the host; set 'auto'"
    ):
        make_batches(opened, BATCH, cache="device", **settings)


def test_graph_batches_of_all_epochs_have_the_shapes_that_the_reader_announces():
    order = Order(21, 6, 0)
    reader = graph_kind.make_reader(source_of(random_graphs(21, most=40)), order, 2)
    expected = {name: value.shape for name, value in reader.shapes["input"].items()}
    for step in range(60):
        packed = reader.read(step, order(step))["input"]
        assert {name: value.shape for name, value in packed.items()} == expected
