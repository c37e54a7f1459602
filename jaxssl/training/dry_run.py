"""Try out a config: print shapes, settings and memory, and take one step on a few examples."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
import tensorflow_datasets as tfds
from jax.errors import JaxRuntimeError
from jax.sharding import Mesh, Sharding
from jax.stages import Compiled
from ml_collections import ConfigDict

from jaxssl import distributed
from jaxssl.data import kind, source
from jaxssl.data.batches import Order, Reader, check_batch, make_plan
from jaxssl.data.decoders.decoding import Crops
from jaxssl.data.records import UNLABELLED, PreparedSplit
from jaxssl.data.splits import Source, find_records
from jaxssl.errors import one_line
from jaxssl.training import summary, topology
from jaxssl.training.build import add_statistics, build, make_init
from jaxssl.training.config.method import check_labels, make_crops
from jaxssl.training.hlo import collectives
from jaxssl.training.output import compile_cache, logs
from jaxssl.training.output.console import show
from jaxssl.training.state import make_train_step, shardings

HEADROOM = 0.9  # A step that needs more than this share of the memory is called too large.
# Limits of the small step that is compiled and taken: operations, and bytes of the training state.
MOST_OPERATIONS, MOST_BYTES = 28_000, 2**30


class Common(NamedTuple):
    """Shape and sizes of a well-known data set of images.

    Attributes:
        shape: [h, w, c] of the images, where h and w are None if images have different sizes.
        splits: number of images of each split.
        num_classes: number of classes.
    """

    shape: tuple[int | None, int | None, int]
    splits: dict[str, int]
    num_classes: int


COMMON = {
    "digits": Common((8, 8, 1), {"train": 1297, "test": 500}, 10),
    "cifar10": Common((32, 32, 3), {"train": 50_000, "test": 10_000}, 10),
    "cifar100": Common((32, 32, 3), {"train": 50_000, "test": 10_000}, 100),
    "stl10": Common((96, 96, 3), {"train": 5000, "unlabelled": 100_000, "test": 8000}, 10),
    "fashion_mnist": Common((28, 28, 1), {"train": 60_000, "test": 10_000}, 10),
    "imagenet100": Common((None, None, 3), {"train": 126_689, "validation": 5000}, 100),
    "imagenet2012": Common((None, None, 3), {"train": 1_281_167, "validation": 50_000}, 1000),
}
SIDE = 256  # side of the random images that replace photographs


@dataclass(frozen=True)
class _RandomImages(Sequence):
    """Sequence of records with random images and given labels."""

    labels: np.ndarray
    shape: tuple[int, int, int]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Any) -> Any:
        image = np.random.default_rng(index).integers(0, 256, self.shape, np.uint8)
        return {"image": image, "label": self.labels[index]}


class CompiledStep(NamedTuple):
    """A compiled training step, and the memory that it takes on each device.

    Attributes:
        program: the step.
        arguments: bytes of state and batch, or 0 if unknown.
        temporary: bytes of all other arrays, or 0 if unknown.
    """

    program: Compiled
    arguments: int
    temporary: int

    def fits(self, available: int) -> bool:
        """Return False if the step needs nearly all bytes of a device, which are 0 if unknown."""
        return not available or self.arguments + self.temporary <= HEADROOM * available


def dry_run(config: ConfigDict, pod: str | None = None) -> None:
    """Print the settings, communication and memory of a run, and take a step on a few examples.

    The step of the whole batch is compiled to measure its memory, and not taken. A small
    step is compiled too and taken. It has two examples on each device, or in each of the
    `accumulate_steps` parts there. It is left out if its program is very large, as for a
    ResNet-50 with several sizes of crops, if the training state is large, or if memory is too
    small. No weights are drawn then.

    No workdir is written. Random images stand for the images of sets in `COMMON`. Other sets are
    prepared if necessary, and their examples are read from the training split.

    Args:
        config: complete.
        pod: compile for the pod of this name (`jaxssl.training.topology`), and take no step. The
            default is this machine.

    Raises:
        UserError: on a value that a component rejects, a data set of unknown sizes, or a pod that
            is unknown or too small.
    """
    # ---- The step of the whole batch: settings, memory and communication.
    mesh = topology.describe(pod) if pod else distributed.make_mesh()
    logs.log_to_screen(distributed.process_index())
    kind.of(config).check()
    train = open_training_split(config)
    check_labels(config, train.num_classes, train.labelled)
    config = add_statistics(config, train)
    check_batch(config.batch_size, len(train), mesh.size)
    cache, workers = config.data.cache, config.data.workers
    plan = make_plan(train, make_crops(config), cache=cache, workers=workers)
    reader, _ = _make_reader(config, train, config.batch_size, plan.crops, mesh)
    setup = build(config, len(train), mesh.size, crops=plan.crops)
    init: Any = make_init(setup, reader.example, len(train), mesh)
    state = init.eval_shape(config.seed)
    show(f"data       {train.describe()}")
    show(f"input      {plan.why}")
    show(f"evaluation every {config.eval.every:g} epochs")
    for line in summary.lines(config, setup, state, reader.shapes, mesh):
        show(line)

    state = jax.tree.map(_place, state, shardings(setup.method, state, mesh, setup.sharding))
    place_batch = partial(jax.tree.map, partial(_place, sharding=distributed.data_sharding(mesh)))
    components = setup.method, setup.optimiser, setup.augment
    step: Any = make_train_step(*components, mesh, sharding=setup.sharding)
    lowered = step.lower(state, place_batch(reader.shapes))
    available = topology.memory(pod) if pod else _available_memory()
    try:
        compiled = _compile(lowered, mesh, pod)
    except JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return show(f"too large  {one_line(error)}; reduce batch_size or raise accumulate_steps")
    show(
        f"memory     {_mebibytes(compiled.arguments + compiled.temporary)} on each device: "
        f"{_mebibytes(compiled.arguments)} of state and batch, {_mebibytes(compiled.temporary)} "
        f"while computing (of the compiled step of {config.batch_size} examples)"
    )
    room = f"{_mebibytes(available)} are available"
    if not compiled.fits(available):
        show(f"too large  {room}; reduce batch_size or raise accumulate_steps")
    if mesh.size > 1:
        show(f"sends      {_describe_collectives(compiled.program, mesh.size)}")
    if pod:
        return

    # ---- The step of a few examples, which is taken.
    operations = lowered.as_text().count(" = ")
    size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))
    if operations > MOST_OPERATIONS or size > MOST_BYTES:
        return show(
            f"one step   left out: {operations:,} operations and {_mebibytes(size)} of state are "
            "too large for a dry run"
        )
    number = min(config.batch_size, 2 * config.accumulate_steps * mesh.size)
    small, order = _make_reader(config, train, number, plan.crops, mesh)
    few = small.read(0, order(0))
    compiled = _compile(step.lower(state, place_batch(few)), mesh)
    if not compiled.fits(available):
        return show(f"one step   left out: {room}; take a smaller network")
    _, metrics, _ = compiled.program(init(config.seed), distributed.shard(few, mesh))
    figures = ", ".join(f"{name} {float(x):.4g}" for name, x in jax.device_get(metrics).items())
    show(f"one step   of {number} examples: {figures}")


def _describe_collectives(compiled: Compiled, devices: int) -> str:
    """Describe the number and the bytes of each kind of collective operation in a training step."""
    try:
        sent = collectives(compiled, devices)
    except (ValueError, JaxRuntimeError) as error:  # loop of unknown length, or another libtpu
        return f"not counted: {one_line(error, 80)}"
    counts, num_bytes = Counter[str](), Counter[str]()
    for (operation, sizes), times in sent.items():
        counts[operation] += times
        num_bytes[operation] += times * sum(sizes)
    return ", ".join(f"{counts[x]} {x} ({num_bytes[x] / 1e6:,.3g} MB)" for x in sorted(counts))


def open_training_split(config: ConfigDict) -> Source:
    """Open the training split of a run, or replace a data set of `COMMON` by random images.

    A set of `COMMON` is opened too if `data.classes` selects classes, which need their names, or if
    the statistics of its images are measured.

    Raises:
        UserError: if the data set cannot be opened, or lacks this split or those of the evaluation.
    """
    data, examples = config.data, kind.of(config)
    is_opened = data.classes or data.normalise == "measured" or examples.captions
    if data.name not in COMMON or is_opened or not examples.pictures:
        return source.load_splits(data, examples.data).train
    shape, sizes, num_classes = COMMON[data.name]
    infos = {name: tfds.core.SplitInfo(name, [size], 0) for name, size in sizes.items()}
    for split in filter(None, (data.bank_split, data.test_split)):
        find_records(data.name, split, infos)  # raises an error for an unknown split
    parts = []
    for name, indices in find_records(data.name, data.train_split, infos):
        labels = np.arange(sizes[name], dtype=np.int32) % num_classes
        if name == "unlabelled":
            labels[:] = UNLABELLED
        records = _RandomImages(labels, (shape[0] or SIDE, shape[1] or SIDE, shape[2]))
        parts.append((PreparedSplit(records, num_classes=num_classes, labels=labels), indices))
    classes = tuple(map(str, range(num_classes)))
    return Source(data.name, data.train_split, tuple(parts), classes, shape)


def _make_reader(
    config: ConfigDict, train: Source, batch_size: int, crops: Crops | None, mesh: Mesh
) -> tuple[Reader, Order]:
    """Return the reader of training batches of ``batch_size``, and the order of the examples."""
    order, rows = Order(len(train), batch_size, config.seed), mesh.size * config.accumulate_steps
    return kind.of(config).make_reader(train, order, rows, crops), order


def _place(x: Any, sharding: Sharding) -> jax.ShapeDtypeStruct:
    """Return the shape of an array that has a sharding, to compile a program for it."""
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)


def _compile(lowered: Any, mesh: Mesh, pod: str | None = None) -> CompiledStep:
    """Compile a training step for this machine, or for the pod of a name."""
    platform = mesh.devices.flat[0].platform
    options = compile_cache.fast_compile_options(0) if platform == "cpu" else {}
    if pod and platform == "gpu":
        options = topology.UNTIMED
    compiled = lowered.compile(options)
    sizes = compiled.memory_analysis()
    if sizes is None:  # The platform does not report memory sizes.
        return CompiledStep(compiled, 0, 0)
    return CompiledStep(compiled, sizes.argument_size_in_bytes, sizes.temp_size_in_bytes)


def _mebibytes(num_bytes: float) -> str:
    return f"{num_bytes / 2**20:,.0f} MiB"


def _available_memory() -> int:
    """Return the memory of a device in bytes, or 0 if unknown. Devices of a CPU share theirs."""
    stats = [device.memory_stats() for device in jax.local_devices()]
    if all(stats):
        return min((s or {}).get("bytes_limit", 0) for s in stats)
    with suppress(OSError), open("/proc/meminfo") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1]) // jax.local_device_count()
    return 0
