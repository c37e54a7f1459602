"""Try out a config: print shapes, settings and memory, and take one step on random images."""

import time
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from jaxssl import components, distributed
from jaxssl.data import source, tokens
from jaxssl.data.batches import check_batch
from jaxssl.data.decoding import Crops
from jaxssl.data.metadata import Metadata, find_metadata
from jaxssl.training import modality, summary
from jaxssl.training.build import build, initial_state, make_batches, make_crops
from jaxssl.training.compatibility import check_labels, has_text
from jaxssl.training.console import show
from jaxssl.training.state import make_train_step

HEADROOM = 0.9  # share of the available memory that a step may take


# The tuple holds a batch, the size of the training set, the crops that the host cuts, and a
# description.
_Input = tuple[Any, int, Crops | None, str]


def dry_run(config: ConfigDict) -> None:
    """Print what a run would do and the memory it needs, and take one step on random images.

    Nothing is written. A data set of images whose sizes are known is not opened; examples other
    than images are read from the training split. The step is left out if memory is too small.

    Raises:
        UserError: on a value that a component rejects, or a data set of unknown sizes.
    """
    mesh = distributed.make_mesh()
    is_image = modality.example_kind(config) == "image"
    batch, num_examples, crops, description = (
        _random_images(config, mesh) if is_image else _first_batch(config, mesh)
    )
    setup = build(config, num_examples, mesh.size, crops=crops)
    state = initial_state(config, setup, batch, num_examples, mesh)
    show(f"data       {description}")
    for line in summary.lines(config, setup, state, batch, mesh.size):
        show(line)

    start = time.perf_counter()
    step = make_train_step(
        setup.method, setup.optimiser, setup.augment, mesh, sharded=config.optim.sharded
    )
    compiled = step.lower(state, distributed.shard(batch, mesh)).compile()
    show(f"compiled   in {time.perf_counter() - start:.1f} s")
    sizes = compiled.memory_analysis()
    needed = 0
    if sizes is not None:
        needed = sizes.temp_size_in_bytes + sizes.argument_size_in_bytes
        show(
            f"memory     {_mebibytes(needed)} on each device: "
            f"{_mebibytes(sizes.argument_size_in_bytes)} of state and batch, "
            f"{_mebibytes(sizes.temp_size_in_bytes)} while computing"
        )
    available = _available_memory()
    if available and needed * mesh.size > HEADROOM * available:
        show(f"one step   skipped: {_mebibytes(available)} are available; reduce batch_size")
        return
    state, metrics, _ = compiled(state, distributed.shard(batch, mesh))
    values = {name: float(value) for name, value in jax.device_get(metrics).items()}
    show("one step   " + ", ".join(f"{name} {value:.4g}" for name, value in values.items()))


def _random_images(config: ConfigDict, mesh: Mesh) -> _Input:
    """Make a batch of random images with the sizes of the data set."""
    metadata = find_metadata(config.data, config.augment.size)
    check_labels(config, metadata.num_classes, metadata.num_classes > 0)
    check_batch(config.batch_size, metadata.num_examples, mesh.size)
    rng = np.random.default_rng(config.seed)
    crops = None if metadata.one_size else make_crops(config)
    batch = {
        "input": _draw_images(rng, config.batch_size, metadata, crops),
        "label": rng.integers(0, max(1, metadata.num_classes), config.batch_size, np.int32),
        "index": np.arange(config.batch_size, dtype=np.int32),
    }
    name = components.short_name(config.data.name)
    description = f"{name}, {metadata.num_examples} images {list(metadata.shape)}"
    return batch, metadata.num_examples, crops, description


def _first_batch(config: ConfigDict, mesh: Mesh) -> _Input:
    """Read the first batch of the training split."""
    if has_text(config):
        tokens.check_package()
    train = source.load(config.data, config.data.train_split, modality.dataset_kind(config))
    check_labels(config, train.num_classes, train.labelled)
    batches = make_batches(config, train, mesh)
    try:
        return batches.next(), len(train), batches.crops, train.describe()
    finally:
        batches.close()


def _draw_images(
    rng: np.random.Generator, batch_size: int, metadata: Metadata, crops: Crops | None
) -> Any:
    """Return random pixels in the shape of a batch: images, or crops if the CPU host cuts them."""
    *sides, channels = metadata.shape
    if crops is None or not crops.views:
        sides = sides if crops is None else (crops.size, crops.size)
        return rng.integers(0, 256, (batch_size, *sides, channels), np.uint8)
    shapes = {
        name: (batch_size, len(group), group[0].size, group[0].size, channels)
        for name, group in (("views", crops.views), ("crops", crops.crops))
        if group
    }
    return {name: rng.integers(0, 256, shape, np.uint8) for name, shape in shapes.items()}


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
