"""Extract the features of a data set, block by block."""

import math
import tempfile
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import Array
from jax import numpy as jnp

from jaxssl import distributed

BLOCK = 256  # images at a time
IN_MEMORY = 2**32  # bytes of features


def extract(
    images: Any,
    apply: Callable[[Any, Array], Array],
    variables: Any,
    mesh: jax.sharding.Mesh,
    part: slice | None = None,
) -> np.ndarray:
    """`apply(variables, block)` over blocks of ``images``, split over the mesh.

    Args:
        images: [n, h, w, c] uint8; or what has a length and a ``block(places, size, rows)``, such
            as `jaxssl.data.graphs.GraphArray`, whose blocks are dicts of arrays.
        apply: a jitted function of variables and a block, which resizes and scales it too.
        variables: replicated over the mesh.
        mesh: the devices, of this process.
        part: which of the images, n of them; by default all.

    Returns:
        [n, f] float32; more than 4 GiB lie in a temporary file.
    """
    begin, end, _ = (part or slice(None)).indices(len(images))
    # Few images make a smaller block, of one of a few sizes, so that little is compiled.
    block = min(BLOCK, 1 << max(4, (end - begin - 1).bit_length()))
    block = -(-block // mesh.size) * mesh.size
    rows: np.ndarray | None = None
    waiting: tuple[int, int, Array] | None = None  # on the device, while the next block is read

    def fetch(start: int, count: int, found: Array) -> None:
        nonlocal rows
        values = np.asarray(found.astype(jnp.float32))
        rows = _room((end - begin, values.shape[1])) if rows is None else rows
        rows[start : start + count] = values[:count]

    for start in range(begin, end, block):
        places = slice(start, min(start + block, end))
        # The last block is filled up, so that there is one compilation and an even split.
        if hasattr(images, "block"):
            filled = images.block(places, block, mesh.size)
        else:
            some = images[places]
            more = np.zeros((block - len(some), *some.shape[1:]), some.dtype)
            filled = np.concatenate([some, more])
        found = apply(variables, distributed.shard(filled, mesh))
        if waiting is not None:
            fetch(*waiting)
        waiting = start - begin, places.stop - start, found
    if waiting is None:
        raise ValueError("there are no images to take features of")
    fetch(*waiting)
    return rows


def _room(shape: tuple[int, int]) -> np.ndarray:
    """A float32 array, of many rows in a temporary file."""
    if 4 * math.prod(shape) <= IN_MEMORY:
        return np.empty(shape, np.float32)
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, np.float32, "w+", shape=shape)
