"""Graphs, and their packing into arrays of a fixed shape.

Graphs of different sizes are concatenated into rows. Every row holds the same number of graphs and
has room for the largest row of the run, so that a training step is compiled once. Rows are
distributed over devices and gradient accumulation steps. Their number does not change results.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxssl.distributed import round_up

ROUND = 8  # Padded numbers of nodes and edges are multiples of this.

Packed = dict[str, np.ndarray]


class Graph(NamedTuple):
    """An undirected graph: node tags and edges.

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


def decode(record: Mapping[str, Any]) -> Graph:
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
    k = -(-(size or len(graphs)) // rows)
    out = {
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
            raise ValueError(f"{len(tag)} nodes and {len(edge)} edges do not fit into {room}")
        out["x"][row, np.arange(len(tag)), tag] = 1
        out["graph"][row, : len(tag)] = np.repeat(np.arange(len(members)), sizes)
        out["edge"][row, : len(edge)] = edge
        out["size"][row, : len(members)] = sizes
    return out


def sizes_of(graphs: Sequence[Graph]) -> np.ndarray:
    """Return the numbers of nodes and edges of each graph, int64 [n, 2]."""
    return np.array([(len(graph.tag), len(graph.edge)) for graph in graphs], np.int64)


def room_for(sizes: np.ndarray, rows: int) -> Room:
    """Return the capacity that the rows of a packed batch need.

    Args:
        sizes: [n, 2] nodes and edges of each graph, in the order of the batch, n > 0.
        rows: number of rows that the batch is packed into.
    """
    starts = np.arange(0, len(sizes), -(-len(sizes) // rows))
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
        """Pack consecutive graphs into rows, padded with empty ones up to ``size`` graphs."""
        room = self._room(size, rows)
        return pack(self.graphs[indices], rows, self.num_tags, room, size)

    def _room(self, size: int, rows: int) -> Room:
        """Return a row capacity for any k consecutive graphs, so that all blocks have one shape."""
        if (size, rows) not in self._rooms:
            k = -(-size // rows)
            total = np.cumsum(np.pad(sizes_of(self.graphs), ((1, k), (0, 0))), axis=0)
            self._rooms[size, rows] = _round_up((total[k:] - total[:-k]).max(axis=0))
        return self._rooms[size, rows]


def _round_up(counts: np.ndarray) -> Room:
    nodes, edges = (round_up(max(int(count), 1), ROUND) for count in counts)
    return Room(nodes, edges)
