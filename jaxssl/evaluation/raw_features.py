"""Features without a network (pixels, node counts), a baseline for pretrained encoders."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh

from jaxssl.augment.views import Inputs, resize_images
from jaxssl.data.graphs import GraphArray
from jaxssl.evaluation.features import extract

MAX_DEGREE = 32  # Larger node degrees are counted as this one.
IMAGE_SIZE = 32  # Larger images are resized to this many pixels a side.
FRAME_SIZE = 16  # Frames of clips are resized to this many pixels a side.


def make_encode(kind: str, mesh: Mesh) -> Callable[..., np.ndarray]:
    """Return the function that computes raw features [n, f] for images, clips or graphs.

    Args:
        kind: "image", "video" or "graph".
        mesh: the devices.
    """
    if kind == "graph":
        return graph_histograms
    return partial(pixels if kind == "image" else clip_pixels, mesh=mesh)


def graph_histograms(graphs: GraphArray, part: slice | None = None) -> np.ndarray:
    """Count the degrees and tags of each graph's nodes as features.

    Returns:
        [n, f] float32: counts of degrees 0 to 32, counts of tags, log(1 + nodes), log(1 + edges).
    """
    rows = []
    for tag, edge in graphs.graphs[part or slice(None)]:
        degree = np.minimum(np.bincount(edge.ravel(), minlength=len(tag)), MAX_DEGREE)
        degrees = np.bincount(degree, minlength=MAX_DEGREE + 1)
        tags = np.bincount(tag, minlength=graphs.num_tags)
        rows.append(np.concatenate([degrees, tags, np.log1p([len(tag), len(edge)])]))
    return np.array(rows, np.float32)


def pixels(images: Any, mesh: Mesh, part: slice | None = None) -> np.ndarray:
    """Return pixels in [0, 1] as features [n, f], from images resized to at most 32 x 32."""
    if max(images.shape[1:3]) <= IMAGE_SIZE:
        images = images[part or slice(None)]
        return np.reshape(images, (len(images), -1)) / np.float32(255)
    return extract(images, _shrink, Inputs(IMAGE_SIZE, images.shape[3]), mesh, part)


def clip_pixels(clips: Any, mesh: Mesh, part: slice | None = None) -> np.ndarray:
    """Return pixels of all frames in [0, 1] as features [n, f], resized to 16 x 16."""
    return extract(clips, _shrink, Inputs(FRAME_SIZE, clips.shape[4]), mesh, part)


@partial(jax.jit, static_argnums=0)
def _shrink(inputs: Inputs, block: Array) -> Array:
    images = block.reshape(-1, *block.shape[-3:])  # all frames of the clips
    return resize_images(images, inputs).reshape(len(block), -1)
