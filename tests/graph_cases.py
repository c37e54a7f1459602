"""Graphs made by tests, and what packed ones hold."""

import numpy as np

from jaxssl.kinds.graph import Graph, Room, largest, pack, room_for, sizes_of

NUM_TAGS = 3


def graph(n, edges, tag=None):
    """A graph of n nodes, of one tag if no others are given."""
    tag = np.zeros(n, np.int32) if tag is None else np.array(tag, np.int32)
    return Graph(tag, np.array(sorted(edges), np.int32).reshape(-1, 2))


def random_graph(rng, n, share=0.4, num_tags=NUM_TAGS):
    """A graph of n nodes, of which each two are neighbours with this probability."""
    edges = [(a, b) for a in range(n) for b in range(a + 1, n) if rng.random() < share]
    return graph(n, edges, rng.integers(0, num_tags, n))


def random_graphs(number, *, least=1, most=9, seed=0, num_tags=NUM_TAGS):
    """Graphs of different sizes."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(least, most + 1, number)
    return [random_graph(rng, int(n), num_tags=num_tags) for n in sizes]


def packed(graphs, rows=1, *, more=(0, 0), num_tags=NUM_TAGS):
    """Packed into rows that have room for ``more`` nodes and edges than need be."""
    need = largest([room_for(sizes_of(graphs), rows)])
    return pack(graphs, rows, num_tags, Room(need.nodes + more[0], need.edges + more[1]))


def unpacked(rows):
    """The graphs of packed rows in order: of each the nodes' features, by loops, and its edges.

    Nodes whose graph was taken away, and edges that lead to none, are not among them.
    """
    actual = []
    for x, of, edge, size in zip(rows["x"], rows["graph"], rows["edge"], rows["size"], strict=True):
        indices, edges = [[] for _ in size], [[] for _ in size]
        new = {}  # position in the row -> (graph, position in the graph)
        for place, number in enumerate(of.tolist()):
            if number < len(size):
                new[place] = number, len(indices[number])
                indices[number].append(place)
        for a, b in edge.tolist():
            if a in new and b in new:
                assert new[a][0] == new[b][0]
                edges[new[a][0]].append((new[a][1], new[b][1]))
        actual += [(x[own], kept) for own, kept in zip(indices, edges, strict=True)]
    return actual


def assert_same(found, graphs, num_tags=NUM_TAGS):
    """Unpacked graphs are these, their tags as one-hot vectors."""
    assert len(found) == len(graphs)
    for (features, edges), expected in zip(found, graphs, strict=True):
        one_hot = np.zeros((len(expected.tag), num_tags))
        for node, tag in enumerate(expected.tag):
            one_hot[node, tag] = 1
        np.testing.assert_array_equal(features, one_hot)
        np.testing.assert_array_equal(np.reshape(edges, (-1, 2)), expected.edge)


def neighbours_of(one):
    """Node -> the set of its neighbours."""
    near = {node: set() for node in range(len(one.tag))}
    for a, b in one.edge.tolist():
        near[a].add(b)
        near[b].add(a)
    return near


def reached(near, start, inside):
    """Return the nodes that can be reached from ``start`` by paths inside of ``inside``."""
    seen, waiting = {start}, [start]
    while waiting:
        more = (near[waiting.pop()] & inside) - seen
        seen |= more
        waiting += more
    return seen


def text(graphs, labels, first_tag=0):
    """The one file of a set, in the form of the code of GIN."""
    lines = [str(len(graphs))]
    for one, label in zip(graphs, labels, strict=True):
        lines.append(f"{len(one.tag)} {label}")
        for tag, others in zip(one.tag, neighbours_of(one).values(), strict=True):
            lines.append(" ".join(map(str, [tag + first_tag, len(others), *others])))
    return "\n".join([*lines, ""]).encode()
