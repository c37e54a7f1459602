"""Read the examples of a batch and assemble its arrays on the host."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxssl.data import clips, decoding, graphs
from jaxssl.data.graphs import Graph, Room
from jaxssl.data.source import Source

Batch = dict[str, Any]

# Rows of packed graphs have room for the batches of this many epochs. A larger batch later would
# compile a second program.
EPOCHS = 100


class Reader(NamedTuple):
    """Reader of image or clip batches, which is copied to worker processes.

    Attributes:
        source: the training split.
        crops: crops to cut. None keeps the images, which must have one size.
        seed: seed of the crops, together with the batch number and the example's index.
        captions: whether the tokens of the captions are read too.
    """

    source: Source
    crops: decoding.Crops | None
    seed: int
    captions: bool = False

    def __call__(self, step: int, indices: np.ndarray) -> Batch:
        """Read the examples at ``indices`` int32 [b] for batch number ``step``."""
        examples = self.source.read(indices, self.captions)
        convert = self._clips if self.source.kind == "video" else self._images
        inputs = convert(step, indices, [example.input for example in examples])
        if self.captions:
            texts = [example.text for example in examples if example.text is not None]
            inputs = {"image": inputs, "text": np.stack(texts)}
        labels = np.array([example.label for example in examples], np.int32)
        return {"input": inputs, "label": labels, "index": indices}

    def _images(self, step: int, indices: np.ndarray, pictures: list[Any]) -> Any:
        if self.crops is None:
            return np.stack([decoding.pixels(picture) for picture in pictures])
        if not self.crops.views:
            return np.stack([decoding.centre(picture, self.crops.size) for picture in pictures])
        groups: dict[str, list[np.ndarray]] = {"views": [], "crops": []}
        for index, picture in zip(indices, pictures, strict=True):
            rng = self._rng(step, index)
            groups["views"].append(np.stack(decoding.random_crops(picture, self.crops.views, rng)))
            if self.crops.crops:
                small = decoding.random_crops(picture, self.crops.crops, rng)
                groups["crops"].append(np.stack(small))
        return {name: np.stack(images) for name, images in groups.items() if images}

    def _clips(self, step: int, indices: np.ndarray, videos: list[np.ndarray]) -> Any:
        if self.crops is None:
            return np.stack(videos)
        views = []
        for index, clip in zip(indices, videos, strict=True):
            rng = self._rng(step, index)
            views.append(np.stack([clips.window(clip, n, 1, rng) for n in self.crops.frames]))
        return {"views": np.stack(views)}

    def _rng(self, step: int, index: int) -> np.random.Generator:
        return np.random.default_rng((self.seed, step, int(index)))


class GraphReader(NamedTuple):
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


def graph_reader(
    source: Source, order: Callable[[int], np.ndarray], batch_size: int, rows: int
) -> GraphReader:
    """Build a `GraphReader` of all graphs of a split."""
    array = source.graph_array
    sizes = graphs.sizes_of(array.graphs)
    steps = range(EPOCHS * (len(sizes) // batch_size))
    room = graphs.largest([graphs.room_for(sizes[order(step)], rows) for step in steps])
    return GraphReader(
        array.graphs, source.labels, sizes, array.num_tags, order, batch_size, rows, room
    )
