"""Helpers that several benchmarks share."""

from typing import Any

import numpy as np
from jax.sharding import Mesh

from jaxssl.data.batches import Batches
from jaxssl.data.splits import PreparedSplit, Source
from jaxssl.training.build import Setup, build, make_batches, make_init
from jaxssl.training.config import load
from jaxssl.training.state import TrainState

# Config overrides relative to the config "studies:paper", and batch sizes for an accelerator.
COMMON = {"loss.temperature": "0.2", "data.cache": "device"}
LARGE = {"augment.size": "224"}
NETWORKS: dict[str, tuple[dict[str, str], tuple[int, ...]]] = {
    "resnet18": ({}, (128, 256, 512)),
    "resnet50": ({**LARGE, "net.depth": "50", "net.stem": "imagenet"}, (128,)),
    "vit_s": ({**LARGE, "net.name": "vit", "net.size": "small"}, (128,)),
}
# Configs of small networks for CPUs. Their steps are timed without augmentation.
SMALL = {"digits": "digits", "small": "studies:small"}
SMALL_BATCH = 64


def source_of(records: list, shape: tuple) -> Source:
    """Return a data split held in memory, of encoded files or uint8 arrays."""
    part = PreparedSplit([{"image": record, "label": 0} for record in records])
    return Source("made", "train", ((part, np.arange(len(records))),), ("a", "b"), shape)


def spread(values: list[float], digits: int = 2) -> str:
    """Format values as "median [smallest-largest]"."""
    low, middle, high = min(values), float(np.median(values)), max(values)
    return f"{middle:.{digits}f} [{low:.{digits}f}-{high:.{digits}f}]"


def begin(
    network: str, batch: int, precision: str, mesh: Mesh
) -> tuple[Any, Setup, TrainState, Batches]:
    """Set up the training of a network on random images.

    Returns the config, the setup, the state and the batches.
    """
    overrides = {} if network in SMALL else {**COMMON, **NETWORKS[network][0]}
    overrides |= {"batch_size": str(batch), "precision": precision}
    config = load(SMALL.get(network, "studies:paper"), list(overrides.items()))
    size, number = config.augment.size, 2 * batch
    shape = (size, size, 1 if network == "digits" else 3)
    images = np.random.default_rng(0).integers(0, 256, (number, *shape), np.uint8)
    batches = make_batches(config, source_of(list(images), shape), mesh)
    parts = build(config, number, crops=batches.crops)
    return config, parts, make_init(parts, batches.example, number, mesh)(config.seed), batches
