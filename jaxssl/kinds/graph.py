"""Graphs, which are packed into rows of a fixed shape."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from flax.typing import VariableDict
from jax import numpy as jnp
from ml_collections import ConfigDict

from jaxssl.augment.graph import GraphInputs, make_graph_views
from jaxssl.data import integrity
from jaxssl.data.batches import Batch
from jaxssl.data.decoders import graphs
from jaxssl.data.decoders.decoding import Crops
from jaxssl.data.decoders.graphs import Graph, GraphArray, Room
from jaxssl.data.kind import Kind, Opened, Shape
from jaxssl.data.plan import Plan
from jaxssl.data.splits import Source
from jaxssl.errors import UserError

# Rows of packed graphs have room for the batches of this many epochs. A larger batch later would
# compile a second program.
EPOCHS = 100
MAX_DEGREE = 32  # Larger node degrees are counted as this one.


class Reader(NamedTuple):
    """Reader of packed graph batches, which keeps all graphs in memory.

    Attributes:
        graphs: the graphs of the training split.
        labels: the label of each graph.
        sizes: [n, 2] nodes and edges of each graph.
        num_tags: width of the node features.
        order: maps a batch number to the indices [B] of the whole batch.
        batch_size: B.
        rows: number of rows of a whole batch. This process reads its share of them.
        room: capacity of a row, enough for the first `EPOCHS` epochs.
    """

    graphs: Sequence[Graph]
    labels: np.ndarray
    sizes: np.ndarray
    num_tags: int
    order: Callable[[int], np.ndarray]
    batch_size: int
    rows: int
    room: Room

    def __call__(self, step: int, indices: np.ndarray) -> Batch:
        """Pack this process's graphs at ``indices`` [b] for batch number ``step``."""
        # Every process measures the whole batch, so that the rows of all processes have equal
        # capacity.
        needed = graphs.room_for(self.sizes[self.order(step)], self.rows)
        rows = self.rows * len(indices) // self.batch_size
        return self._pack(indices, rows, graphs.largest([self.room, needed]))

    def example(self) -> Batch:
        """Return an example batch: the first two graphs in one row."""
        indices = np.arange(min(2, len(self.graphs)), dtype=np.int32)
        return self._pack(indices, 1, graphs.room_for(self.sizes[indices], 1))

    def shapes(self) -> Batch:
        """Return the shapes of a whole graph batch as `jax.ShapeDtypeStruct`."""
        b, r, (nodes, edges) = self.batch_size, self.rows, self.room
        shape = jax.ShapeDtypeStruct
        packed = {
            "x": shape((r, nodes, self.num_tags), np.uint8),
            "graph": shape((r, nodes), np.int32),
            "edge": shape((r, edges, 2), np.int32),
            "size": shape((r, b // r), np.int32),
        }
        return {"input": packed, "label": shape((b,), np.int32), "index": shape((b,), np.int32)}

    def _pack(self, indices: np.ndarray, rows: int, room: Room) -> Batch:
        packed = graphs.pack([self.graphs[i] for i in indices], rows, self.num_tags, room)
        return {"input": packed, "label": self.labels[indices], "index": indices}


def open_graphs(folder: Path, info: Any, metadata: Mapping[str, Any], data: Any) -> Opened:
    """Find the number of node tags of a prepared data set."""
    del info, data
    return Opened((integrity.num_tags(folder, metadata),), {"decode": graphs.decode})


def describe(shape: Shape) -> str:
    """Describe the nodes in words."""
    return f"nodes with {shape[0]} tags"


def plan(source: Source, crops: Crops, cache: str, workers: int) -> Plan:
    """Choose how graphs get to the device: packed on the host.

    Raises:
        UserError: if they shall be kept on the device.
    """
    del source, crops, workers
    if cache == "device":
        raise UserError(
            "data.cache='device' cannot hold graphs, which are packed on the host; set 'auto'"
        )
    return Plan(False, False, 0, "kept in memory, packed on the host by threads")


def make_reader(
    source: Source,
    order: Callable[[int], np.ndarray],
    batch_size: int,
    rows: int,
    crops: Crops | None = None,
    seed: int = 0,
) -> Reader:
    """Build the reader of packed batches of all graphs of a split."""
    del crops, seed
    every = array(source)
    sizes = graphs.sizes_of(every.graphs)
    steps = range(EPOCHS * (len(sizes) // batch_size))
    room = graphs.largest([graphs.room_for(sizes[order(step)], rows) for step in steps])
    return Reader(every.graphs, source.labels, sizes, every.num_tags, order, batch_size, rows, room)


def array(source: Source, inputs: Any = None) -> GraphArray:
    """Decode all graphs of a split to one `GraphArray`."""
    del inputs
    examples = source.read(np.arange(len(source)))
    return GraphArray([example.input for example in examples], source.shape[0])


def views(recipes: Sequence[Any], crops: Sequence[Any]) -> Any:
    """Return the function that draws the views of packed graphs."""
    if crops:
        raise ValueError("graphs have no small crops; set crops.number=0")
    return make_graph_views(recipes)


def find_crops(size: int, views: Sequence[Any], small: Sequence[Any]) -> Crops:
    """Return no crops."""
    del views, small
    return Crops((), (), size)


def view_shapes(config: ConfigDict, inputs: GraphInputs) -> dict[str, Any]:
    """Return the views of a small packed batch as `jax.ShapeDtypeStruct`."""

    def shape(dtype: Any, *axes: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((config.views, 1, *axes), dtype)

    row = {
        "x": shape(jnp.float32, 8, inputs.num_tags),
        "graph": shape(jnp.int32, 8),
        "edge": shape(jnp.int32, 8, 2),
        "size": shape(jnp.int32, 2),
    }
    return {"views": row}


def make_inputs(config: ConfigDict, shape: tuple[Any, ...]) -> GraphInputs:
    """Return the inputs of a run's network, which sees graphs with ``shape`` [node tags]."""
    del config
    return GraphInputs(shape[0])


def infer_inputs(config: ConfigDict, net: Any, variables: VariableDict) -> GraphInputs:
    """Return the inputs of a trained network, whose first layer tells the number of node tags.

    Raises:
        UserError: if the layer is missing.
    """
    del config
    try:
        return GraphInputs(variables["params"]["Dense_0"]["kernel"].shape[0])
    except KeyError as error:
        raise UserError(
            f"the {type(net).__name__} has no layer Dense_0, whose input is the tags of the nodes; "
            "name the first layer of a graph network so"
        ) from error


def fit_inputs(inputs: GraphInputs, test: Source) -> GraphInputs:
    """Return the inputs unchanged.

    Raises:
        UserError: if the graphs of a data set have other tags than the encoder takes.
    """
    (num_tags,) = test.shape
    if num_tags != inputs.num_tags:
        raise UserError(
            f"the encoder takes graphs with {inputs.num_tags} node tags, but {test.name!r} has "
            f"{num_tags}"
        )
    return inputs


def histograms(
    examples: GraphArray, part: slice | None = None, extract: Callable[..., Any] | None = None
) -> np.ndarray:
    """Count the degrees and tags of each graph's nodes as features.

    Returns:
        [n, f] float32: counts of degrees 0 to 32, counts of tags, log(1 + nodes), log(1 + edges).
    """
    del extract
    rows = []
    for tag, edge in examples.graphs[part or slice(None)]:
        degree = np.minimum(np.bincount(edge.ravel(), minlength=len(tag)), MAX_DEGREE)
        degrees = np.bincount(degree, minlength=MAX_DEGREE + 1)
        tags = np.bincount(tag, minlength=examples.num_tags)
        rows.append(np.concatenate([degrees, tags, np.log1p([len(tag), len(edge)])]))
    return np.array(rows, np.float32)


kind = Kind(
    units="graphs",
    data="graph",
    open=open_graphs,
    describe=describe,
    plan=plan,
    make_reader=make_reader,
    array=array,
    views=views,
    find_crops=find_crops,
    view_shapes=view_shapes,
    inputs=make_inputs,
    infer_inputs=infer_inputs,
    fit_inputs=fit_inputs,
    raw_features=histograms,
    is_drawn=lambda inputs: False,
)
