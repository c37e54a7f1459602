"""Shuffled training batches, kept on the device or streamed from the host.

A batch depends only on the seed and its number. It does not depend on the way it is read, on worker
processes, devices, hosts or restarts. The position in the data is therefore one number.
"""

import functools
import logging
import math
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import absl.flags
import cloudpickle
import grain
import jax
import numpy as np
from jax.sharding import Mesh

from jaxssl import distributed
from jaxssl.data import kind
from jaxssl.data.decoders import files
from jaxssl.data.decoders.decoding import Crops
from jaxssl.data.records import Example
from jaxssl.data.splits import Source
from jaxssl.errors import TransientError, UserError, one_line

Batch = dict[str, Any]

log = logging.getLogger("jaxssl")
READ_AHEAD = 2**33  # limit in bytes on batches that reading threads hold in host memory
SENT_BYTES = 2**28  # largest data from Python in bytes that "auto" copies to reading processes
PREFETCH = 2  # number of batches that are sent to the device ahead of time
POSITION = "next_index"  # key under which a checkpoint stores the position in the stream
ENDLESS = 2**40  # number of batches that stands for an endless stream
# cache="auto" keeps a data set on the device if it takes at most 1 GiB, or at most this share of
# the device memory if that is larger.
CACHE_BYTES = 2**30
CACHE_SHARE = 1 / 8


class Plan(NamedTuple):
    """How training examples get to the device: cached there, or streamed by processes.

    Attributes:
        cached: whether all examples are kept on the device. If not, they are streamed.
        crops: crops that the host cuts before examples are sent. None if it does not cut any.
        workers: number of reading processes. 0 reads in threads of this process.
        why: explanation for the start-up summary.
        centre: side of the central square that evaluation takes, as a fraction of the short side.
            0 if it takes the whole image.
    """

    cached: bool
    crops: Crops | None
    workers: int
    why: str
    centre: float = 0.0


class Reader(NamedTuple):
    """Reader of the batches of a split. Each kind of examples (images, clips, ...) has its own.

    Attributes:
        read: ``(step, indices) -> batch`` of the examples at ``indices`` int32 [b], which are part
            of batch number ``step``. It is copied to worker processes if the plan has any.
        example: a batch of two examples on the host.
        shapes: a whole batch of `jax.ShapeDtypeStruct`.
        everything: () -> all examples in the form of one batch. None if they cannot be cached.
    """

    read: Callable[[int, np.ndarray], Batch]
    example: Batch
    shapes: Batch
    everything: Callable[[], Batch] | None = None


def make_reader(
    read: Callable[[int, np.ndarray], Batch],
    source: Source,
    batch_size: int,
    everything: Callable[[], Batch] | None = None,
) -> Reader:
    """Build the reader of batches of examples that have one shape, see `Reader`."""
    example = read(0, np.arange(min(2, len(source)), dtype=np.int32))
    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((batch_size, *x.shape[1:]), x.dtype), example
    )
    return Reader(read, example, shapes, everything)


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
        with _DRAWING:  # Otherwise all reading threads would draw it at once.
            indices = _permutation(self.num_examples, self.seed, epoch)
        return indices[start : start + self.batch_size]


