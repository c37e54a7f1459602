"""Time of a training step by batch size, for SimCLR, MMCL's solvers and DeCL.

The study times the value and gradient of each loss on random embeddings, and a whole training step
of the scale's network. The claims bound the ratio of whole steps to SimCLR's. The papers use a
ResNet-50 or larger on images of 224 pixels, where the loss is a small share of the step. With a
smaller network or smaller images the ratio is larger, so a claim can be confirmed but not refuted.
The scale "paper" has the setting of Fig. 3b.
"""

import time
from collections.abc import Callable, Mapping
from statistics import median

import jax
import numpy as np
from jax import numpy as jnp

from jaxssl import distributed
from jaxssl.data.batches import check_batch
from jaxssl.losses.pairs import pair_views
from jaxssl.studies import study
from jaxssl.studies.cells import cell_config
from jaxssl.studies.compared_methods import METHODS
from jaxssl.studies.plots import plot_lines
from jaxssl.training.build import build, make_init
from jaxssl.training.config import arguments, factory, label
from jaxssl.training.dry_run import COMMON
from jaxssl.training.state import make_train_step

Call = Callable[[], object]
Times = Mapping[int, Mapping[str, float]]  # seconds by batch size and loss

BATCH_SIZES = {"tiny": (32, 64, 128, 256), "small": (64, 128, 256), "paper": (64, 128, 256, 512)}
EMBEDDING_DIM = 128  # features of the embeddings on which a loss alone is timed
ROUNDS = 7  # timed calls of each function
# Largest time of a training step relative to SimCLR's, as the papers claim.
MAX_RATIO = {"mmcl_pgd": 2.0, "mmcl_inv": 2.0, "decl": 1.1}
PAPER = "mmcl_time"
LOSSES = {"simclr": "simclr", "mmcl_pgd": "mmcl", "mmcl_inv": "mmcl_inv", "decl": "decl"}
FLAGS = ("batch_sizes",)
UNUSED = ("seeds",)
CLAIMS = study.read_claims("solver_time")


def run(setting: study.Setting) -> study.Findings:
    """Measure the time of the losses alone, and of whole training steps."""
    sizes = setting.batch_sizes or study.scale_value(setting, BATCH_SIZES)
    losses, steps = (
        {b: _median_seconds({name: make(setting, name, b) for name in LOSSES}) for b in sizes}
        for make in (_loss, _step)
    )
    config = cell_config(setting, {})
    net = config.net
    is_small = net.name != "resnet" or net.depth < 50 or config.augment.size < 224
    tables = [_table("Loss and gradient, ms", losses), _table("Whole training step, ms", steps)]
    pictures = [_picture("loss", losses), _picture("step", steps)]
    verdicts = _verdicts(steps, is_small=is_small)
    data = {"loss": losses, "step": steps}
    return study.Findings(tables, pictures, verdicts, data, f"random images, {label('net', net)}")


def _table(title: str, times: Times) -> study.Table:
    """Build a table of times in ms, and of their ratios to SimCLR's, by batch size."""
    rows = [(name, *(f"{1e3 * by[name]:.2f}" for by in times.values())) for name in LOSSES]
    for name in MAX_RATIO:
        rows.append(
            (f"{name} / simclr", *(f"{by[name] / by['simclr']:.2f}" for by in times.values()))
        )
    clock = "CPU time of the process" if jax.default_backend() == "cpu" else "wall time"
    note = (
        f"Medians of {ROUNDS} rounds in which the losses take turns, {clock}. A loss alone is "
        "timed on one device, a step on all devices."
    )
    return study.Table(title, ("", *(f"batch {size}" for size in times)), rows, note)


def _picture(kind: str, times: Times) -> study.Picture:
    """Plot the times of a "loss" or a "step" against the batch size."""
    series = {name: (list(times), [[1e3 * by[name]] for by in times.values()]) for name in LOSSES}
    figure = plot_lines(series, "batch size", f"{kind}, ms", log="xy")
    alt = f"time of a {kind} against batch size; the table has the numbers"
    return study.Picture(kind, figure, alt, f"Time of a {kind}; both axes logarithmic.")


def _verdicts(steps: Times, *, is_small: bool) -> dict[str, study.Verdict]:
    """Judge the claims about whole steps.

    A claim that fails with a network or images smaller than the paper's is undecided.
    """
    verdicts = {}
    for name, max_ratio in MAX_RATIO.items():
        ratios = {size: times[name] / times["simclr"] for size, times in steps.items()}
        text = ", ".join(f"B={size}: {ratio:.2f} ×" for size, ratio in ratios.items())
        holds = max(ratios.values()) <= max_ratio
        if is_small and not holds:
            text, holds = f"{text}; network or images are smaller than the paper's", None
        verdicts[name] = study.Verdict(text, holds)
    return verdicts


def _loss(setting: study.Setting, name: str, batch: int) -> Call:
    """Return a function that computes the value and the gradient of a loss on random embeddings."""
    config = cell_config(setting, {**METHODS[LOSSES[name]], "batch_size": batch})
    objective = factory("loss", config.loss.name)(**arguments(config.loss))
    data_key, init_key, loss_key = jax.random.split(jax.random.key(0), 3)
    z = jax.random.normal(data_key, (2, batch, EMBEDDING_DIM))
    params, memory = objective.init(init_key, batch, EMBEDDING_DIM)

    def value(z: jax.Array) -> jax.Array:
        pairs = pair_views(z, jnp.arange(batch, dtype=jnp.int32))
        return objective.loss(pairs, params, memory, step=jnp.int32(0), key=loss_key)[0]

    gradient = jax.jit(jax.value_and_grad(value))
    return lambda: gradient(z)


def _step(setting: study.Setting, name: str, batch: int) -> Call:
    """Return a function that takes one training step on random images with the scale's network."""
    cell = {**METHODS[LOSSES[name]], "batch_size": batch, "total_steps": 1000}
    config = cell_config(setting, cell)
    mesh = distributed.make_mesh()
    check_batch(batch, batch, mesh.size)
    channels = COMMON[config.data.name].shape[-1] if config.data.name in COMMON else 3
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

    The functions take turns, so that a slow phase of the machine affects all of them. On a CPU this
    is the CPU time of the process, which excludes other processes.
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
