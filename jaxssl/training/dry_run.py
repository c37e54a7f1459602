"""Try out a config: print shapes, settings and memory, and take one step on a few examples."""

from collections import Counter
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.errors import JaxRuntimeError
from jax.sharding import Mesh
from jax.stages import Compiled
from ml_collections import ConfigDict

from jaxssl import components, distributed
from jaxssl.data import kind, source
from jaxssl.data.batches import Batch, check_batch
from jaxssl.data.decoders.decoding import Crops
from jaxssl.errors import one_line
from jaxssl.training import summary, topology
from jaxssl.training.build import build, make_batches, make_init
from jaxssl.training.config.method import check_labels, make_crops
from jaxssl.training.hlo import collectives
from jaxssl.training.output import compile_cache
from jaxssl.training.output.console import show
from jaxssl.training.state import make_train_step, shardings

HEADROOM = 0.9  # A step that needs more than this share of the memory is called too large.
# Limits of the small step that is compiled and taken: operations, and bytes of the training state.
MOST_OPERATIONS, MOST_BYTES = 28_000, 2**30


class Metadata(NamedTuple):
    """Image shape, number of examples and classes of a training split.

    Attributes:
        shape: [h, w, c] of an image. Images of many sizes are resized to it.
        num_examples: number of images.
        num_classes: number of classes.
        one_size: whether all images have that shape. If not, the host crops them.
    """

    shape: tuple[int, int, int]
    num_examples: int
    num_classes: int
    one_size: bool = True


COMMON = {
    "digits": Metadata((8, 8, 1), 1297, 10),
    "cifar10": Metadata((32, 32, 3), 50_000, 10),
    "cifar100": Metadata((32, 32, 3), 50_000, 100),
    "stl10": Metadata((96, 96, 3), 105_000, 10),  # labelled and unlabelled training images
    "fashion_mnist": Metadata((28, 28, 1), 60_000, 10),
    "imagenet100": Metadata((256, 256, 3), 126_689, 100, one_size=False),
    "imagenet2012": Metadata((256, 256, 3), 1_281_167, 1000, one_size=False),
}


class _Data(NamedTuple):
    """What a dry run knows of the training split.

    Attributes:
        shapes: a batch of the run, as `jax.ShapeDtypeStruct`.
        few: a smaller batch, on the host.
        num_examples: number of examples.
        crops: crops that the host cuts, or None.
        description: the data set in words.
    """

    shapes: Batch
    few: Batch
    num_examples: int
    crops: Crops | None
    description: str


def dry_run(config: ConfigDict, pod: str | None = None) -> None:
    """Print what a run would do, send and need of memory, and take one step on a few examples.

    The step of the whole batch is compiled to measure its memory, and not taken. A small
    step is compiled too and taken. It has two examples on each device, or in each of the
    `accumulate_steps` parts there. It is left out if its program is very large, as for a
    ResNet-50 with several sizes of crops, if the training state is large, or if memory is too
    small. No weights are drawn then.

    Nothing is written. A data set of images whose sizes are known is not opened; examples other
    than images are read from the training split.

    Args:
        config: complete.
        pod: compile for the pod of this name (`jaxssl.training.topology`), and take no step. The
            default is this machine.

    Raises:
        UserError: on a value that a component rejects, a data set of unknown sizes, or a pod that
            is unknown or too small.
    """
    mesh = topology.describe(pod) if pod else distributed.make_mesh()
    ours = kind.of(config)
    number = 0 if pod else min(config.batch_size, 2 * config.accumulate_steps * mesh.size)
    find = _random_images if ours.batch_shapes else _read_examples
    data = find(config, number, mesh)
    setup = build(config, data.num_examples, mesh.size, crops=data.crops)
    init: Any = make_init(setup, data.few, data.num_examples, mesh)
    state = init.eval_shape(config.seed)
    show(f"data       {data.description}")
    for line in summary.lines(config, setup, state, data.shapes, mesh):
        show(line)

    state = _place(state, shardings(setup.method, state, mesh, setup.sharding))
    split = distributed.data_sharding(mesh)
    whole = _place(data.shapes, jax.tree.map(lambda _: split, data.shapes))
    components = setup.method, setup.optimiser, setup.augment
    step: Any = make_train_step(*components, mesh, sharding=setup.sharding)
    lowered = step.lower(state, whole)
    available = mesh.size * topology.memory(pod) if pod else _available_memory()
    try:
        compiled, arguments, temporary = _compile(lowered, mesh, pod)
    except JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return show(f"too large  {one_line(error)}; reduce batch_size or raise accumulate_steps")
    show(
        f"memory     {_mebibytes(arguments + temporary)} on each device: "
        f"{_mebibytes(arguments)} of state and batch, {_mebibytes(temporary)} while computing "
        f"(of the compiled step of {config.batch_size} examples)"
    )
    room = f"{_mebibytes(available)} are available"
    if available and (arguments + temporary) * mesh.size > HEADROOM * available:
        show(f"too large  {room}; reduce batch_size or raise accumulate_steps")
    if mesh.size > 1:
        show(f"sends      {_describe_collectives(compiled, mesh.size)}")
    if pod:
        return
    operations = lowered.as_text().count(" = ")
    size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))
    if operations > MOST_OPERATIONS or size > MOST_BYTES:
        show(
            f"one step   left out: {operations:,} operations and {_mebibytes(size)} of state are "
            "too large for a dry run"
        )
        return
    few = _place(data.few, jax.tree.map(lambda _: split, data.few))
    compiled, arguments, temporary = _compile(step.lower(state, few), mesh)
    if available and (arguments + temporary) * mesh.size > HEADROOM * available:
        show(f"one step   skipped: {room}; take a smaller network")
        return
    _, metrics, _ = compiled(init(config.seed), distributed.shard(data.few, mesh))
    values = {name: float(value) for name, value in jax.device_get(metrics).items()}
    figures = ", ".join(f"{name} {value:.4g}" for name, value in values.items())
    show(f"one step   of {number} examples: {figures}")


