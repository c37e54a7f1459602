"""Shuffled training batches, kept on the device or streamed from the host.

A batch depends only on the seed and its number. It does not depend on the way it is read, on worker
processes, devices, hosts or restarts. The position in the data is therefore one number.
"""

import functools
import itertools
import logging
import math
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import absl.flags
import grain
import jax
import numpy as np
from jax.sharding import Mesh

from jaxssl import distributed
from jaxssl.data import kind
from jaxssl.data.decoders import decoding, files
from jaxssl.data.plan import Plan, make_plan
from jaxssl.data.records import Example
from jaxssl.data.splits import Source
from jaxssl.errors import UserError

Batch = dict[str, Any]

log = logging.getLogger("jaxssl")
READ_AHEAD = 2**33  # limit in bytes on batches that reading threads hold in host memory
PREFETCH = 2  # number of batches that are sent to the device ahead of time
POSITION = "next_index"  # key under which a checkpoint stores the position in the stream
ENDLESS = 2**40  # number of batches that stands for an endless stream


class Batches(NamedTuple):
    """Endless stream of training batches on the device mesh, with a position for checkpoints.

    Attributes:
        next: () -> {"input", "label": int32 [B], "index": int32 [B]}, sharded by examples. The
            input is uint8 [B, h, w, c], or for images that the host crops
            {"views": [B, V, s, s, c], "crops": [B, L, t, t, c]}. Graphs are packed, see
            `jaxssl.data.decoders.graphs`.
        take: ``(n, k) -> (data, indices int32 [k, B])``, the next n <= k batches as indices into
            data that are kept on every device. The rows after the first n repeat the last one. None
            if examples are streamed.
        indices: maps a batch number, counted from 0, to the indices [B] of its examples.
        get_state: () -> the position, serialisable as JSON.
        set_state: moves to a position. Raises UserError if it is of a set of another size.
        close: ends threads and processes.
        num_examples: number of examples of the training split.
        example: a batch of two examples on the host.
        shapes: a whole batch of `jax.ShapeDtypeStruct`.
        plan: how examples are read.
        crops: crops that the host cuts. None if it does not cut any.
    """

    next: Callable[[], Batch]
    take: Callable[[int, int], tuple[Batch, jax.Array]] | None
    indices: Callable[[int], np.ndarray]
    get_state: Callable[[], Any]
    set_state: Callable[[Any], None]
    close: Callable[[], None]
    num_examples: int
    example: Batch
    shapes: Batch
    plan: Plan
    crops: decoding.Crops | None


class Order(NamedTuple):
    """Random order of the training examples, a new one in each epoch.

    Attributes:
        num_examples: number of examples of the training split.
        batch_size: B. The smaller last batch of an epoch is dropped.
        seed: seed of the permutations. Each epoch has another permutation.
    """

    num_examples: int
    batch_size: int
    seed: int

    def __call__(self, step: int) -> np.ndarray:
        """Return the indices [B] of batch number ``step``, counted from 0 over all epochs."""
        epoch, batch = divmod(step, self.num_examples // self.batch_size)
        start = batch * self.batch_size
        return _permutation(self.num_examples, self.seed, epoch)[start : start + self.batch_size]


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
    examples: str = "",
) -> Batches:
    """Build the stream of shuffled batches of ``source``, in a new order each epoch.

    Args:
        source: the training split.
        batch_size: B, over all devices. The smaller last batch of an epoch is dropped.
        seed: seed of the order, and of the host's crops.
        crops: crops that the host can cut.
        mesh: the devices.
        cache: see `make_plan`.
        workers: see `make_plan`.
        parts: number of parts in which a device encodes its share of a batch. Graphs are packed
            into a row for each part.
        examples: kind of examples, the name of a file of `jaxssl/kinds`; "" for that of the data
            set. For "image_text" the input is {"image", "text"}, the text being int32
            [B, k, length].

    Raises:
        UserError: as `make_plan`, if the batch size does not fit the split or the devices, or if
            the split lacks captions.
    """
    check_batch(batch_size, len(source), mesh.size)
    plan = make_plan(source, crops, cache=cache, workers=workers)
    host_crops = crops if plan.host else None
    order = Order(len(source), batch_size, seed)
    make_reader = kind.get(examples or source.kind).make_reader
    reader = make_reader(source, order, batch_size, mesh.size * parts, host_crops, seed)
    shapes = reader.shapes()
    local = _LocalReader(order, distributed.local_rows(batch_size, mesh), reader)
    cached = None
    if plan.cached:
        cached = _DeviceCache(local, mesh)
        start = cached.batches
    else:
        num_bytes = sum(
            math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(shapes["input"])
        )
        share = max(1, num_bytes * len(local.rows) // batch_size)
        start = functools.partial(_stream_batches, local, share, plan.workers, mesh)
    stream = _Stream(start, len(source), plan.host, cached)
    return Batches(
        stream.next,
        stream.take if cached else None,
        order,
        *(stream.get_state, stream.set_state, stream.close),
        *(len(source), reader.example(), shapes, plan, host_crops),
    )


def assemble(inputs: Any, examples: Sequence[Example], indices: np.ndarray) -> Batch:
    """Return a batch of inputs with the labels of their examples."""
    labels = np.array([example.label for example in examples], np.int32)
    return {"input": inputs, "label": labels, "index": indices}


def first_examples(read: Callable[[int, np.ndarray], Batch], source: Source) -> Batch:
    """Read the first two examples of a split."""
    return read(0, np.arange(min(2, len(source)), dtype=np.int32))


def shapes_of(example: Batch, batch_size: int) -> Batch:
    """Return the shapes of a whole batch as `jax.ShapeDtypeStruct`."""
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((batch_size, *x.shape[1:]), x.dtype), example
    )


