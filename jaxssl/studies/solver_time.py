"""Time of a training step by batch size, for SimCLR, MMCL's solvers and DeCL.

The study times the value and gradient of each loss on random embeddings, and a whole training step
of the scale's network. The claims bound the time of a whole step relative to SimCLR's. The papers'
networks are a ResNet-50 or larger, where the loss is a small share of a step. In a smaller network
the share is larger: a claim can hold, but it cannot be refuted. The scale "paper" has the views of
224 pixels of Fig. 3b.
"""

import time
from collections.abc import Callable, Mapping
from statistics import median

import jax
import numpy as np
from jax import numpy as jnp

from jaxssl import distributed
from jaxssl.losses.pairs import pair_views
from jaxssl.studies import study
from jaxssl.studies.cells import cell_config
from jaxssl.studies.compared_methods import METHODS
from jaxssl.studies.plots import plot_lines
from jaxssl.training.build import build, make_init
from jaxssl.training.config import arguments, factory, label
from jaxssl.training.state import make_train_step

BATCHES = {"tiny": (32, 64, 128, 256), "small": (64, 128, 256), "paper": (64, 128, 256, 512)}
DIM = 128  # features of the embeddings on which a loss alone is timed
ROUNDS = 7  # timed calls of each function
# Largest time of a training step relative to SimCLR's, as the papers claim.
MAX_RATIO = {"mmcl_pgd": 2.0, "mmcl_inv": 2.0, "decl": 1.1}
PAPER = "mmcl"
LOSSES = {
    "simclr": METHODS["simclr"],
    "mmcl_pgd": METHODS["mmcl"],
    "mmcl_inv": METHODS["mmcl_inv"],
    "decl": METHODS["decl"],
}
IMAGENET = {"net.stem": "imagenet", "augment.size": 224}
FLAGS = ("batch_sizes",)
CLAIMS = study.read_claims("solver_time")
Call = Callable[[], object]
Times = Mapping[int, Mapping[str, float]]  # seconds by batch size and loss


def run(setting: study.Setting) -> study.Findings:
    """Measure the time of the losses alone, and of whole training steps."""
    sizes = setting.batch_sizes or study.scale_value(setting, BATCHES)
    losses = {b: _median_seconds({name: _loss(setting, name, b) for name in LOSSES}) for b in sizes}
    steps = {b: _median_seconds({name: _step(setting, name, b) for name in LOSSES}) for b in sizes}
    net = cell_config(setting, {}).net
    tables = [_table("Loss and gradient, ms", losses), _table("Whole training step, ms", steps)]
    pictures = [_picture("loss", losses), _picture("step", steps)]
    verdicts = _verdicts(steps, is_small=net.name != "resnet" or net.depth < 50)
    data = {"loss": losses, "step": steps}
    return study.Findings(tables, pictures, verdicts, data, f"random images, {label('net', net)}")


def _table(title: str, times: Times) -> study.Table:
    """Build a table of times in ms, and of their ratios to SimCLR's, by batch size."""
    rows = [(name, *(f"{1e3 * by[name]:.2f}" for by in times.values())) for name in LOSSES]
    for name in MAX_RATIO:
        rows.append((f"{name} / simclr", *(f"{_ratio(by, name):.2f}" for by in times.values())))
    note = f"Medians of {ROUNDS} rounds in which the losses take turns. On a CPU: CPU time."
    return study.Table(title, ("", *(f"batch {size}" for size in times)), rows, note)


def _picture(kind: str, times: Times) -> study.Picture:
    """Plot the times of a "loss" or a "step" against the batch size."""
    series = {name: (list(times), [[1e3 * by[name]] for by in times.values()]) for name in LOSSES}
    figure = plot_lines(series, "batch size", f"{kind}, ms", log="xy")
    alt = f"time of a {kind} against batch size; the table has the numbers"
    return study.Picture(kind, figure, alt, f"Time of a {kind}; both axes logarithmic.")


def _verdicts(steps: Times, *, is_small: bool) -> dict[str, study.Verdict]:
    """Judge the claims about whole steps, which a small network cannot refute."""
    verdicts = {}
    for name, max_ratio in MAX_RATIO.items():
        ratios = {size: _ratio(times, name) for size, times in steps.items()}
        text = ", ".join(f"B={size}: {ratio:.2f} ×" for size, ratio in ratios.items())
        holds = max(ratios.values()) <= max_ratio
        if is_small and not holds:
            text, holds = f"{text}; the network is smaller than the paper's", None
        verdicts[name] = study.Verdict(text, holds)
    return verdicts


def _ratio(times: Mapping[str, float], name: str) -> float:
    return times[name] / times["simclr"]


def _loss(setting: study.Setting, name: str, batch: int) -> Call:
    """Return a function that computes the value and the gradient of a loss on random embeddings."""
    config = cell_config(setting, {**LOSSES[name], "batch_size": batch})
    objective = factory("loss", config.loss.name)(**arguments(config.loss))
    key = jax.random.key(0)
    z = jax.random.normal(key, (2, batch, DIM))
    params, memory = objective.init(key, batch, DIM)

    def value(z: jax.Array) -> jax.Array:
        pairs = pair_views(z, jnp.arange(batch, dtype=jnp.int32))
        return objective.loss(pairs, params, memory, step=jnp.int32(0), key=key)[0]

    gradient = jax.jit(jax.value_and_grad(value))
    return lambda: gradient(z)


def _step(setting: study.Setting, name: str, batch: int) -> Call:
    """Return a function that trains for one step on random images of the scale's size."""
    size = IMAGENET if setting.scale == "paper" else {}
    cell = {**LOSSES[name], **size, "batch_size": batch, "total_steps": 1000}
    config = cell_config(setting, cell)
    mesh = distributed.make_mesh()
    channels = 1 if config.augment.name == "digits" else 3
    shape = (batch, config.augment.size, config.augment.size, channels)
    images = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    index = np.arange(batch, dtype=np.int32)
    examples = {"input": images, "index": index, "label": index % 10}
    setup = build(config, batch, mesh.size)
    state = make_init(setup, examples, batch, mesh)(config.seed)
    step = make_train_step(setup.method, setup.optimiser, setup.augment, mesh)
    on_device = distributed.shard(examples, mesh)

    def call() -> object:
        nonlocal state
        state, metrics, _ = step(state, on_device)
        return metrics

    return call


def _median_seconds(calls: Mapping[str, Call]) -> dict[str, float]:
    """Return the median time of each function in seconds.

    The functions take turns, so that a slow phase of the machine affects all of them. On a CPU, the
    CPU time of the process is taken, so that time that other processes use does not count.
    """
    clock = time.process_time if jax.default_backend() == "cpu" else time.perf_counter
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():  # The first call compiles.
        jax.block_until_ready(call())
    for _ in range(ROUNDS):
        for name, call in calls.items():
            start = clock()
            jax.block_until_ready(call())
            seconds[name].append(clock() - start)
    return {name: median(times) for name, times in seconds.items()}
