"""Batches in a seeded order, from the device's memory or streamed; the order is the same.

The order comes from one Grain pipeline over indices, whose iterator is checkpointed. It depends on
the seed and the number of batches taken, on nothing else.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import grain
import jax
import numpy as np
from jax.sharding import Mesh

from jaxssl import parallel
from jaxssl.data.source import Source, arrays
from jaxssl.errors import UserError, nearest

CACHES = ("auto", "device", "none")
AUTO_CACHE_BYTES = 2**30  # "auto" keeps a set of up to 1 GiB on the device
PREFETCH = 4  # batches that are read ahead when streaming, each by a thread


class Batches(NamedTuple):
    """An endless, checkpointable stream of batches on the mesh.

    Attributes:
        next: () -> {"image": uint8 [B, h, w, c], "label": int32 [B], "index": int32 [B]}, split
            over the devices by examples.
        get_state: () -> the position, JSON-able.
        set_state: goes to a position.
        per_epoch: batches in an epoch; the last, smaller one is dropped, another one each epoch.
        num_examples: in the training set.
        cache: the path taken, and why, for the start-up summary.
    """

    next: Callable[[], dict[str, jax.Array]]
    get_state: Callable[[], Any]
    set_state: Callable[[Any], None]
    per_epoch: int
    num_examples: int
    cache: str


def make_batches(source: Source, batch_size: int, *, seed: int, cache: str, mesh: Mesh) -> Batches:
    """Shuffled batches of ``source``, a new order each epoch.

    Args:
        source: the training split.
        batch_size: B, over all devices.
        seed: of the order.
        cache: "device" keeps the uint8 images on every device and gathers there, "none" streams
            and decodes, "auto" takes "device" up to 1 GiB.
        mesh: the devices.

    Raises:
        UserError: on an unknown cache, or a batch that does not fit the set or the devices.
    """
    if cache not in CACHES:
        raise UserError(f"data.cache={cache!r} is unknown{nearest(cache, CACHES)}")
    check_batch(batch_size, len(source), mesh.size)
    why = "as data.cache asks"
    if cache == "auto":
        size = len(source) * source.records[0]["image"].size
        cache = "device" if size <= AUTO_CACHE_BYTES else "none"
        why = f"{size / 2**20:.1f} MiB, the limit is {AUTO_CACHE_BYTES / 2**20:.0f} MiB"
    order = grain.MapDataset.range(len(source)).shuffle(seed=seed)
    if cache == "device":
        # Grain yields indices, the device gathers; the arrays are arguments, as constants they
        # would be compiled in.
        data = parallel.replicate(arrays(source), mesh)
        gather = jax.jit(_gather, out_shardings=parallel.data_sharding(mesh))
        indices = _iterate(order, batch_size, threads=0)

        def take() -> dict[str, jax.Array]:
            return gather(data, parallel.shard(next(indices).astype(np.int32), mesh))

        iterator, cache = indices, f"on the device ({why})"
    else:
        examples = _iterate(order.map(_reader(source)), batch_size, threads=PREFETCH)

        def take() -> dict[str, jax.Array]:
            return parallel.shard(next(examples), mesh)

        iterator, cache = examples, f"streamed ({why})"
    return Batches(
        take,
        iterator.get_state,
        iterator.set_state,
        len(source) // batch_size,
        len(source),
        cache,
    )


def _gather(data: dict[str, jax.Array], index: jax.Array) -> dict[str, jax.Array]:
    return {name: values[index] for name, values in data.items()} | {"index": index}


def _reader(source: Source) -> Callable[[int], dict[str, Any]]:
    def read(index: int) -> dict[str, Any]:
        record = source.records[index]
        label, index = np.int32(record["label"]), np.int32(index)
        return {"image": record["image"], "label": label, "index": index}

    return read


def _iterate(dataset: grain.MapDataset, batch_size: int, *, threads: int) -> Iterator[Any]:
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=threads)
    batched = dataset.batch(batch_size, drop_remainder=True).repeat()
    return iter(batched.to_iter_dataset(options))


def check_batch(batch_size: int, num_examples: int, num_devices: int) -> None:
    """Raise UserError if a batch does not fit the data set or the devices."""
    if not 1 <= batch_size <= num_examples:
        raise UserError(
            f"batch_size={batch_size} must lie between 1 and the {num_examples} training examples"
        )
    if batch_size % num_devices:
        below = batch_size - batch_size % num_devices
        raise UserError(
            f"batch_size={batch_size} (over all devices) is not divisible by the {num_devices} "
            f"devices; try {below or num_devices}"
        )
