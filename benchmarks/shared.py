"""Helpers that several benchmarks share. Their scripts import the package of this checkout."""

import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import jax
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from jaxssl.data.splits import PreparedSplit, Source
from jaxssl.training.build import build, make_batches, make_init
from jaxssl.training.config import load
from jaxssl.training.state import TrainState, make_train_step

# Config overrides relative to the config "studies:paper", and batch sizes for an accelerator.
COMMON = "loss.temperature=0.2 data.cache=device"
NETWORKS: dict[str, tuple[str, tuple[int, ...]]] = {
    "resnet18": ("", (128, 256, 512)),
    "resnet50": ("augment.size=224 net.depth=50 net.stem=imagenet", (128,)),
    "vit_s": ("augment.size=224 net.name=vit net.size=small", (128,)),
}
# Configs of small networks for CPUs. Their steps are timed without augmentation.
SMALL = {"digits": "digits", "small": "studies:small"}
SMALL_BATCH = 64


def parse_overrides(text: str) -> list[tuple[str, str]]:
    """Return config overrides "key=value key=value" as pairs for `jaxssl.training.config.load`."""
    words = (word.partition("=") for word in text.split())
    return [(key, value) for key, _, value in words]


class Training:
    """A jitted training step, with its state, its batches and the setup that a config describes."""

    def __init__(self, config: ConfigDict, data: Source, mesh: Mesh) -> None:
        self.config, self.data, self.mesh = config, data, mesh
        self.batches = make_batches(config, data, mesh)
        self.parts = build(config, len(data), mesh.size, crops=self.batches.plan.crops)
        stages = self.parts.method, self.parts.optimiser, self.parts.augment
        self.program: Any = make_train_step(*stages, mesh)

    @cached_property
    def state(self) -> TrainState:
        """Return the current state, at first the untrained one."""
        init = make_init(self.parts, self.batches.example, len(self.data), self.mesh)
        return init(self.config.seed)

    def step(self, batch: Any = None) -> tuple[Any, Any]:
        """Take a step on a batch, by default the next one, and return metrics and embeddings."""
        self.state, *out = self.program(self.state, batch or self.batches.next())
        return tuple(out)


def begin(network: str, batch: int, precision: str, mesh: Mesh) -> Training:
    """Set up the training of a network on random images."""
    overrides = "" if network in SMALL else f"{COMMON} {NETWORKS[network][0]}"
    overrides += f" batch_size={batch} precision={precision}"
    config = load(SMALL.get(network, "studies:paper"), parse_overrides(overrides))
    return on_random_images(config, mesh)


def on_random_images(config: ConfigDict, mesh: Mesh) -> Training:
    """Set up the training that a config describes on random images, of two batches."""
    size = config.augment.size
    shape = (size, size, 1 if config.augment.name == "digits" else 3)
    images = np.random.default_rng(0).integers(0, 256, (2 * config.batch_size, *shape), np.uint8)
    return Training(config, source_of(list(images), shape), mesh)


def source_of(records: list, shape: tuple) -> Source:
    """Return a data split held in memory, of encoded files or uint8 arrays."""
    part = PreparedSplit([{"image": record, "label": 0} for record in records])
    return Source("made", "train", ((part, np.arange(len(records))),), ("a", "b"), shape)


def timed(call: Callable[[], Any], times: int = 1) -> tuple[float, Any]:
    """Return the seconds of a call until its result is ready, and the last result."""
    start = time.perf_counter()
    for _ in range(times):
        result = call()
    jax.block_until_ready(result)
    return (time.perf_counter() - start) / times, result


def in_turns(contenders: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list]:
    """Call every contender once in each round, and return their results by name."""
    results = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, contender in contenders.items():
            results[name].append(contender())
    return results


def ratios(times: list[float], others: list[float]) -> list[float]:
    """Return the first contender's time over the second's, by round."""
    return [time / other for time, other in zip(times, others, strict=True)]


def spread(values: list[float], digits: int = 2) -> str:
    """Format values as "median [smallest-largest]"."""
    low, middle, high = min(values), float(np.median(values)), max(values)
    return f"{middle:.{digits}f} [{low:.{digits}f}-{high:.{digits}f}]"


def machine() -> str:
    """Describe the device, the processor and its load."""
    device = jax.devices()[0].device_kind
    return f"{device}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"


def resident(line: str = "VmRSS") -> float:
    """Return this process's memory in MB: now ("VmRSS") or at its peak ("VmHWM"), from Linux."""
    # getrusage would start from the peak memory of the parent process, so /proc is read instead.
    status = Path("/proc/self/status").read_text()
    return float(status.split(f"{line}:")[1].split()[0]) / 1024
