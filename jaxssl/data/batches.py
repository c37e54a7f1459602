"""Batches in a seeded order, from the device's memory or streamed; the order is the same.

A batch is a function of the seed and its number alone: not of the way it is read, of worker
processes, devices, hosts or restarts. So the position in the data is one number.
"""

import functools
import itertools
import logging
import math
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import absl.flags
import grain
import jax
import numpy as np
from jax.sharding import Mesh

from jaxssl import distributed
from jaxssl.data import decoding, files, packing
from jaxssl.data.reader import Reader
from jaxssl.data.source import Source
from jaxssl.errors import UserError, suggest

log = logging.getLogger("jaxssl")
CACHES = ("auto", "device", "none")
CACHE_BYTES = 2**30  # "auto" keeps a set of up to 1 GiB on the device, or:
CACHE_SHARE = 1 / 8  # of its memory, if that is known and more
READ_AHEAD = 2**33  # bytes of batches that threads hold on the host
AHEAD = 2  # batches that are on the device before they are asked for
POSITION = "next_index"
FOREVER = 2**40  # batches

Batch = dict[str, Any]


class Plan(NamedTuple):
    """How the training images get to the device.

    Attributes:
        cached: all of them lie there; else they are streamed.
        host: pictures are cropped before they are sent.
        workers: processes that read; 0 is threads of this one.
        why: for the start-up summary.
    """

    cached: bool
    host: bool
    workers: int
    why: str


class Batches(NamedTuple):
    """An endless, checkpointable stream of batches on the mesh.

    Attributes:
        next: () -> {"input", "label": int32 [B], "index": int32 [B]}, split over the devices by
            examples. The input is uint8 [B, h, w, c], or of pictures that the host crops
            {"views": [B, V, s, s, c], "crops": [B, L, t, t, c]}; graphs are packed into rows, see
            `jaxssl.data.packing`.
        take: ``(n, k) -> (data, places int32 [k, B])``, the next n <= k batches as places in data
            that lies on every device; the rows after the first n repeat the last. None if the
            examples are streamed.
        places: the batch's number, counted from 0 -> places [B] in the training set.
        get_state: () -> the position, JSON-able.
        set_state: goes to a position; UserError if it is of another number of images.
        close: ends threads and processes.
        num_examples: in the training split.
        example: two examples as they are in a batch, on the host.
        shapes: of a whole batch, `jax.ShapeDtypeStruct`.
        plan: how the images are read.
        crops: what the host cuts; None if it does not.
    """

    next: Callable[[], Batch]
    take: Callable[[int, int], tuple[Batch, jax.Array]] | None
    places: Callable[[int], np.ndarray]
    get_state: Callable[[], Any]
    set_state: Callable[[Any], None]
    close: Callable[[], None]
    num_examples: int
    example: Batch
    shapes: Batch
    plan: Plan
    crops: decoding.Crops | None