def _describe_collectives(compiled: Compiled, devices: int) -> str:
    """Return how many collective operations of each kind a step has, and their bytes."""
    try:
        sent = collectives(compiled, devices)
    except (ValueError, JaxRuntimeError) as error:  # a loop of unknown length; another libtpu
        return f"not counted: {one_line(error, 80)}"
    counts, sizes = Counter[str](), Counter[str]()
    for (operation, arrays), times in sent.items():
        counts[operation] += times
        sizes[operation] += times * sum(arrays)
    return ", ".join(f"{counts[x]} {x} ({sizes[x] / 1e6:,.3g} MB)" for x in sorted(counts))


def find_metadata(data: ConfigDict, size: int) -> Metadata:
    """Look up the sizes of a training split, or read them from the data set.

    Args:
        data: the group `config.data`.
        size: side of a view in pixels. Images of many sizes are resized to it.

    Raises:
        UserError: if the data set cannot be opened.
    """
    if data["name"] in COMMON:
        return COMMON[data["name"]]
    train = source.load(data, data["train_split"])
    return Metadata(train.shape_at(size), len(train), train.num_classes, train.one_size)


def _place(tree: object, layout: object) -> Any:
    """Return the shapes of arrays, with their shardings."""
    return jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree, layout
    )


def _compile(lowered: Any, mesh: Mesh, pod: str | None = None) -> tuple[Any, int, int]:
    """Return a compiled step, and the bytes of its arguments and of its computation."""
    platform = mesh.devices.flat[0].platform
    options = compile_cache.fast_compile_options(0) if platform == "cpu" else {}
    compiled = lowered.compile(topology.UNTIMED if pod and platform == "gpu" else options)
    sizes = compiled.memory_analysis()
    if sizes is None:  # The platform does not tell.
        return compiled, 0, 0
    return compiled, sizes.argument_size_in_bytes, sizes.temp_size_in_bytes


def _random_images(config: ConfigDict, number: int, mesh: Mesh) -> _Data:
    """Return random images with the sizes of the data set; two at least, for their shapes."""
    metadata = find_metadata(config.data, config.augment.size)
    check_labels(config, metadata.num_classes, metadata.num_classes > 0)
    check_batch(config.batch_size, metadata.num_examples, mesh.size)
    crops = None if metadata.one_size else make_crops(config)
    make_shapes: Any = kind.of(config).batch_shapes
    shapes = make_shapes(config.batch_size, metadata.shape, crops)
    rng, number = np.random.default_rng(config.seed), max(number, 2)
    few = {
        "input": jax.tree.map(
            lambda x: rng.integers(0, 256, (number, *x.shape[1:]), x.dtype), shapes["input"]
        ),
        "label": rng.integers(0, max(1, metadata.num_classes), number, np.int32),
        "index": np.arange(number, dtype=np.int32),
    }
    name = components.short_name(config.data.name)
    description = f"{name}, {metadata.num_examples} images {list(metadata.shape)}"
    return _Data(shapes, few, metadata.num_examples, crops, description)


def _read_examples(config: ConfigDict, number: int, mesh: Mesh) -> _Data:
    """Read a few examples of the training split, or with ``number`` 0 two for their shapes."""
    kind.of(config).check()
    train = source.load(config.data, config.data.train_split, kind.of(config).data)
    check_labels(config, train.num_classes, train.labelled)
    batches = make_batches(config, train, mesh)
    shapes, few = batches.shapes, batches.example
    if number:
        config = config.copy_and_resolve_references()
        config.batch_size = number
        batches = make_batches(config, train, mesh)
        few = batches.next()
        batches.close()
    return _Data(shapes, few, len(train), batches.crops, train.describe())


def _mebibytes(num_bytes: float) -> str:
    return f"{num_bytes / 2**20:,.0f} MiB"


def _available_memory() -> int:
    """Return the memory of all devices together in bytes, or 0 if unknown."""
    stats = [device.memory_stats() for device in jax.devices()]
    if all(stats):
        return sum((s or {}).get("bytes_limit", 0) for s in stats)
    try:
        with open("/proc/meminfo") as lines:
            sizes = dict(line.split(":") for line in lines)
    except OSError:
        return 0
    return int(sizes["MemAvailable"].split()[0]) * 1024
