"""Gradient accumulation that keeps all negatives, for batches that do not fit into memory."""

from collections.abc import Callable
from typing import TypeVar

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp

T = TypeVar("T")  # a tree of arrays
U = TypeVar("U")  # a tree of arrays


def accumulate(
    encode: Callable[[T], U], loss: Callable[[U], Array], batch: T, num_chunks: int
) -> Array:
    """Compute the loss of a whole batch while only one chunk's activations are in memory.

    Chunks are encoded one by one and only their embeddings are stored, so every anchor has the
    negatives of the whole batch. The backward pass encodes each chunk again. Value and gradient
    are the same as for ``loss(encode(batch))``, at about a third more compute:

        def value(params):
            encode = lambda chunk: (net(params, chunk["view1"]), net(params, chunk["view2"]))
            return accumulate(encode, lambda z: losses.nt_xent(*z), batch, num_chunks=8)

        value, gradient = jax.value_and_grad(value)(params)

    Args:
        encode: chunk -> embeddings, a tree of arrays [c, ...], or [V c, ...] view by view. Row i
            must depend only on example i (modulo c) of the chunk. Batch normalisation would use the
            statistics of a chunk.
        loss: embeddings of all examples, the same tree with arrays [b, ...] -> scalar.
        batch: tree of arrays [b, ...], including random keys of examples if ``encode`` needs them.
        num_chunks: number of chunks of equal size, >= 1. It must divide b.

    Returns:
        [] result of ``loss``.

    Raises:
        ValueError: if the arrays of ``batch`` differ in length or cannot be divided equally, or
            ``encode`` does not return all examples of a chunk.

    References:
        Gao et al., Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup, 2021.
    """
    # With consecutive examples, a chunk of a batch that is split over devices under `jax.jit` would
    # lie on one device, and XLA would let every device encode it.
    embeddings = map_chunks(encode, batch, num_chunks, strided=True)
    size = jax.tree.leaves(batch)[0].shape[0] // num_chunks

    def merge(x: Array) -> Array:
        if x.ndim < 2 or x.shape[1] % size:
            raise ValueError(f"encode must return arrays [{size}, ...], got {list(x.shape[1:])}")
        return x.swapaxes(0, 1).reshape(-1, *x.shape[2:])

    return loss(jax.tree.map(merge, embeddings))


def map_chunks(encode: Callable[[T], U], batch: T, num_chunks: int, *, strided: bool = False) -> U:
    """Encode a batch chunk by chunk and stack the results: [num_chunks, b / num_chunks, ...].

    The backward pass encodes each chunk again. A chunk has consecutive examples, or every
    ``num_chunks``-th example if ``strided``.
    """

    def split(x: jax.Array) -> jax.Array:
        if strided:
            return x.reshape(-1, num_chunks, *x.shape[1:]).swapaxes(0, 1)
        return x.reshape(num_chunks, -1, *x.shape[1:])

    shapes = [np.shape(x) for x in jax.tree.leaves(batch)]
    if len({shape[:1] for shape in shapes}) != 1 or not shapes[0]:
        raise ValueError(f"all arrays of a batch must have the same length, got shapes {shapes}")
    b = shapes[0][0]
    is_count = jnp.issubdtype(jnp.result_type(num_chunks), jnp.integer)
    if not is_count or num_chunks < 1 or b % num_chunks:
        raise ValueError(f"num_chunks must divide the batch size {b}, got {num_chunks}")
    return lax.map(jax.checkpoint(encode), jax.tree.map(split, batch))
