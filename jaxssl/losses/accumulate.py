"""Gradient accumulation with full negatives: a large batch through a small encoder memory."""

from collections.abc import Callable
from typing import Any

import jax
from jax import Array, lax


def accumulate(
    encode: Callable[[Any], Any], loss: Callable[[Any], Array], batch: Any, num_chunks: int
) -> Array:
    """The loss of the whole batch, whose gradient holds one chunk's activations at a time.

    The chunks are encoded one by one and only their embeddings kept, so that every anchor meets the
    negatives of the whole batch; the backward pass encodes each chunk once more. Value and gradient
    are those of ``loss(encode(batch))``, for a third more work:

        def value(params):
            encode = lambda chunk: (net(params, chunk["view1"]), net(params, chunk["view2"]))
            return accumulate(encode, lambda z: losses.nt_xent(*z), batch, num_chunks=8)

        value, gradient = jax.value_and_grad(value)(params)

    Args:
        encode: chunk -> embeddings: a tree of arrays [c, ...], row i of example i of the chunk,
            that depends on no other example. Batch normalisation would see a chunk for a batch.
        loss: embeddings of all examples, the same tree of arrays [b, ...], -> scalar.
        batch: a tree of arrays [b, ...]; anything random belongs in it, such as a key per example.
        num_chunks: how many chunks of equal size, >= 1.

    Returns:
        [], as ``loss`` gives it.

    Raises:
        ValueError: if the arrays of ``batch`` differ in length or do not split into equal chunks.

    References:
        Gao et al., Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup, 2021.
    """
    embeddings = map_chunks(encode, batch, num_chunks)
    return loss(jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), embeddings))


def map_chunks(encode: Callable[[Any], Any], batch: Any, num_chunks: int) -> Any:
    """`encode` of each chunk, stacked on a new leading axis; its backward pass encodes again.

    Arguments and errors as in `accumulate`.
    """
    lengths = sorted({x.shape[0] for x in jax.tree.leaves(batch)})
    if len(lengths) != 1:
        raise ValueError(f"batch must be arrays of one length, got lengths {lengths}")
    if num_chunks < 1 or lengths[0] % num_chunks:
        raise ValueError(f"num_chunks must divide the batch of {lengths[0]}, got {num_chunks}")
    chunks = jax.tree.map(lambda x: x.reshape(num_chunks, -1, *x.shape[1:]), batch)
    return lax.map(jax.checkpoint(encode), chunks)