class Batches:
    """Endless stream of training batches on the device mesh, with a position for checkpoints.

    Attributes:
        indices: maps a batch number, counted from 0, to the indices [B] of its examples.
        num_examples: number of examples of the training split.
        example: a batch of two examples on the host.
        shapes: a whole batch of `jax.ShapeDtypeStruct`.
        plan: how examples are read.
    """

    def __init__(self, reader: Reader, order: Order, plan: Plan, mesh: Mesh) -> None:
        """Start at the first batch. `make_batches` builds the arguments."""
        self.indices, self.num_examples, self.plan = order, order.num_examples, plan
        self.example, self.shapes = reader.example, reader.shapes
        self._reader, self._mesh = reader, mesh
        # The examples of a batch that this process reads.
        self._local = distributed.local_rows(order.batch_size, mesh)
        self._position = 0
        self._iterator: Iterator[Batch] | None = None
        self._gather = jax.jit(distributed.take_rows, out_shardings=distributed.data_sharding(mesh))

    def next(self) -> Batch:
        """Return the next batch, sharded by examples.

        Returns:
            {"input", "label": int32 [B], "index": int32 [B]}. The input is uint8 [B, h, w, c], or
            for images that the host crops {"views": [B, V, s, s, c], "crops": [B, L, t, t, c]}. It
            is {"image", "text"} for captioned images, and graphs are packed, see `jaxssl.kinds`.
        """
        if self.plan.cached:
            data, indices = self.take(1, 1)
            # The data are an argument. XLA would copy constants into the program.
            return self._gather(data, indices[0])
        if self._iterator is None:
            self._iterator = self._stream_batches()
        try:
            batch = next(self._iterator)
        except RuntimeError as error:
            if "terminated unexpectedly" not in str(error):
                raise
            raise TransientError(
                "a process that reads examples was killed, probably because memory or shared "
                "memory (/dev/shm, docker run --shm-size) is used up, or because a script calls "
                'jaxssl.train outside of `if __name__ == "__main__":`; reduce data.workers, or set '
                "it to 0"
            ) from error
        self._position += 1
        return batch

    def take(self, n: int, k: int) -> tuple[Batch, jax.Array]:
        """Take the next n <= k batches of examples that are kept on every device.

        Returns:
            The examples, and indices of them, int32 [k, B]. Rows after the first n repeat the last.
        """
        steps = [self._position + min(i, n - 1) for i in range(k)]
        indices = np.stack([self.indices(step)[self._local] for step in steps])
        self._position += n
        return self._cached, distributed.shard_rows(indices, self._mesh, axis=1)

    def get_state(self) -> dict[str, float]:
        """Return the position in the stream and how images are cropped, serialisable as JSON."""
        crops = {"host_crops": self.plan.crops is not None, "centre": self.plan.centre}
        return {POSITION: self._position, "num_examples": self.num_examples, **crops}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue the stream of batches at a position that `get_state` has returned.

        Raises:
            UserError: if it is of a training split with another number of examples.
        """
        now = self.get_state()
        num_examples = state.get("num_examples", self.num_examples)
        if num_examples != self.num_examples:
            raise UserError(
                f"the checkpoint is of a run on {num_examples} examples, but the training split "
                f"has {self.num_examples} now; use another --workdir, or the earlier examples"
            )
        if state.get("host_crops", now["host_crops"]) != now["host_crops"]:
            log.warning(
                "input      images were %scropped on the host before: views differ from here on; "
                "set data.cache to continue as before",
                "not " if now["host_crops"] else "",
            )
        self.close()
        self._position = state[POSITION]

    def close(self) -> None:
        """End the threads and processes that read ahead."""
        if close := getattr(self._iterator, "close", None):
            close()
        self._iterator = None

    @functools.cached_property
    def _cached(self) -> Batch:
        """All examples in the form of one batch on every device."""
        assert self._reader.everything is not None
        return distributed.replicate(self._reader.everything(), self._mesh)

    def _stream_batches(self) -> Iterator[Batch]:
        mesh, workers = self._mesh, self.plan.workers
        # Each reading thread holds this process's share of a batch in memory.
        inputs = jax.tree.leaves(self.shapes["input"])
        num_bytes = sum(math.prod(x.shape) * x.dtype.itemsize for x in inputs)
        share = max(1, num_bytes * len(self._local) // self.indices.batch_size)
        threads = 1 if workers else max(1, min(16, files.cpu_count(), READ_AHEAD // share))
        steps = grain.MapDataset.range(self._position, ENDLESS)
        read = functools.partial(_read_rows, self._reader.read, self.indices, self._local)
        stream = steps.map(read).to_iter_dataset(grain.ReadOptions(threads, threads))
        if workers:
            if not absl.flags.FLAGS.is_parsed():
                absl.flags.FLAGS.mark_as_parsed()  # Grain's worker processes read the flags.
            stream = stream.mp_prefetch(grain.MultiprocessingOptions(workers), _start_worker)
            # The batch is copied. Without a copy, JAX on a CPU would keep the shared memory of the
            # reading processes in use.
            stream = stream.map(lambda batch: jax.tree.map(np.array, batch))
        stream = stream.map(lambda batch: distributed.shard_rows(batch, mesh))
        return iter(
            grain.experimental.ThreadPrefetchIterDataset(stream, prefetch_buffer_size=PREFETCH)
        )


def why_unsendable(source: Source, max_bytes: float = math.inf) -> str:
    """Return why the examples cannot be sent to reading processes, or "" if they can be."""
    counter = _Counter(max_bytes)
    try:
        for part in {id(part): part for part, _ in source.parts}.values():
            if part.streamed:
                cloudpickle.dump(part.records, counter)
    except Exception as error:  # Objects of users raise many exception types.
        return one_line(error)
    return ""


class _Counter:
    """A file that counts bytes, and refuses more than ``max_bytes``."""

    def __init__(self, max_bytes: float) -> None:
        self.size, self.max_bytes = 0, max_bytes

    def write(self, data: bytes | memoryview) -> None:
        self.size += memoryview(data).nbytes
        if self.size > self.max_bytes:
            raise ValueError(f"they take more than {self.max_bytes / 2**20:.0f} MiB")


def make_batches(
    source: Source,
    batch_size: int,
    *,
    seed: int,
    crops: Crops,
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
        examples: kind of examples, the name of a file of `jaxssl/kinds`. "" takes the data set's
            kind. For "image_text" the input is {"image", "text"}, the text being int32
            [B, k, length].

    Raises:
        UserError: as `make_plan`, if the batch size does not fit the split or the devices, or if
            the split lacks captions.
    """
    check_batch(batch_size, len(source), mesh.size)
    plan = make_plan(source, crops, cache=cache, workers=workers)
    order = Order(len(source), batch_size, seed)
    make = kind.get(examples or source.kind).make_reader
    return Batches(make(source, order, mesh.size * parts, plan.crops), order, plan, mesh)


