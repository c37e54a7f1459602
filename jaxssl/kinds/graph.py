"""Graphs, and their packing into arrays of a fixed shape.

Graphs of different sizes are concatenated into rows. Every row holds the same number of graphs and
has room for the largest row of the run, so that a training step is compiled once. Rows are
distributed over devices and gradient accumulation steps. Results do not depend on the number of
rows.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from flax.typing import VariableDict
from ml_collections import ConfigDict

from jaxssl.augment.graph import Row, as_float, make_graph_views
from jaxssl.data import integrity
from jaxssl.data.batches import Batch, Order, Plan, Reader
from jaxssl.data.decoders.decoding import Crops
from jaxssl.data.kind import Kind, Opened, Settings
from jaxssl.data.records import Record
from jaxssl.data.splits import Source
from jaxssl.distributed import round_up
from jaxssl.errors import UserError

# Rows of packed graphs have room for the batches of the first 100 epochs. A larger batch in a later
# epoch compiles a second program.
EPOCHS = 100
MAX_DEGREE = 32  # Larger node degrees are clipped to this one.
ROUND = 8  # Padded numbers of nodes and edges are multiples of this.

Packed = dict[str, np.ndarray]


class Graph(NamedTuple):
    """An undirected graph: integer node labels (called tags) and edges.

    Attributes:
        tag: [n] int32, the tag of each node, in [0, number of tags).
        edge: [m, 2] int32, pairs of nodes in [0, n), the smaller one first. Each edge occurs once.
    """

    tag: np.ndarray
    edge: np.ndarray


class Room(NamedTuple):
    """Capacity of a packed row in nodes and edges."""

    nodes: int
    edges: int


class GraphInputs(NamedTuple):
    """Input format that a graph network expects.

    Attributes:
        num_tags: number of features per node.
    """

    num_tags: int

    kind = "graph"
    axes = ""  # A graph is not a single array.
    copies = 1

    def prepare(self, graphs: Row) -> Row:
        """Prepare packed graphs as inputs for evaluation, without augmentation."""
        return as_float(graphs)


def _decode(record: Record) -> Graph:
    """Convert a record of a prepared data set to a graph."""
    return Graph(np.asarray(record["tag"], np.int32), np.asarray(record["edge"], np.int32))


def pack(
    graphs: Sequence[Graph], rows: int, num_tags: int, room: Room, size: int | None = None
) -> Packed:
    """Pack graphs in order into rows, the same number into each row.

    Args:
        graphs: n graphs.
        rows: r.
        num_tags: f, width of the node features.
        room: capacity of each row, N nodes and E edges.
        size: number of graphs that the rows are laid out for, >= n. The missing ones are empty
            graphs at the end. Default n.

    Returns:
        With k = ceil(size / r) graphs in each row:
        "x" uint8 [r, N, f], the one-hot tag of each node, zeros for padding.
        "graph" int32 [r, N], the index of each node's graph in its row, k for padding.
        "edge" int32 [r, E, 2], the indices of the edges' nodes in the row, N for padding.
        "size" int32 [r, k], the number of nodes of each graph.

    Raises:
        ValueError: if a row needs more than ``room``.
    """
    k = math.ceil((len(graphs) if size is None else size) / rows)
    packed = {
        "x": np.zeros((rows, room.nodes, num_tags), np.uint8),
        "graph": np.full((rows, room.nodes), k, np.int32),
        "edge": np.full((rows, room.edges, 2), room.nodes, np.int32),
        "size": np.zeros((rows, k), np.int32),
    }
    for row in range(rows):
        members = graphs[row * k : (row + 1) * k]
        if not members:
            continue
        sizes = np.array([len(graph.tag) for graph in members])
        starts = np.cumsum(sizes) - sizes
        tag = np.concatenate([graph.tag for graph in members])
        edge = np.concatenate([g.edge + start for g, start in zip(members, starts, strict=True)])
        if len(tag) > room.nodes or len(edge) > room.edges:
            raise ValueError(
                f"the graphs' {len(tag)} nodes and {len(edge)} edges do not fit into {room}"
            )
        packed["x"][row, np.arange(len(tag)), tag] = 1
        packed["graph"][row, : len(tag)] = np.repeat(np.arange(len(members)), sizes)
        packed["edge"][row, : len(edge)] = edge
        packed["size"][row, : len(members)] = sizes
    return packed


def sizes_of(graphs: Sequence[Graph]) -> np.ndarray:
    """Return the numbers of nodes and edges of each graph, int64 [n, 2]."""
    return np.array([(len(graph.tag), len(graph.edge)) for graph in graphs], np.int64)


def room_for(sizes: np.ndarray, rows: int) -> Room:
    """Return the capacity that the rows of a packed batch need.

    Args:
        sizes: [n, 2] nodes and edges of each graph, in the order of the batch, n > 0.
        rows: number of rows that the batch is packed into.
    """
    starts = np.arange(0, len(sizes), math.ceil(len(sizes) / rows))
    return _round_up(np.add.reduceat(sizes, starts).max(axis=0))


def largest(rooms: Sequence[Room]) -> Room:
    """Return a row capacity that is at least each of ``rooms``."""
    return Room(max(room.nodes for room in rooms), max(room.edges for room in rooms))


class GraphArray:
    """All graphs of a split, packed in blocks of one shape for evaluation.

    Attributes:
        graphs: the graphs.
        num_tags: width of the node features.
    """

    def __init__(self, graphs: Sequence[Graph], num_tags: int) -> None:
        self.graphs, self.num_tags = graphs, num_tags
        self._rooms: dict[tuple[int, int], Room] = {}

    def __len__(self) -> int:
        """Return the number of graphs of the split."""
        return len(self.graphs)

    def block(self, indices: slice, size: int, rows: int) -> Packed:
        """Pack consecutive graphs into rows, padded with empty ones up to ``size`` graphs.

        Every row has room for any k consecutive graphs, so that all blocks have one shape.
        """
        if (size, rows) not in self._rooms:
            k = math.ceil(size / rows)
            # totals[i] are the nodes and edges of the first i graphs, then k empty graphs follow.
            totals = np.cumsum(np.pad(sizes_of(self.graphs), ((1, k), (0, 0))), axis=0)
            self._rooms[size, rows] = _round_up((totals[k:] - totals[:-k]).max(axis=0))
        return pack(self.graphs[indices], rows, self.num_tags, self._rooms[size, rows], size)


def _round_up(counts: np.ndarray) -> Room:
    """Return a room for [nodes, edges] in multiples of `ROUND`, at least one of each."""
    nodes, edges = (round_up(max(count, 1), ROUND) for count in counts.tolist())
    return Room(nodes, edges)


def open_graphs(folder: Path, features: object, metadata: Settings, data: object) -> Opened:
    """Return shape and decoder of a prepared data set of graphs, from the number of node labels.

    Raises:
        UserError: if it is missing or impossible.
    """
    count = metadata.get("num_tags")
    if type(count) is not int or not 0 < count <= integrity.MAX_CLASSES:
        raise integrity.damaged(folder, f"the number of node labels is {count!r:.80}")
    return Opened((count,), _decode)


def plan(source: Source, crops: Crops, cache: str, workers: int) -> Plan:
    """Choose how graphs get to the device: packed on the host.

    Raises:
        UserError: if they shall be kept on the device, or read by processes.
    """
    if workers > 0:
        raise UserError(f"data.workers={workers} is without use for graphs; set -1")
    if cache == "device":
        raise UserError(
            "data.cache='device' cannot hold graphs, which are packed on the host; set 'auto'"
        )
    return Plan(False, None, 0, "kept in memory, packed on the host by threads")


def make_reader(source: Source, order: Order, rows: int, crops: Crops | None = None) -> Reader:
    """Build the reader of packed batches, which keeps all graphs of the split in memory."""
    graphs, num_tags = array(source).graphs, source.shape[0]
    sizes = sizes_of(graphs)
    steps = range(EPOCHS * (len(sizes) // order.batch_size))
    usual_room = largest([room_for(sizes[order(step)], rows) for step in steps])

    def make_batch(indices: np.ndarray, rows: int, room: Room) -> Batch:
        packed = pack([graphs[i] for i in indices], rows, num_tags, room)
        return {"input": packed, "label": source.labels[indices], "index": indices}

    def read(step: int, indices: np.ndarray) -> Batch:
        # Every process measures the whole batch, so that the rows of all processes have equal
        # capacity.
        room = largest([usual_room, room_for(sizes[order(step)], rows)])
        return make_batch(indices, rows * len(indices) // order.batch_size, room)

    first = np.arange(min(2, len(graphs)), dtype=np.int32)
    shapes = jax.eval_shape(lambda: read(0, order(0)))
    return Reader(read, make_batch(first, 1, room_for(sizes[first], 1)), shapes)


def array(source: Source, inputs: object = None) -> GraphArray:
    """Decode all graphs of a split to one `GraphArray`."""
    examples = source.read(np.arange(len(source)))
    return GraphArray([example.input for example in examples], source.shape[0])


def view_shapes(config: ConfigDict, inputs: GraphInputs) -> dict[str, object]:
    """Return the views of a small packed batch as `jax.ShapeDtypeStruct`."""
    row = pack([], 1, inputs.num_tags, Room(nodes=8, edges=8), size=2)
    row["x"] = row["x"].astype(np.float32)
    views = {k: jax.ShapeDtypeStruct((config.views, *x.shape), x.dtype) for k, x in row.items()}
    return {"views": views}


def infer_inputs(config: ConfigDict, net: object, variables: VariableDict) -> GraphInputs:
    """Return the input format of a trained network. Its first layer gives the number of tags.

    Raises:
        UserError: if the layer is missing.
    """
    try:
        return GraphInputs(variables["params"]["Dense_0"]["kernel"].shape[0])
    except KeyError as error:
        raise UserError(
            f"the {type(net).__name__} has no layer Dense_0 for the labels of the nodes; "
            "name the first layer of a graph network so"
        ) from error


def fit_inputs(inputs: GraphInputs, test: Source) -> GraphInputs:
    """Return the input format of the encoder, if a data set of graphs fits it.

    Raises:
        UserError: if the graphs of a data set have other tags than the encoder takes.
    """
    (num_tags,) = test.shape
    if num_tags != inputs.num_tags:
        raise UserError(
            f"the encoder takes graphs with {inputs.num_tags} node labels, but {test.name!r} has "
            f"{num_tags}"
        )
    return inputs


def histograms(examples: GraphArray, extract: Callable[..., object] | None = None) -> np.ndarray:
    """Count the degrees and tags of each graph's nodes as features.

    Returns:
        [n, f] float32: counts of degrees 0 to 32, counts of tags, log(1 + nodes), log(1 + edges).
    """
    features = []
    for tag, edge in examples.graphs:
        degree = np.minimum(np.bincount(edge.ravel(), minlength=len(tag)), MAX_DEGREE)
        degrees = np.bincount(degree, minlength=MAX_DEGREE + 1)
        tags = np.bincount(tag, minlength=examples.num_tags)
        features.append(np.concatenate([degrees, tags, np.log1p([len(tag), len(edge)])]))
    return np.array(features, np.float32)


kind = Kind(
    units="graphs",
    data="graph",
    open=open_graphs,
    describe=lambda shape: f"nodes with {shape[0]} tags",
    plan=plan,
    make_reader=make_reader,
    array=array,
    views=make_graph_views,
    view_shapes=view_shapes,
    inputs=lambda config, shape: GraphInputs(shape[0]),
    infer_inputs=infer_inputs,
    fit_inputs=fit_inputs,
    raw_features=histograms,
    is_drawn=lambda inputs: False,
)
