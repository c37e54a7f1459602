"""A recipe tried out without its data: shapes, settings, memory, and one step on noise."""

import time
from contextlib import closing
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from jaxssl import distributed
from jaxssl.data import source
from jaxssl.data.batches import check_batch
from jaxssl.data.decoding import Crops
from jaxssl.data.metadata import Metadata, find_metadata
from jaxssl.training import modality, summary
from jaxssl.training.build import build, initial_state, make_batches, make_crops
from jaxssl.training.compatibility import check_labels
from jaxssl.training.logs import console
from jaxssl.training.state import make_train_step

HEADROOM = 0.9  # of the memory at hand that a step may take


def dry_run(config: ConfigDict) -> None:
    """Print what a run would do and what it needs, and take one step on random images.

    No run is written, and no data set of known sizes is opened. Other examples than images are
    taken from the training split. The step is left out if it would not fit.

    Raises:
        UserError: on a value that a part refuses, or a data set whose sizes are not known.
    """
    mesh = distributed.make_mesh()
    take = _of_known_sizes if modality.example_kind(config) == "image" else _of_training_set
    batch, number, crops, what = take(config, mesh)
    parts = build(config, number, mesh.size, crops=crops)
    state = initial_state(config, parts, batch, number, mesh)
    _say(f"data       {what}")
    for line in summary.lines(config, parts, state, batch, mesh.size):
        _say(line)

    start = time.perf_counter()
    stages = parts.method, parts.optimiser, parts.augment
    step = make_train_step(*stages, mesh, sharded=config.optim.sharded)
    compiled = step.lower(state, distributed.shard(batch, mesh)).compile()
    _say(f"compiled   in {time.perf_counter() - start:.1f} s")
    sizes = compiled.memory_analysis()
    needed = 0
    if sizes is not None:
        needed = sizes.temp_size_in_bytes + sizes.argument_size_in_bytes
        _say(
            f"memory     {_size(needed)} on each device: {_size(sizes.argument_size_in_bytes)} of "
            f"state and batch, {_size(sizes.temp_size_in_bytes)} while computing"
        )
    free = _memory()
    if free and needed * mesh.size > HEADROOM * free:
        _say(f"one step   left out: there are {_size(free)} here; try a smaller batch_size")
        return
    state, metrics, _ = compiled(state, distributed.shard(batch, mesh))
    values = {name: float(value) for name, value in jax.device_get(metrics).items()}
    _say("one step   " + ", ".join(f"{name} {value:.4g}" for name, value in values.items()))


def _of_known_sizes(config: ConfigDict, mesh: Mesh) -> tuple[Any, int, Crops | None, str]:
    """A batch of random images; how many there are to train on, what the host crops, in words."""
    known = find_metadata(config.data, config.augment.size)
    check_labels(config, known.num_classes, known.num_classes > 0)
    check_batch(config.batch_size, known.num_examples, mesh.size)
    rng = np.random.default_rng(config.seed)
    crops = None if known.one_size else make_crops(config)
    batch = {
        "input": _images(rng, config.batch_size, known, crops),
        "label": rng.integers(0, max(1, known.num_classes), config.batch_size, np.int32),
        "index": np.arange(config.batch_size, dtype=np.int32),
    }
    what = f"{config.data.name}, {known.num_examples} images {list(known.shape)}"
    return batch, known.num_examples, crops, what


def _of_training_set(config: ConfigDict, mesh: Mesh) -> tuple[Any, int, Crops | None, str]:
    """The first batch of a run, and as `_of_known_sizes`."""
    train = source.load(config.data, config.data.train_split, modality.dataset_kind(config))
    check_labels(config, train.num_classes, train.labelled)
    with closing(make_batches(config, train, mesh)) as batches:
        return batches.next(), len(train), batches.crops, train.describe()


def _images(rng: np.random.Generator, batch_size: int, known: Metadata, crops: Crops | None) -> Any:
    """Random images as they are in a batch, whole or as the host crops them."""
    *sides, channels = known.shape
    if crops is None or not crops.views:
        sides = sides if crops is None else (crops.size, crops.size)
        return rng.integers(0, 256, (batch_size, *sides, channels), np.uint8)
    shapes = {
        name: (batch_size, len(group), group[0].size, group[0].size, channels)
        for name, group in (("views", crops.views), ("crops", crops.crops))
        if group
    }
    return {name: rng.integers(0, 256, shape, np.uint8) for name, shape in shapes.items()}


def _say(line: str) -> None:
    """Print a line as it is, however wide the terminal."""
    console.print(line, soft_wrap=True, markup=False, highlight=False)


def _size(num_bytes: float) -> str:
    return f"{num_bytes / 2**20:,.0f} MiB"


def _memory() -> int:
    """Bytes that all devices have; 0 if unknown."""
    stats = [device.memory_stats() for device in jax.devices()]
    if all(stats):
        return sum(s.get("bytes_limit", 0) for s in stats)
    try:
        with open("/proc/meminfo") as lines:
            sizes = dict(line.split(":") for line in lines)
    except OSError:
        return 0
    return int(sizes["MemAvailable"].split()[0]) * 1024
