"""Extract the features of a data set block by block."""

import math
import os
import tempfile
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import Array
from jax import numpy as jnp

from jaxssl import distributed
from jaxssl.augment.views import Inputs
from jaxssl.errors import UserError
from jaxssl.pretrained.encoder import PretrainedEncoder, make_encode

BLOCK = 256  # maximum number of images per device in a block
BLOCK_BYTES = 2**26  # maximum size of these images in bytes, so that large images have small blocks
IN_MEMORY = 2**32  # larger feature arrays (in bytes) are kept in a temporary file


def extract(
    images: Any, apply: Callable[[Any, Array], Array], variables: object, mesh: jax.sharding.Mesh
) -> np.ndarray:
    """Compute ``apply(variables, block)`` for blocks of images, each split over the devices.

    Several processes share the blocks, and each gets all features. All of them must call this. Any
    number of devices and processes gives the same features.

    Args:
        images: [n, h, w, c] uint8, or an object with a length and a method
            ``block(indices, size, rows)``, such as `jaxssl.kinds.graph.GraphArray`,
            which returns a dict of arrays.
        apply: jitted function of variables and a block, which also resizes and scales the images.
        variables: replicated over the mesh.
        mesh: the devices of all processes.

    Returns:
        [n, f] float32. More than 4 GiB are stored in a temporary file.

    Raises:
        ValueError: if ``images`` is empty.
    """
    n = len(images)
    if not n:
        raise ValueError("the data set must have images to extract features from, got none")
    variables, mesh = distributed.local_view(variables, mesh)
    # Rows per device depend on n and the size of an image, not on the devices, because rounding may
    # depend on them. They are powers of two, so that data sets of different sizes share programs.
    rows = min(BLOCK, max(16, (1 << (n - 1).bit_length()) // 8))
    most = BLOCK_BYTES // math.prod(getattr(images, "shape", (n,))[1:])  # Graphs have no shape.
    block = min(rows, 1 << max(0, most.bit_length() - 1)) * mesh.size
    stride = block * distributed.process_count()

    def compute(start: int) -> Array:
        """Start to compute this process's block of the images from ``start`` on."""
        first = start + block * distributed.process_index()
        # A process that has no images left in the last round computes the last image again.
        indices = slice(min(first, n - 1), min(first + block, n))
        # The last block is padded, so that one program serves all blocks and splits evenly over the
        # devices.
        if hasattr(images, "block"):
            padded = images.block(indices, block, mesh.size)
        else:
            padded = distributed.pad_rows(images[indices], block)
        return apply(variables, distributed.shard(padded, mesh))

    features = np.zeros((0, 0), np.float32)
    following = compute(0)
    for start in range(0, n, stride):
        result = following
        if start + stride < n:
            # The device computes the result while the host reads the images of the next block.
            following = compute(start + stride)
        values = distributed.gather_processes(np.asarray(result.astype(jnp.float32)))
        values = values.reshape(-1, values.shape[-1])[: n - start]
        if start == 0:  # The first block tells the number of features.
            features = _allocate((n, values.shape[1]))
        features[start : start + len(values)] = values
    return features


def encode_images(
    encoder: PretrainedEncoder, images: Any, inputs: Inputs, layer: str = "projector"
) -> np.ndarray:
    """Compute the outputs [n, f] of one layer of an encoder for images, block by block.

    ``inputs`` and ``layer`` are as in `jaxssl.pretrained.encoder.make_encode`.
    """
    encode, mesh = make_encode(encoder, inputs, layer), distributed.make_mesh()
    return extract(images, encode, distributed.replicate(encoder.variables, mesh), mesh)


def l2_normalise(rows: np.ndarray) -> np.ndarray:
    """L2-normalise each row of [n, d]. A row of zeros stays zero."""
    largest = np.maximum(rows.max(axis=1, initial=0), -rows.min(axis=1, initial=0))
    # Scaling by a power of two is exact, and keeps squares from over- and underflowing.
    rows = np.ldexp(rows, -np.frexp(largest)[1][:, None])
    norm = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(norm > 0, norm, 1)


def _allocate(shape: tuple[int, int]) -> np.ndarray:
    """Allocate a float32 array, in memory or, if it is large, in a temporary file.

    Raises:
        UserError: if the file cannot be written.
    """
    size = 4 * math.prod(shape)
    if size <= IN_MEMORY:
        return np.empty(shape, np.float32)
    try:
        with tempfile.TemporaryFile() as file:
            if hasattr(os, "posix_fallocate"):  # otherwise a full disk would kill the process
                os.posix_fallocate(file.fileno(), 0, size)
            return np.memmap(file, np.float32, "w+", shape=shape)
    except OSError as error:
        raise UserError(
            f"the features need {size >> 20} MiB in a temporary file: {error.strerror}; name a "
            "folder with enough space with the environment variable TMPDIR"
        ) from error