def make_plan(source: Source, crops: Crops, *, cache: str = "auto", workers: int = -1) -> Plan:
    """Choose how training examples get to the device.

    Args:
        source: the training split.
        crops: crops that the host can cut. Without random crops, images of one size are sent whole.
        cache: "device" keeps uint8 images on every device, "none" streams them, "auto" chooses
            "device" if they have one size and take little memory.
        workers: number of processes that read a stream. 0 reads in threads of this process. -1
            takes half of the cores if the machine has more than four, else threads.

    Raises:
        UserError: if ``workers`` is out of range, or the split cannot be kept on the device.
    """
    cores = files.cpu_count()
    if not -1 <= workers <= 8 * cores:
        raise UserError(
            f"data.workers must be -1 (automatic) or between 0 and {8 * cores} here, got {workers}"
        )
    return kind.get(source.kind).plan(source, crops, cache, workers)


def check_batch(batch_size: int, num_examples: int, num_devices: int) -> None:
    """Raise UserError if batch_size does not fit the training split or the number of devices."""
    if not 1 <= batch_size <= num_examples:
        raise UserError(
            f"batch_size must be between 1 and the {num_examples} training examples, got "
            f"{batch_size}; set batch_size"
        )
    if batch_size % num_devices:
        valid = batch_size - batch_size % num_devices or num_devices
        advice = f"try {valid}" if valid <= num_examples else "use fewer devices"
        raise UserError(
            f"batch_size={batch_size} (over all devices) must be divisible by the {num_devices} "
            f"devices; {advice}"
        )


def cache_limit() -> float:
    """Return the size in bytes up to which data.cache="auto" keeps a data set on a device."""
    sizes = [(device.memory_stats() or {}).get("bytes_limit", 0) for device in jax.local_devices()]
    return max(CACHE_BYTES, CACHE_SHARE * min(sizes))


def assemble(inputs: object, examples: Sequence[Example], indices: np.ndarray) -> Batch:
    """Return the batch of the examples at ``indices``, from inputs that are already batched."""
    labels = np.array([example.label for example in examples], np.int32)
    return {"input": inputs, "label": labels, "index": indices}


def _read_rows(
    read: Callable[[int, np.ndarray], Batch], order: Order, rows: np.ndarray, step: int
) -> Batch:
    """Read the rows of batch number ``step`` that belong to this process."""
    return read(step, order(step)[rows])


_DRAWING = threading.Lock()


@functools.lru_cache(maxsize=2)
def _permutation(n: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng((seed, epoch)).permutation(n).astype(np.int32)


def _start_worker(index: int, count: int) -> None:
    """Make a reading process end with the run, and ignore signals to the process group.

    A run that is asked to stop may need more batches before it stops.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