class _Stream:
    """Iterator over batches that knows its position and can start at any position."""

    def __init__(
        self,
        start: Callable[[int], Iterator[Batch]],
        num_examples: int,
        host: bool,
        cache: "_DeviceCache | None" = None,
    ) -> None:
        self._start = start
        self._cache = cache
        self._settings = {"num_examples": num_examples, "host_crops": host}
        self._position = 0
        self._batches: Any = None

    def next(self) -> Batch:
        if self._batches is None:
            self._batches = self._start(self._position)
        try:
            batch = next(self._batches)
        except RuntimeError as error:
            if "terminated unexpectedly" not in str(error):
                raise
            raise UserError(
                "a process that reads images was killed, probably because memory or shared memory "
                "(/dev/shm, docker run --shm-size) is used up; reduce data.workers, or set it to 0"
            ) from error
        self._position += 1
        return batch

    def take(self, n: int, k: int) -> tuple[Batch, jax.Array]:
        assert self._cache is not None
        indices = self._cache.indices(self._position, n, k)
        self._batches = None  # `next` starts again at the new position.
        self._position += n
        return self._cache.data(), indices

    def get_state(self) -> dict[str, int]:
        return {POSITION: self._position, **self._settings}

    def set_state(self, state: Mapping[str, int]) -> None:
        before, now = {**self._settings, **state}, self._settings
        if before["num_examples"] != now["num_examples"]:
            raise UserError(
                f"the checkpoint is of a run on {before['num_examples']} images, but the training "
                f"split has {now['num_examples']} now; use another --workdir, or the earlier images"
            )
        if before["host_crops"] != now["host_crops"]:
            log.warning(
                "input      images were %scropped on the host before: views differ from here on; "
                "set data.cache to continue as before",
                "" if before["host_crops"] else "not ",
            )
        self.close()
        self._position = state[POSITION]

    def close(self) -> None:
        if hasattr(self._batches, "close"):
            self._batches.close()
        self._batches = None


class _LocalReader(NamedTuple):
    """Reader of the rows of each batch that belong to this process."""

    order: Order
    rows: np.ndarray
    reader: Any

    def indices(self, step: int) -> np.ndarray:
        return self.order(step)[self.rows]

    def __call__(self, step: int) -> Batch:
        return self.reader(step, self.indices(step))


class _DeviceCache:
    """Batches from a copy of all examples on every device, gathered there by index."""

    def __init__(self, local: _LocalReader, mesh: Mesh) -> None:
        self._local, self._mesh = local, mesh
        self._gather = jax.jit(distributed.take_rows, out_shardings=distributed.data_sharding(mesh))
        self._data: Batch | None = None

    def data(self) -> Batch:
        """Return all cached examples in the form of one batch. The first call sends them."""
        if self._data is None:
            self._data = distributed.replicate(self._local.reader.everything(), self._mesh)
        assert self._data is not None
        return self._data

    def indices(self, position: int, n: int, k: int) -> jax.Array:
        """Return the indices [k, B] of n batches from ``position`` on, padded by the last batch."""
        rows = [self._local.indices(position + min(i, n - 1)) for i in range(k)]
        return distributed.shard_rows(np.stack(rows), self._mesh, axis=1)

    def batches(self, position: int) -> Iterator[Batch]:
        for step in itertools.count(position):
            # The cached images are an argument of the jitted function. As constants, XLA would copy
            # them into the program.
            yield self._gather(
                self.data(), distributed.shard_rows(self._local.indices(step), self._mesh)
            )


@functools.lru_cache(maxsize=2)
def _permutation(n: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng((seed, epoch)).permutation(n).astype(np.int32)


def _stream_batches(
    local: _LocalReader, share: int, workers: int, mesh: Mesh, position: int
) -> Iterator[Batch]:
    # Each reading thread holds this process's share of a batch in memory, ``share`` bytes.
    threads = 1 if workers else max(1, min(16, files.cpu_count(), READ_AHEAD // share))
    steps = grain.MapDataset.range(position, ENDLESS)
    stream = steps.map(local).to_iter_dataset(grain.ReadOptions(threads, threads))
    if workers:
        if not absl.flags.FLAGS.is_parsed():
            absl.flags.FLAGS.mark_as_parsed()  # Grain's worker processes read the flags.
        stream = stream.mp_prefetch(grain.MultiprocessingOptions(workers), _start_worker)
        # The batch is copied. Without a copy, JAX on a CPU would keep the shared memory of the
        # reading processes in use.
        stream = stream.map(lambda batch: jax.tree.map(np.array, batch))
    stream = stream.map(lambda batch: distributed.shard_rows(batch, mesh))
    return iter(grain.experimental.ThreadPrefetchIterDataset(stream, prefetch_buffer_size=PREFETCH))


def _start_worker(index: int, count: int) -> None:
    """Make a reading process end with the run, and ignore signals to the process group.

    A run that is asked to stop may need more batches before it stops.
    """
    del index, count
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def check_batch(batch_size: int, num_examples: int, num_devices: int) -> None:
    """Raise UserError if batch_size does not fit the training split or the number of devices."""
    if not 1 <= batch_size <= num_examples:
        raise UserError(
            f"batch_size must be between 1 and the {num_examples} training examples, got "
            f"{batch_size}"
        )
    if batch_size % num_devices:
        below = batch_size - batch_size % num_devices
        raise UserError(
            f"batch_size={batch_size} (over all devices) must be divisible by the {num_devices} "
            f"devices; try {below or num_devices}"
        )
