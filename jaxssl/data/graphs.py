"""Graphs of different sizes as arrays of one shape: packed one after the other into rows.

A row holds the same number of graphs as every other, and has room for the largest row that a run
meets, so that a step is compiled once. Rows are what devices, and the parts of a batch that is
encoded in parts, share among them; results do not depend on their number.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from jaxssl.data.formats.tu import Graph

if TYPE_CHECKING:
    from jaxssl.data.source import Source

EPOCHS = 100  # whose largest batches set the room; a larger one later is compiled anew
ROUND = 8  # room is a multiple of this

Packed = dict[str, np.ndarray]


class Room(NamedTuple):
    """How much a row holds, of nodes and of edges."""

    nodes: int
    edges: int


def pack(graphs: Sequence[Graph], rows: int, num_tags: int, room: Room) -> Packed:
    """Graphs in order, as many in each row; the last ones may be empty.

    Args:
        graphs: n of them.
        rows: r, with k = ceil(n / r) graphs each.
        num_tags: f, width of the nodes' features.
        room: of each row, N nodes and E edges; more than it has raises ValueError.

    Returns:
        "x" uint8 [r, N, f], each node's tag as a one-hot vector, zeros where there is no node;
        "graph" int32 [r, N], which of its row's graphs a node is of, k where there is none;
        "edge" int32 [r, E, 2], the places of its nodes in the row, N where there is none;
        "size" int32 [r, k], how many nodes each graph has.
    """
    k = -(-len(graphs) // rows)
    out = {
        "x": np.zeros((rows, room.nodes, num_tags), np.uint8),
        "graph": np.full((rows, room.nodes), k, np.int32),
        "edge": np.full((rows, room.edges, 2), room.nodes, np.int32),
        "size": np.zeros((rows, k), np.int32),
    }
    for row in range(rows):
        some = graphs[row * k : (row + 1) * k]
        if not some:
            continue
        sizes = np.array([len(graph.tag) for graph in some])
        starts = np.cumsum(sizes) - sizes
        tag = np.concatenate([graph.tag for graph in some])
        edge = np.concatenate([g.edge + start for g, start in zip(some, starts, strict=True)])
        if len(tag) > room.nodes or len(edge) > room.edges:
            raise ValueError(f"{len(tag)} nodes and {len(edge)} edges do not fit into {room}")
        out["x"][row, np.arange(len(tag)), tag] = 1
        out["graph"][row, : len(tag)] = np.repeat(np.arange(len(some)), sizes)
        out["edge"][row, : len(edge)] = edge
        out["size"][row, : len(some)] = sizes
    return out


def room_for(sizes: np.ndarray, rows: int) -> Room:
    """The room that the rows of one batch need.

    Args:
        sizes: [n, 2], nodes and edges of each graph, in the order of the batch.
        rows: that they are packed into.
    """
    k = -(-len(sizes) // rows)
    padded = np.zeros((rows * k, 2), np.int64)
    padded[: len(sizes)] = sizes
    return _rounded(padded.reshape(rows, k, 2).sum(axis=1).max(axis=0))


def largest(rooms: Sequence[Room]) -> Room:
    """Room for each of them."""
    return Room(max(room.nodes for room in rooms), max(room.edges for room in rooms))


def sizes_of(graphs: Sequence[Graph]) -> np.ndarray:
    """[n, 2] nodes and edges of each graph."""
    return np.array([(len(graph.tag), len(graph.edge)) for graph in graphs], np.int64)


class Reader(NamedTuple):
    """Reads the graphs of a batch, packed; all graphs lie in memory.

    Attributes:
        graphs: of the training split.
        labels: of each.
        sizes: [n, 2] nodes and edges of each.
        num_tags: width of a node's features.
        order: a batch's number -> its places [B], which say how much room its rows need.
        batch_size: B.
        rows: that a whole batch is packed into; this process reads its share of them.
        room: of a row, enough for the first `EPOCHS` epochs.
    """

    graphs: Sequence[Graph]
    labels: np.ndarray
    sizes: np.ndarray
    num_tags: int
    order: Callable[[int], np.ndarray]
    batch_size: int
    rows: int
    room: Room

    def __call__(self, step: int, places: np.ndarray) -> dict[str, Any]:
        """The graphs at ``places`` [b] for batch number ``step``, the rows of this process."""
        # All processes look at the whole batch, so that their rows have the same room.
        needed = room_for(self.sizes[self.order(step)], self.rows)
        rows = self.rows * len(places) // self.batch_size
        return self._packed(places, rows, largest([self.room, needed]))

    def example(self) -> dict[str, Any]:
        """Two graphs in a row."""
        places = np.arange(min(2, len(self.graphs)), dtype=np.int32)
        return self._packed(places, 1, room_for(self.sizes[places], 1))

    def shapes(self) -> dict[str, Any]:
        """Of a whole batch."""
        b, r, (nodes, edges) = self.batch_size, self.rows, self.room
        shape = jax.ShapeDtypeStruct
        packed = {
            "x": shape((r, nodes, self.num_tags), np.uint8),
            "graph": shape((r, nodes), np.int32),
            "edge": shape((r, edges, 2), np.int32),
            "size": shape((r, b // r), np.int32),
        }
        return {"input": packed, "label": shape((b,), np.int32), "index": shape((b,), np.int32)}

    def _packed(self, places: np.ndarray, rows: int, room: Room) -> dict[str, Any]:
        packed = pack([self.graphs[i] for i in places], rows, self.num_tags, room)
        return {"input": packed, "label": self.labels[places], "index": places}


def reader(
    source: "Source", order: Callable[[int], np.ndarray], batch_size: int, rows: int
) -> Reader:
    """A `Reader` of all graphs of a split."""
    found = source.graph_array
    sizes = sizes_of(found.graphs)
    steps = range(EPOCHS * (len(sizes) // batch_size))
    room = largest([room_for(sizes[order(step)], rows) for step in steps])
    return Reader(found.graphs, source.labels, sizes, found.num_tags, order, batch_size, rows, room)


class GraphArray:
    """All graphs of a split, in blocks of one shape; what evaluation looks at."""

    def __init__(self, graphs: Sequence[Graph], num_tags: int) -> None:
        self.graphs, self.num_tags = graphs, num_tags
        self._rooms: dict[tuple[int, int], Room] = {}

    def __len__(self) -> int:
        """How many graphs there are."""
        return len(self.graphs)

    def block(self, places: slice, size: int, rows: int) -> Packed:
        """The graphs at ``places``, and empty ones up to ``size``, packed into rows."""
        graphs = [*self.graphs[places]]
        empty = Graph(np.zeros(0, np.int32), np.zeros((0, 2), np.int32))
        filled = graphs + [empty] * (size - len(graphs))
        return pack(filled, rows, self.num_tags, self._room(size, rows))

    def _room(self, size: int, rows: int) -> Room:
        """For any graphs that stand together: the same for all blocks, so compiled once."""
        if (size, rows) not in self._rooms:
            k = -(-size // rows)
            total = np.cumsum(np.pad(sizes_of(self.graphs), ((1, k), (0, 0))), axis=0)
            most = (total[k:] - total[:-k]).max(axis=0)
            self._rooms[size, rows] = _rounded(most)
        return self._rooms[size, rows]


def _rounded(most: np.ndarray) -> Room:
    return Room(*(int(-(-max(number, 1) // ROUND) * ROUND) for number in most))