class Order(NamedTuple):
    """Which examples are in which batch.

    Attributes:
        num_examples: in the training split.
        batch_size: B; the smaller rest of an epoch is dropped, another one each epoch.
        seed: of the permutation of each epoch.
    """

    num_examples: int
    batch_size: int
    seed: int

    def __call__(self, step: int) -> np.ndarray:
        """The places [B] of batch number ``step``, counted from 0 over all epochs."""
        epoch, batch = divmod(step, self.num_examples // self.batch_size)
        first = batch * self.batch_size
        return _permutation(self.num_examples, self.seed, epoch)[first : first + self.batch_size]


def plan(source: Source, crops: decoding.Crops, *, cache: str = "auto", workers: int = -1) -> Plan:
    """Choose the way of the images.

    Args:
        source: the training split.
        crops: what the host can cut; images of one size are sent whole if there is no random crop.
        cache: "device" keeps the uint8 images on every device, "none" streams them, "auto" takes
            "device" if they are of one size and few enough.
        workers: processes that read a stream; 0 is threads of this process, -1 half of the cores if
            there are more than four.

    Raises:
        UserError: on an unknown cache, or a set that cannot be kept on the device.
    """
    if cache not in CACHES:
        raise UserError(f"data.cache={cache!r} is unknown{suggest(cache, CACHES)}")
    cores = files.cores()
    if not -1 <= workers <= 8 * cores:
        raise UserError(f"data.workers={workers} must be -1 (automatic) or 0 to {8 * cores} here")
    if source.kind == "video" and cache != "device":
        length = "of many lengths" if source.shape[0] is None else "of one length"
        return Plan(False, source.shape[0] is None, 0, f"clips {length}, streamed by threads")
    if source.kind == "graph":
        if cache == "device":
            raise UserError(
                "data.cache='device': graphs are packed on the host, leave it at 'auto'"
            )
        return Plan(False, False, 0, "kept in memory, packed on the host by threads")
    cached, why = False, "pictures of many sizes"
    if source.one_size:
        needed, limit = len(source) * math.prod(source.shape), _limit()
        cached = cache == "device" or (cache == "auto" and needed <= limit)
        why = f"{needed / 2**20:.1f} MiB, the limit is {limit / 2**20:.0f} MiB"
        why = why if cache == "auto" else "as data.cache asks"
    elif cache == "device":
        raise UserError(
            f"data.cache='device': the pictures of {source.name!r} are of many sizes and must be "
            "cropped on the host; leave it at 'auto'"
        )
    if cached:
        return Plan(True, False, 0, f"kept on the device ({why}), cropped there")
    host = not source.one_size or (bool(crops.views) and min(source.shape[:2]) > crops.size)
    if workers == -1:
        workers = cores // 2 if cores > 4 else 0
    readers = f"{workers} processes" if workers > 1 else "1 process" if workers else "threads"
    where = f"cropped to {crops.size} on the host" if host else "cropped on the device"
    return Plan(False, host, workers, f"streamed by {readers} ({why}), {where}")


def make_batches(
    source: Source,
    batch_size: int,
    *,
    seed: int,
    crops: decoding.Crops,
    mesh: Mesh,
    cache: str = "auto",
    workers: int = -1,
    parts: int = 1,
    captions: bool = False,
) -> Batches:
    """Shuffled batches of ``source``, a new order each epoch.

    The last, smaller batch of an epoch is dropped, another one each epoch.

    Args:
        source: the training split.
        batch_size: B, over all devices.
        seed: of the order, and of crops on the host.
        crops: what the host cuts, if it does.
        mesh: the devices.
        cache: see `plan`.
        workers: see `plan`.
        parts: that a device encodes its examples in; packed graphs have a row for each.
        captions: whether the input is {"image", "text"}, the latter int32 [B, k, length].

    Raises:
        UserError: as `plan`, and on a batch that does not fit the set or the devices.
    """
    check_batch(batch_size, len(source), mesh.size)
    if captions and not source.captioned:
        raise UserError(
            f"the images of {source.name!r} have no captions, which augment.name asks for; take "
            "data.name=captions, or a set of TFDS that has some"
        )
    way = plan(source, crops, cache=cache, workers=workers)
    crops = crops if way.host else None
    order = Order(len(source), batch_size, seed)
    if source.kind == "graph":
        reader = packing.reader(source, order, batch_size, mesh.size * parts)
        example, shapes = reader.example(), reader.shapes()
    else:
        reader = Reader(source, crops, seed, captions)
        example = reader(0, np.arange(min(2, len(source)), dtype=np.int32))
        shapes = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((batch_size, *x.shape[1:]), x.dtype), example
        )
    local = _Local(order, distributed.local_rows(batch_size, mesh), reader)
    resident = None
    if way.cached:
        resident = _Resident(source, local, mesh, captions)
        start = resident.batches
    else:
        leaves = jax.tree.leaves(shapes["input"])
        whole = sum(math.prod(x.shape) * x.dtype.itemsize for x in leaves)
        share = max(1, whole * len(local.rows) // batch_size)
        start = functools.partial(_streamed, local, share, way.workers, mesh)
    stream = _Stream(start, len(source), way.host, resident)
    take = stream.take if resident else None
    position = stream.get_state, stream.set_state
    made = len(source), example, shapes
    return Batches(stream.next, take, order, *position, stream.close, *made, way, crops)


class _Stream:
    """An iterator of batches that knows its position and can start at any."""

    def __init__(
        self,
        start: Callable[[int], Iterator[Batch]],
        num_examples: int,
        host: bool,
        resident: "_Resident | None" = None,
    ) -> None:
        self._start = start
        self._resident = resident
        self._made_of = {"num_examples": num_examples, "host_crops": host}
        self._position = 0
        self._batches: Iterator[Batch] | None = None

    def next(self) -> Batch:
        if self._batches is None:
            self._batches = self._start(self._position)
        try:
            batch = next(self._batches)
        except RuntimeError as error:
            if "terminated unexpectedly" not in str(error):
                raise
            raise UserError(
                "a process that reads the images was ended, as when memory runs out, or shared "
                "memory, /dev/shm (docker run --shm-size); try fewer data.workers, or 0"
            ) from error
        self._position += 1
        return batch

    def take(self, n: int, k: int) -> tuple[Batch, jax.Array]:
        places = self._resident.places(self._position, n, k)
        self._batches = None  # `next` goes on from the new position
        self._position += n
        return self._resident.data(), places

    def get_state(self) -> dict[str, int]:
        return {POSITION: self._position, **self._made_of}

    def set_state(self, state: Mapping[str, int]) -> None:
        before, now = self._made_of | state, self._made_of
        if before["num_examples"] != now["num_examples"]:
            raise UserError(
                f"the checkpoint is of a run on {before['num_examples']} images, the training "
                f"split has {now['num_examples']} now; take another --workdir, or the old images"
            )
        if before["host_crops"] != now["host_crops"]:
            log.warning(
                "input      so far the images were %scropped on the host: views differ from here "
                "on; set data.cache to go on as before",
                "" if before["host_crops"] else "not ",
            )
        self.close()
        self._position = state[POSITION]

    def close(self) -> None:
        if hasattr(self._batches, "close"):
            self._batches.close()
        self._batches = None


class _Local(NamedTuple):
    """What this process reads: its rows of every batch."""

    order: Order
    rows: np.ndarray
    reader: Callable[[int, np.ndarray], Batch]

    def places(self, step: int) -> np.ndarray:
        return self.order(step)[self.rows]

    def __call__(self, step: int) -> Batch:
        return self.reader(step, self.places(step))


class _Resident:
    """Examples that lie on every device. Only their indices are sent; the devices gather."""

    def __init__(self, source: Source, local: _Local, mesh: Mesh, captions: bool) -> None:
        self._source, self._local, self._mesh = source, local, mesh
        self._captions = captions
        self._gather = jax.jit(distributed.take_rows, out_shardings=distributed.data_sharding(mesh))
        self._data: Batch | None = None

    def data(self) -> Batch:
        """All examples as a batch has them, sent when they are first asked for."""
        if self._data is None:
            images, labels = self._source.images(0)[:], self._source.labels
            inputs = {"image": images, "text": self._source.texts} if self._captions else images
            index = np.arange(len(labels), dtype=np.int32)
            data = {"input": inputs, "label": labels, "index": index}
            self._data = distributed.replicate(data, self._mesh)
        return self._data

    def places(self, position: int, n: int, k: int) -> jax.Array:
        """The examples [k, B] of n batches from ``position`` on, then copies of the last."""
        rows = [self._local.places(position + min(i, n - 1)) for i in range(k)]
        return distributed.shard_rows(np.stack(rows), self._mesh, axis=1)

    def batches(self, position: int) -> Iterator[Batch]:
        for step in itertools.count(position):
            # The images are an argument: as constants they would be compiled in.
            yield self._gather(
                self.data(), distributed.shard_rows(self._local.places(step), self._mesh)
            )


@functools.lru_cache(maxsize=2)
def _permutation(n: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng((seed, epoch)).permutation(n).astype(np.int32)


def _streamed(
    local: _Local, share: int, workers: int, mesh: Mesh, position: int
) -> Iterator[Batch]:
    # Each thread holds this process' share of a batch; together they may hold `READ_AHEAD` bytes.
    threads = 1 if workers else max(1, min(16, files.cores(), READ_AHEAD // share))
    steps = grain.MapDataset.range(position, FOREVER)
    stream = steps.map(local).to_iter_dataset(grain.ReadOptions(threads, threads))
    if workers:
        if not absl.flags.FLAGS.is_parsed():
            absl.flags.FLAGS.mark_as_parsed()  # Grain's workers read them
        stream = stream.mp_prefetch(grain.MultiprocessingOptions(workers), _begin_worker)
        # On a CPU, JAX would keep hold of the memory that the processes share.
        stream = stream.map(lambda batch: jax.tree.map(np.array, batch))
    stream = stream.map(lambda batch: distributed.shard_rows(batch, mesh))
    return iter(grain.experimental.ThreadPrefetchIterDataset(stream, prefetch_buffer_size=AHEAD))


def _begin_worker(index: int, count: int) -> None:
    """In a worker process: it ends when the run ends it or is no more, not by signals to all."""
    del index, count
    for number in (signal.SIGINT, signal.SIGTERM):  # the run may still need batches to stop well
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_run, daemon=True).start()


def _end_with_run() -> None:
    multiprocessing.parent_process().join()
    os._exit(1)


def _limit() -> float:
    """Bytes of images that "auto" keeps on a device."""
    sizes = [(device.memory_stats() or {}).get("bytes_limit", 0) for device in jax.local_devices()]
    return max(CACHE_BYTES, CACHE_SHARE * min(sizes))


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
