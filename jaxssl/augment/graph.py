"""Graph augmentations: drop nodes, perturb edges, mask features or keep a subgraph.

A row of k packed graphs with N nodes and E edges is a dict {"x": [N, f], "graph": [N],
"edge": [E, 2], "size": [k]}, see `jaxssl.kinds.graph`. To drop a node, its graph is set to
k; to drop an edge, its nodes are set to N. Padding is marked in the same way.

Random numbers depend only on the index of a graph in the data set and on the index of the node or
edge in the graph, so views do not depend on how graphs are packed or split over devices. Operations
take uniform numbers ``u`` in [0, 1) as their first argument.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
from jax import Array, lax
from jax import numpy as jnp

CHOICES = ("drop_nodes", "perturb_edges", "mask_attributes", "subgraph")
Row = dict[str, Array]
# maps (keys [k], a row of k packed graphs) to one view of the row
Recipe = Callable[[Array, Row], Row]


class Layout(NamedTuple):
    """Graph index of every node and edge in a row of packed graphs, and node offsets.

    Attributes:
        node_index: [N] int32, index of a node in its graph.
        edge_graph: [E] int32, graph of an edge, or k for padding.
        edge_index: [E] int32, index of an edge in its graph.
        first_node: [k] int32, index in the row of the first node of a graph.
        num_edges: [k] int32, number of edges of a graph.
    """

    node_index: Array
    edge_graph: Array
    edge_index: Array
    first_node: Array
    num_edges: Array


def one_of(
    choices: Sequence[str], *, drop: float, perturb: float, add: bool, mask: float, keep: float
) -> Recipe:
    """Return a recipe that applies one randomly chosen operation to each graph of a row.

    Args:
        choices: any of `CHOICES`. Without any, graphs are unchanged.
        drop: fraction of `drop_nodes`, in [0, 1].
        perturb: fraction of `perturb_edges`, in [0, 1].
        add: whether `perturb_edges` adds edges.
        mask: fraction of `mask_attributes`, in [0, 1].
        keep: fraction of `subgraph`, in [0, 1].
    """

    def view(keys: Array, row: Row) -> Row:
        if not choices:
            return row
        at, out = layout(row), dict(row)
        split = jax.vmap(partial(jax.random.split, num=4))(keys)
        choice_keys, node_keys, edge_keys, start_keys = jnp.moveaxis(split, 1, 0)
        draw = partial(jax.random.randint, shape=(), minval=0, maxval=len(choices), dtype=jnp.int32)
        chosen = jax.vmap(draw)(choice_keys)
        node_keys = _fold_keys(node_keys, row["graph"], at.node_index)
        edge_keys = _fold_keys(edge_keys, at.edge_graph, at.edge_index)
        u = _uniform(node_keys)
        operations = {
            "drop_nodes": lambda: drop_nodes(u, row, drop),
            "perturb_edges": lambda: perturb_edges(_uniform(edge_keys, 3), row, at, perturb, add),
            "mask_attributes": lambda: mask_attributes(u, _noise(node_keys, row), row, mask),
            "subgraph": lambda: subgraph(-jnp.log1p(-u), _uniform(start_keys), row, at, keep),
        }
        node_choice, edge_choice = _gather(chosen, row["graph"]), _gather(chosen, at.edge_graph)
        # All operations run on the whole row. Each graph keeps the result of the chosen one.
        for number, choice in enumerate(choices):
            new = operations[choice]()
            selected = node_choice == number
            out["x"] = jnp.where(selected[:, None], new["x"], out["x"])
            out["graph"] = jnp.where(selected, new["graph"], out["graph"])
            out["edge"] = jnp.where((edge_choice == number)[:, None], new["edge"], out["edge"])
        return out

    return view


def layout(row: Row) -> Layout:
    """Compute the positions of the nodes and edges of each graph in an unaugmented row."""
    n, k = row["graph"].shape[0], row["size"].shape[0]
    first_node = jnp.cumsum(row["size"]) - row["size"]
    edge_graph = row["graph"].at[row["edge"][:, 0]].get(mode="fill", fill_value=k)
    num_edges = jnp.zeros(k, jnp.int32).at[edge_graph].add(1, mode="drop")
    first_edge = jnp.cumsum(num_edges) - num_edges
    return Layout(
        jnp.arange(n, dtype=jnp.int32) - _gather(first_node, row["graph"]),
        edge_graph,
        jnp.arange(len(edge_graph), dtype=jnp.int32) - _gather(first_edge, edge_graph),
        first_node,
        num_edges,
    )


def drop_nodes(u: Array, row: Row, fraction: float) -> Row:
    """In each graph of n nodes, drop the floor(fraction * n) nodes with the smallest ``u``.

    u [N] has a uniform random number for each node of the row.

    Edges of dropped nodes remain in the row. Networks must ignore them.
    """
    return _drop(row, _select_lowest(u, row["graph"], row["size"], fraction))


def mask_attributes(u: Array, noise: Array, row: Row, fraction: float) -> Row:
    """In each graph of n nodes, set the floor(fraction * n) with the smallest ``u`` to ``noise``.

    Args:
        u: [N] uniform in [0, 1).
        noise: [N, f] new features.
        row: packed graphs.
        fraction: fraction of the nodes of each graph, in [0, 1].
    """
    masked = _select_lowest(u, row["graph"], row["size"], fraction)
    return {**row, "x": jnp.where(masked[:, None], noise.astype(row["x"].dtype), row["x"])}


def perturb_edges(u: Array, row: Row, at: Layout, fraction: float, add: bool) -> Row:
    """Drop floor(fraction * m) of the m edges of each graph. If ``add``, add as many random edges.

    Args:
        u: [E, 3] uniform in [0, 1). Edges with the smallest first numbers are dropped. The other
            numbers select the two nodes of the new edge.
        row: packed graphs.
        at: layout of the row.
        fraction: fraction of the edges of each graph, in [0, 1].
        add: whether to add an edge between two different nodes for each dropped one, which may
            duplicate an existing edge. Graphs with one node get no new edges.
    """
    dropped = _select_lowest(u[:, 0], at.edge_graph, at.num_edges, fraction)
    new = jnp.full_like(row["edge"], row["graph"].shape[0])
    if add:
        size = _gather(row["size"], at.edge_graph)
        a = _below(u[:, 1], size)
        b = (a + 1 + _below(u[:, 2], size - 1)) % jnp.maximum(size, 1)
        ends = jnp.stack([a, b], axis=1) + _gather(at.first_node, at.edge_graph)[:, None]
        new = jnp.where((size > 1)[:, None], ends, new)
    return {**row, "edge": jnp.where(dropped[:, None], new, row["edge"])}


def subgraph(wait: Array, start: Array, row: Row, at: Layout, fraction: float) -> Row:
    r"""Keep a random connected subgraph of max(1, floor(fraction * n)) nodes of each graph.

    The subgraph grows from a random node. The next node is drawn uniformly from the neighbours of
    the subgraph, until it is large enough or has no neighbours. First-passage percolation has the
    same distribution, because exponential waiting times are memoryless: give each node a waiting
    time w_v from Exponential(1), and keep the nodes with the smallest arrival times

    .. math:: t_v = w_v + \min_{u \sim v} t_u, \quad t_{start} = 0.

    These are computed for all graphs at once, in as many rounds as a shortest path has edges.

    Args:
        wait: [N] waiting times w, > 0.
        start: [k] uniform in [0, 1), selects the first node of each graph.
        row: packed graphs.
        at: layout of the row.
        fraction: fraction of the nodes of each graph, in [0, 1].
    """
    n = row["graph"].shape[0]
    first = at.first_node + _below(start, row["size"])
    first = jnp.where(row["size"] > 0, first, n)
    never = jnp.full_like(wait, jnp.inf)
    a, b = row["edge"][:, 0], row["edge"][:, 1]

    def relax(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        """Relax the arrival times along all edges once, as the Bellman-Ford algorithm does.

        The carry is the times, and whether one of them changed.
        """
        time, _ = carry
        ends = time.at[row["edge"]].get(mode="fill", fill_value=jnp.inf)
        earliest = never.at[b].min(ends[:, 0], mode="drop").at[a].min(ends[:, 1], mode="drop")
        new = jnp.minimum(time, earliest + wait)
        return new, jnp.any(new < time)

    initial = never.at[first].set(0.0, mode="drop")
    time, _ = lax.while_loop(lambda carry: carry[1], relax, (initial, jnp.bool_(True)))
    kept = _select_lowest(time, row["graph"], row["size"], fraction, minimum=1)
    return _drop(row, ~kept | jnp.isinf(time))


def rank(values: Array, group: Array) -> Array:
    """Return the rank [n] of each value in its group as int32. Equal values keep their order."""
    order = jnp.lexsort((values, group))
    position = jnp.arange(len(order), dtype=jnp.int32)
    ordered = group[order]
    is_first = jnp.concatenate([jnp.ones(1, bool), ordered[1:] != ordered[:-1]])
    first = lax.cummax(jnp.where(is_first, position, 0))
    return jnp.zeros_like(position).at[order].set(position - first, unique_indices=True)


def make_graph_views(recipes: Sequence[Recipe]) -> Callable[[Array, Row, Array], dict[str, Row]]:
    """Return a function that draws random views of a batch of packed graphs.

    The function maps ``(key, graphs, index)`` to {"views": ...}. The graphs are r rows of k graphs,
    with "x" of any dtype. ``index`` [r k] holds their indices in the data set. The views have one
    more axis in front, [V, r, ...], and "x" in float32.

    Args:
        recipes: a recipe for each of V views.
    """

    def augment(key: Array, graphs: Row, index: Array) -> dict[str, Row]:
        graphs = as_float(graphs)
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, index).reshape(graphs["size"].shape)

        def augment_row(keys: Array, row: Row) -> Row:
            views = [
                recipe(jax.vmap(jax.random.fold_in, (0, None))(keys, number), row)
                for number, recipe in enumerate(recipes)
            ]
            return jax.tree.map(lambda *x: jnp.stack(x), *views)

        return {"views": jax.vmap(augment_row, out_axes=1)(keys, graphs)}

    return augment


def as_float(graphs: Row) -> Row:
    """Cast the node features "x" of packed graphs to float32."""
    return {**graphs, "x": graphs["x"].astype(jnp.float32)}


def _select_lowest(
    values: Array, graph: Array, total: Array, fraction: float, minimum: int = 0
) -> Array:
    """Mark the max(minimum, floor(fraction * total)) lowest values of each graph, bool [n]."""
    # In float32, products such as 0.53 * 100 can lie just below the integer that they are.
    count = jnp.floor(fraction * total.astype(jnp.float32) + 1e-4).astype(jnp.int32)
    return rank(values, graph) < _gather(jnp.maximum(count, minimum), graph)


def _drop(row: Row, dropped: Array) -> Row:
    """Drop the nodes of a row of graphs where ``dropped`` [N] is True."""
    k = row["size"].shape[0]
    return {**row, "graph": jnp.where(dropped, k, row["graph"])}


def _gather(per_graph: Array, graph: Array) -> Array:
    """Look up a per-graph value for each node or edge. Padding gets 0."""
    return per_graph.at[graph].get(mode="fill", fill_value=0)


def _below(u: Array, bound: Array) -> Array:
    """Map ``u``, uniform in [0, 1), to an integer in [0, bound), or to 0 if the bound is 0."""
    index = jnp.floor(u * bound.astype(jnp.float32)).astype(jnp.int32)
    return jnp.clip(index, 0, jnp.maximum(bound - 1, 0))


def _fold_keys(keys: Array, graph: Array, index: Array) -> Array:
    """Derive a random key for each node or edge from the key of the graph and the item's index."""
    graph_keys = keys[jnp.minimum(graph, len(keys) - 1)]
    return jax.vmap(jax.random.fold_in)(graph_keys, index)


def _uniform(keys: Array, *shape: int) -> Array:
    """Draw numbers in [0, 1) from each key, [n, *shape]."""
    return jax.vmap(partial(jax.random.uniform, shape=shape, dtype=jnp.float32))(keys)


def _noise(keys: Array, row: Row) -> Array:
    """Draw features [N, f] from Normal(0.5, 0.5), with one key for each node."""
    keys = jax.vmap(partial(jax.random.fold_in, data=1))(keys)
    draw = partial(jax.random.normal, shape=row["x"].shape[1:], dtype=jnp.float32)
    return 0.5 + 0.5 * jax.vmap(draw)(keys)
