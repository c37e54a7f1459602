"""Augmentations of graphs, all of a row at once; rows are as `jaxssl.data.graphs` makes them.

A row of N nodes, E edges and k graphs is {"x": [N, f], "graph": [N], "edge": [E, 2], "size": [k]}.
A node that is dropped has k for its graph, an edge that is dropped N for its nodes, as where there
is none. Random numbers are keyed by a graph's index and the place of a node or an edge in it, so
neither rows nor devices matter. A random operation's numbers come first, as ``u``.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
from jax import Array, lax
from jax import numpy as jnp

CHOICES = ("drop_nodes", "perturb_edges", "mask_attributes", "subgraph")
Row = dict[str, Array]
Recipe = Callable[[Array, Row], Row]  # keys [k], row -> view


class Layout(NamedTuple):
    """Where a row's graphs lie.

    Attributes:
        node_place: [N] int32, the place of a node in its graph.
        edge_graph: [E] int32, the graph of an edge, k where there is none.
        edge_place: [E] int32, the place of an edge among those of its graph.
        first_node: [k] int32, the place in the row of a graph's first node.
        num_edges: [k] int32, how many edges a graph has.
    """

    node_place: Array
    edge_graph: Array
    edge_place: Array
    first_node: Array
    num_edges: Array


def one_of(
    choices: Sequence[str], *, drop: float, perturb: float, add: bool, mask: float, keep: float
) -> Recipe:
    """Each graph is changed in one way, drawn evenly from ``choices``; see `recipes.graph`."""

    def changed(choice: str, row: Row, at: Layout, nodes: Array, edges: Array, start: Array) -> Row:
        """All graphs changed in this way; ``nodes`` and ``edges`` are keys."""
        if choice == "perturb_edges":
            of_edge = _of_each(edges, at.edge_graph, at.edge_place)
            u = jax.vmap(lambda key: jax.random.uniform(key, (3,)))(of_edge)
            return perturb_edges(u, row, at, perturb, add)
        of_node = _of_each(nodes, row["graph"], at.node_place)
        u = jax.vmap(jax.random.uniform)(of_node)
        if choice == "drop_nodes":
            return drop_nodes(u, row, drop)
        if choice == "subgraph":
            start = jax.vmap(jax.random.uniform)(start)
            return subgraph(-jnp.log1p(-u), start, row, at, keep)
        f = row["x"].shape[1]
        normal = jax.vmap(lambda key: jax.random.normal(jax.random.fold_in(key, 1), (f,)))(of_node)
        return mask_attributes(u, 0.5 + 0.5 * normal, row, mask)

    def view(keys: Array, row: Row) -> Row:
        if not choices:
            return row
        at, out = layout(row), dict(row)
        of_pick, *others = jnp.moveaxis(jax.vmap(_four)(keys), 1, 0)
        pick = jax.vmap(lambda key: jax.random.randint(key, (), 0, len(choices)))(of_pick)
        of_node, of_edge = _taken(pick, row["graph"]), _taken(pick, at.edge_graph)
        for number, choice in enumerate(choices):
            new = changed(choice, row, at, *others)
            here = of_node == number
            out["x"] = jnp.where(here[:, None], new["x"], out["x"])
            out["graph"] = jnp.where(here, new["graph"], out["graph"])
            out["edge"] = jnp.where((of_edge == number)[:, None], new["edge"], out["edge"])
        return out

    return view


def layout(row: Row) -> Layout:
    """Where the graphs of an unchanged row lie."""
    n, k = row["graph"].shape[0], row["size"].shape[0]
    first_node = jnp.cumsum(row["size"]) - row["size"]
    edge_graph = row["graph"].at[row["edge"][:, 0]].get(mode="fill", fill_value=k)
    num_edges = jnp.zeros(k, jnp.int32).at[edge_graph].add(1, mode="drop")
    first_edge = jnp.cumsum(num_edges) - num_edges
    return Layout(
        jnp.arange(n, dtype=jnp.int32) - _taken(first_node, row["graph"]),
        edge_graph,
        jnp.arange(len(edge_graph), dtype=jnp.int32) - _taken(first_edge, edge_graph),
        first_node,
        num_edges,
    )


def drop_nodes(u: Array, row: Row, share: float) -> Row:
    """Without floor(share * n) of a graph's n nodes, those of the smallest u [N], and their edges.

    Edges are left to whoever sums over them: one of a dropped node has no effect.
    """
    return _without(row, _lowest(u, row["graph"], row["size"], share))


def mask_attributes(u: Array, noise: Array, row: Row, share: float) -> Row:
    """`noise` [N, f] for the features of floor(share * n) nodes, those of the smallest u [N]."""
    masked = _lowest(u, row["graph"], row["size"], share)
    return {**row, "x": jnp.where(masked[:, None], noise.astype(row["x"].dtype), row["x"])}


def perturb_edges(u: Array, row: Row, at: Layout, share: float, add: bool) -> Row:
    """Without floor(share * m) of a graph's m edges; with ``add``, random ones in their place.

    Args:
        u: [E, 3] in [0, 1): edges of the smallest first numbers go; the other two choose the two
            different nodes of the new edge.
        row: of graphs.
        at: its layout.
        share: in [0, 1].
        add: whether there are new edges; of a graph with one node there are none. One may double
            an edge there is.
    """
    gone = _lowest(u[:, 0], at.edge_graph, at.num_edges, share)
    none = jnp.full_like(row["edge"], row["graph"].shape[0])
    if add:
        size = _taken(row["size"], at.edge_graph)
        one = _below(u[:, 1], size)
        other = (one + 1 + _below(u[:, 2], size - 1)) % jnp.maximum(size, 1)
        new = jnp.stack([one, other], axis=1) + _taken(at.first_node, at.edge_graph)[:, None]
        none = jnp.where((size > 1)[:, None], new, none)
    return {**row, "edge": jnp.where(gone[:, None], none, row["edge"])}


def subgraph(wait: Array, start: Array, row: Row, at: Layout, share: float) -> Row:
    r"""A connected part of each graph, of floor(share * n) nodes but one at least, grown at random.

    From a random node on, each next one is drawn evenly from the neighbours of those there are,
    until there are enough, or no more. This is what a fire does that each node passes on to a
    neighbour after a waiting time of its own, drawn from Exponential(1), which has no memory; so
    the nodes are those with the smallest times

    .. math:: t_v = w_v + \min_{u \sim v} t_u, \quad t_{start} = 0,

    found for all graphs at once, in as many rounds as a shortest path has edges.

    Args:
        wait: [N] w, > 0.
        start: [k] in [0, 1), which node of a graph is the first.
        row: of graphs.
        at: its layout.
        share: in [0, 1].
    """
    n = row["graph"].shape[0]
    first = at.first_node + _below(start, row["size"])
    first = jnp.where(row["size"] > 0, first, n)
    never = jnp.full_like(wait, jnp.inf)
    burnt = never.at[first].set(0.0, mode="drop")
    a, b = row["edge"][:, 0], row["edge"][:, 1]

    def spread(state: tuple[Array, Array]) -> tuple[Array, Array]:
        time, _ = state
        of = time.at[row["edge"]].get(mode="fill", fill_value=jnp.inf)
        caught = never.at[b].min(of[:, 0], mode="drop").at[a].min(of[:, 1], mode="drop")
        new = jnp.minimum(time, caught + wait)
        return new, jnp.any(new < time)

    time, _ = lax.while_loop(lambda state: state[1], spread, (burnt, jnp.bool_(True)))
    kept = _lowest(time, row["graph"], row["size"], share, least=1)
    return _without(row, ~kept | jnp.isinf(time))


def rank(values: Array, group: Array) -> Array:
    """[n] int32: how many values of the same group are smaller, or equal and earlier."""
    order = jnp.lexsort((values, group))
    place = jnp.arange(len(order), dtype=jnp.int32)
    ordered = group[order]
    new = jnp.concatenate([jnp.ones(1, bool), ordered[1:] != ordered[:-1]])
    first = lax.cummax(jnp.where(new, place, 0))
    return jnp.zeros_like(place).at[order].set(place - first, unique_indices=True)


def make_graph_views(recipes: Sequence[Recipe]) -> Callable[[Array, Row, Array], dict[str, Row]]:
    """``(key, graphs, index) -> {"views": ...}``: the views of packed graphs.

    ``graphs`` are r rows of k graphs, "x" of any type of numbers; ``index`` [r k] are their places
    in the data set. Views have an axis more in front, [V, r, ...], and "x" in float32.
    """

    def augment(key: Array, graphs: Row, index: Array) -> dict[str, Row]:
        graphs = as_float(graphs)
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, index).reshape(graphs["size"].shape)

        def of_row(keys: Array, row: Row) -> Row:
            views = [
                recipe(jax.vmap(jax.random.fold_in, (0, None))(keys, number), row)
                for number, recipe in enumerate(recipes)
            ]
            return jax.tree.map(lambda *x: jnp.stack(x), *views)

        return {"views": jax.vmap(of_row, out_axes=1)(keys, graphs)}

    return augment


class GraphInputs(NamedTuple):
    """How a network wants its graphs.

    Attributes:
        num_tags: width of the nodes' features.
    """

    num_tags: int

    kind = "graph"
    copies = 1

    def prepare(self, graphs: Row) -> Row:
        """Packed graphs as the network sees them in evaluation: not augmented."""
        return as_float(graphs)


def as_float(graphs: Row) -> Row:
    """With "x" in float32."""
    return {**graphs, "x": graphs["x"].astype(jnp.float32)}


def _lowest(values: Array, graph: Array, total: Array, share: float, least: int = 0) -> Array:
    """[n] bool: the floor(share * total) smallest values of each graph, but ``least`` of them."""
    count = jnp.floor(share * total.astype(jnp.float32)).astype(jnp.int32)
    return rank(values, graph) < _taken(jnp.maximum(count, least), graph)


def _without(row: Row, gone: Array) -> Row:
    k = row["size"].shape[0]
    return {**row, "graph": jnp.where(gone, k, row["graph"])}


def _taken(of_graph: Array, graph: Array) -> Array:
    """Each node's, or edge's, number of its graph; 0 where there is none."""
    return of_graph.at[graph].get(mode="fill", fill_value=0)


def _below(u: Array, bound: Array) -> Array:
    """Whole numbers in [0, bound), by u in [0, 1)."""
    found = jnp.floor(u * bound.astype(jnp.float32)).astype(jnp.int32)
    return jnp.clip(found, 0, jnp.maximum(bound - 1, 0))


def _of_each(keys: Array, graph: Array, place: Array) -> Array:
    """A key for each node, or edge."""
    own = keys[jnp.minimum(graph, len(keys) - 1)]
    return jax.vmap(jax.random.fold_in)(own, place)


def _four(key: Array) -> Array:
    return jax.random.split(key, 4)
