"""Exact nearest neighbours by cosine similarity, in blocks, on threads."""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp

QUERY_BLOCK = 100  # queries per block, so few that their similarities stay in cache
BANK_BLOCK = 2**26  # bytes of the bank on the device at once
QUERY_BYTES = 2**30  # bytes of queries on the device at once; the bank is read once per part
THREADS = min(8, os.cpu_count() or 1)  # number of concurrent searches
Rows = Array | np.ndarray
Merged = tuple[Array, Array]  # the arrays of `Nearest` on a device


class Nearest(NamedTuple):
    """The k nearest rows of a bank for each of m queries, the nearest first.

    Attributes:
        similarity: [m, k] float32 cosine similarities.
        indices: [m, k] int32, into the bank.
    """

    similarity: np.ndarray
    indices: np.ndarray


def neighbours(bank: Rows, queries: Rows, k: int) -> Nearest:
    """Find the k nearest rows of a bank for each query, by cosine similarity.

    Bank and queries are processed in blocks. Beyond the arguments and the result, this needs about
    `QUERY_BYTES` and three times `BANK_BLOCK` bytes, and `QUERY_BLOCK` rows of similarities per
    thread.

    Args:
        bank: [n, f], any numeric type. Rows need not be normalised.
        queries: [m, f], any numeric type.
        k: number of neighbours, >= 1. At most n are returned.

    Returns:
        Similarities and indices. Ties go to the smaller index. A zero row has similarity 0 to every
        row.

    Raises:
        ValueError: if an array has no rows, their widths differ, or a row is not finite in float32.
    """
    if bank.ndim != 2 or queries.ndim != 2 or bank.shape[1] != queries.shape[1]:
        raise ValueError(
            "features must be [n, f] and [m, f] of the same f, got "
            f"{list(bank.shape)} and {list(queries.shape)}"
        )
    if 0 in (*bank.shape, *queries.shape):
        raise ValueError(
            f"bank and queries must not be empty, got {list(bank.shape)} and {list(queries.shape)}"
        )
    results = [
        _search(bank, unit_rows(queries, part, "queries"), min(k, len(bank)))
        for part in slices(len(queries), QUERY_BYTES // (4 * queries.shape[1]))
    ]
    return Nearest(*(np.concatenate(x) for x in zip(*results, strict=True)))


def nearest_others(features: np.ndarray, k: int, part: slice | None = None) -> Nearest:
    """Return each row's nearest neighbours among all other rows of the same array.

    Args:
        features: [n, f], as in `neighbours`.
        k: number of neighbours, >= 1. At most n - 1 are returned.
        part: the rows whose neighbours are searched. Default: all.

    Returns:
        Similarities and indices as `neighbours`, without the row itself.
    """
    first, end, _ = (part or slice(None)).indices(len(features))
    similarity, index = neighbours(features, features[first:end], k + 1)
    # The query's own row is moved to the end and dropped. Among many equal rows it may be missing.
    order = np.argsort(index == np.arange(first, end)[:, None], axis=1, kind="stable")[:, :-1]
    return Nearest(*(np.take_along_axis(x, order, axis=1) for x in (similarity, index)))


def _search(bank: Rows, queries: Array, k: int) -> Nearest:
    """Find the k nearest bank examples for one block of normalised queries."""
    m, f = queries.shape
    # On a CPU, top_k runs on one core and a matrix product on all, so threads overlap the two.
    threads = min(THREADS, -(-m // QUERY_BLOCK))
    devices = (jax.local_devices() * threads)[:threads]
    queries = jnp.pad(queries, ((0, -m % (threads * QUERY_BLOCK)), (0, 0)))
    shares = list(map(jax.device_put, queries.reshape(threads, -1, QUERY_BLOCK, f), devices))
    del queries  # frees the copy on the first device
    shape = (*shares[0].shape[:2], k)
    none = jnp.full(shape, -jnp.inf), jnp.zeros(shape, jnp.int32)
    best = [jax.device_put(none, device) for device in devices]
    with ThreadPoolExecutor(threads) as pool:
        for part in slices(len(bank), BANK_BLOCK // (4 * f)):
            rows = unit_rows(bank, part, "the bank")
            copies = {device: jax.device_put(rows, device) for device in set(devices)}
            rows = [copies[device] for device in devices]
            best = list(pool.map(_update_and_wait, best, shares, rows, [part.start] * threads))
            del rows, copies  # frees this part of the bank before the next one is copied
    return Nearest(*(np.concatenate(x).reshape(-1, k)[:m] for x in zip(*best, strict=True)))


def _update_and_wait(best: Merged, queries: Array, bank: Array, first: int) -> Merged:
    """Merge a block of the bank into the nearest neighbours, and wait, which bounds the memory."""
    return jax.block_until_ready(_update(*best, queries, bank, first))


def slices(length: int, size: int) -> list[slice]:
    """Divide a range into the fewest nearly equal parts of about ``size``."""
    size = -(-length // max(1, round(length / max(1, size))))
    return [slice(first, min(first + size, length)) for first in range(0, length, size)]


def unit_rows(features: Rows, part: slice, name: str) -> Array:
    """L2-normalise a slice of the feature rows, as `torch.nn.functional.normalize` does.

    NumPy divides by the norm, as PyTorch does. XLA would multiply by its reciprocal, and parallel
    rows would no longer be exactly equal.

    Args:
        features: [n, f].
        part: the rows to normalise.
        name: name of the features, for the error about a value that is not finite.
    """
    rows = np.asarray(features[part]).astype(np.float32, copy=False)
    largest = np.maximum(rows.max(axis=1, initial=0), -rows.min(axis=1, initial=0))
    if not np.isfinite(largest).all():
        row = part.start + int(np.argmin(np.isfinite(largest)))
        raise ValueError(f"features must be finite, but row {row} of {name} has NaN or infinity")
    # Scaling by a power of two is exact, and keeps the squares from overflowing.
    scale = np.ldexp(np.float32(1), -np.clip(np.frexp(largest)[1], -120, 126))
    rows = rows * scale[:, None]
    norm = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    rows /= np.maximum(norm, np.float32(1e-12) * scale)[:, None]
    return jax.device_put(rows, may_alias=True)


@jax.jit
def _update(similarity: Array, index: Array, queries: Array, bank: Array, first: int) -> Merged:
    """Merge the nearest neighbours so far with the bank rows from ``first`` on."""

    def update_block(block: tuple[Array, Array, Array]) -> Merged:
        query, old, old_index = block
        new = jnp.matmul(query, bank.T, precision=lax.Precision.HIGHEST)
        return merge_nearest(old, old_index, new, first)

    return lax.map(update_block, (queries, similarity, index))


def merge_nearest(similarity: Array, index: Array, new: Array, first: int | Array) -> Merged:
    """Merge the k nearest neighbours with similarities ``new`` to bank rows from ``first`` on."""
    k = similarity.shape[1]
    new, new_index = lax.top_k(new, min(k, new.shape[1]))
    new = jnp.concatenate([similarity, new], axis=1)
    new_index = jnp.concatenate([index, new_index.astype(jnp.int32) + first], axis=1)
    new, order = lax.top_k(new, k)
    return new, jnp.take_along_axis(new_index, order, axis=1)
