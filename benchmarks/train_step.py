"""Measure a training step and its parts, against PyTorch if installed.

    python benchmarks/train_step.py                                              # an accelerator
    python benchmarks/train_step.py --networks resnet18 --batches 16 --rounds 3  # two CPU cores
    python benchmarks/train_step.py --networks digits small                      # the same, small

The step is SimCLR's (NT-Xent, two views, Adam) on random images in the memory of one device. For
the small networks `digits` and `small`, it is the step of their configs (AdamW, their losses)
without augmentation.

1. Images a second (an image is two views), and operations a second relative to a large matrix
   product of the same precision. A step counts as three forward passes of the networks, with XLA's
   count of operations; augmentation, loss and optimiser are not counted.
2. Time of each part, compiled and timed alone, so that the parts need not add up to the whole; and
   the time that the host is busy until a step is dispatched.
3. The same step in PyTorch (`torch_step.py`): channels last, autocast, compiled in the default mode
   and with CUDA graphs, augmented on the device; for the small networks with the same views,
   compiled and eager.
4. For the small networks, our step with XLA's convolution instead of products of patches, one step
   per call.

A call dispatches several of our steps, as in training, if they are short.

Shared machines are noisy: compare the ratios and shares, which are medians over rounds with one
turn of each contender. --json writes all numbers.
"""

import argparse
import json
import logging
import math
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

# JAX does not preallocate memory here, so that PyTorch has some.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import numpy as np
import optax
from jax import lax
from jax import numpy as jnp
from shared import NETWORKS, SMALL, SMALL_BATCH, begin, machine, ratios, spread, timed

from jaxssl import distributed, losses
from jaxssl.errors import one_line
from jaxssl.models import convnet
from jaxssl.models import encoder as networks
from jaxssl.report.markdown import markdown_table
from jaxssl.training.config import arguments
from jaxssl.training.config.method import make_networks
from jaxssl.training.output import compile_cache
from jaxssl.training.state import make_train_step, make_train_steps

try:
    import torch_step
except ImportError as error:
    torch_step, NO_TORCH = None, str(error)

DTYPES = {"bf16": jnp.bfloat16, "float32": jnp.float32}
XLA = "step, XLA's convolution"
GRAPHS = "PyTorch, CUDA graphs"
RATIOS = {"PyTorch": "torch_ratio", GRAPHS: "graph_ratio", "PyTorch eager": "eager_ratio"}
RATIOS |= {XLA: "xla_ratio"}
MOST_STEPS, CALL_SECONDS = 20, 0.25  # limits of the training steps in one call


class Timed:
    """A timed computation: ``call()`` starts it ``number`` times, ``wait(out)`` waits for it."""

    def __init__(
        self, call: Callable[[], Any], number: int = 1, wait: Callable = jax.block_until_ready
    ) -> None:
        self.call, self.number, self.wait = call, number, wait
        self.rounds: list[float] = []  # seconds of a call, for each round
        self.host: list[float] = []  # seconds in which the host was busy, by round
        for _ in range(2):  # The first call compiles.
            wait(call())

    def turn(self, seconds: float) -> None:
        """Time a round of calls that together take about this many seconds."""
        start = time.perf_counter()
        self.wait(self.call())
        times = max(1, math.ceil(seconds / (time.perf_counter() - start)))
        start = time.perf_counter()
        for _ in range(times):
            out = self.call()  # The device frees the last result.
        handed_over = time.perf_counter()
        self.wait(out)
        times *= self.number
        self.host.append((handed_over - start) / times)
        self.rounds.append((time.perf_counter() - start) / times)


def chained(program: Callable[..., tuple], state: Any) -> Callable[..., tuple]:
    """Return a function that calls a program on the state that its last call returned first."""

    def call(*args: Any) -> tuple:
        nonlocal state
        out = program(state, *args)
        state = out[0]
        return out

    return call


def side() -> int:
    """Return the number of rows of the large matrix that measures peak speed."""
    return 2048 if jax.default_backend() == "cpu" else 8192


def ours(network: str, batch: int, precision: str) -> tuple[dict[str, Timed], float, Any]:
    """Return our timed step and its parts, a step's operations, and an argument of `peers`."""
    training = begin(network, batch, precision, distributed.make_mesh(jax.devices()[:1]))
    config, parts, batches = training.config, training.parts, training.batches
    state, mesh, encoder = training.state, training.mesh, make_networks(config)
    key, augment, given = jax.random.key(1), jax.jit(parts.augment), batches.next()
    make = partial(augment, key, given["input"], given["index"])
    views = make()["views"]
    ready = network in SMALL
    if ready:  # The views replace the images of the batch, with one row for each example.
        given = {**given, "input": jnp.moveaxis(views, 0, 1)}
    stages = parts.method, parts.optimiser, _as_they_are if ready else parts.augment, mesh
    loop = jax.default_backend() != "cpu" or ready  # XLA is slow at convolutions in loops on CPUs.

    def make_steps(loop: bool) -> Callable[..., tuple]:
        # Each program has a step of its own, because JAX would reuse the trace of another's step.
        step = make_train_step(*stages)
        return make_train_steps(lambda _: step, mesh, resident=True, loop=loop)

    places = jnp.tile(jnp.arange(batch, dtype=jnp.int32), (MOST_STEPS, 1))
    # Each part of the step has its own arrays, because the step donates the state.
    nets = {name: state.params[name] for name in ("net", "projector")}
    params, stats, moved, grads, state_of_xla = jax.tree.map(
        jnp.copy,
        (nets, state.carried.batch_stats, (state.params, state.opt_state), state.params, state),
    )

    def embed(params: Any, views: Any, stats: Any = stats, index: Any = given["index"]) -> Any:
        key = jax.random.key(1)
        return networks.embed(encoder, params, stats, [views], index, key=key, axis_name=None)[0]

    forward = jax.jit(embed)
    z = forward(params, views)
    # The backward pass is timed as the gradient of a scalar, here the product of output and z.
    both = jax.jit(jax.grad(lambda params, views: jnp.vdot(embed(params, views), z)))
    of_loss = arguments(config.loss.to_dict())
    of_loss.pop("learn", None)
    loss_fn = getattr(losses, config.loss.name)
    loss = jax.jit(jax.value_and_grad(lambda z: loss_fn(z[0], z[1], **of_loss)))
    product = jax.jit(lambda x: x @ x)
    square = jax.random.normal(key, (side(), side()), DTYPES[precision])

    @partial(jax.jit, donate_argnums=0)
    def update(moved: tuple[Any, Any]) -> tuple[tuple[Any, Any]]:
        params, opt_state = moved
        updates, opt_state = parts.optimiser.update(grads, opt_state, params)
        return ((optax.apply_updates(params, updates), opt_state),)

    advance = chained(make_steps(loop), state)

    def whole(number: int) -> tuple:
        data = (given, places) if ready else batches.take(number, MOST_STEPS)
        return advance(*data, number)

    timed(lambda: whole(1))  # The first call compiles.
    took, _ = timed(lambda: whole(1))
    number = max(1, min(MOST_STEPS, int(CALL_SECONDS / took))) if loop else 1
    calls = {
        "input": batches.next,
        "augment": make,
        "forward": lambda: forward(params, views),
        "forward and backward": lambda: both(params, views),
        "loss": lambda: loss(z),
        "optimiser": chained(update, moved),
        "matrix product": lambda: product(square),
    }
    for name in ("input", "augment") if ready else ():
        del calls[name]
    contenders = {"step": Timed(lambda: whole(number), number)}
    contenders |= {name: Timed(call) for name, call in calls.items()}
    if ready:
        with mock.patch.object(convnet, "strided_conv", lax.conv_general_dilated):
            with_xla = chained(make_steps(loop=False), state_of_xla)
            contenders[XLA] = Timed(lambda: with_xla(given, places, 1))
    # Only the CPU's client counts the operations of a program before it is compiled.
    on_host = jax.device_get((params, views, stats, given["index"]))
    with jax.default_device(jax.devices("cpu")[0]):
        operations = 3 * jax.jit(embed).lower(*on_host).cost_analysis()["flops"]
    return contenders, operations, (config, np.asarray(views))


def _as_they_are(key: jax.Array, views: jax.Array, index: jax.Array) -> dict[str, jax.Array]:
    """Replace the augmentation by the views [b, V, s, s, c] that are passed in."""
    return {"views": jnp.moveaxis(views, 1, 0)}


def peers(network: str, batch: int, precision: str, made_of: Any) -> dict[str, Callable]:
    """Return functions that make the training step that `ours` times, but in PyTorch."""
    half = precision == "bf16"
    if network in SMALL:
        config, views = made_of
        small = partial(torch_step.small_step, config, np.concatenate(views), half)
        modes = {"PyTorch": "default", "PyTorch eager": None}
        return {name: partial(small, mode=mode) for name, mode in modes.items()}
    large = partial(torch_step.large_step, network, batch, half)
    modes = {"PyTorch": "default"}
    if torch_step.DEVICE == "cuda":
        modes[GRAPHS] = "reduce-overhead"
    return {name: partial(large, mode=mode) for name, mode in modes.items()}


def measure(network: str, batch: int, precision: str, rounds: int, seconds: float) -> dict:
    """Measure all numbers of one row of the tables."""
    contenders, operations, made_of = ours(network, batch, precision)
    if torch_step:
        for name, make_step in peers(network, batch, precision, made_of).items():
            try:
                timed = Timed(make_step(), wait=lambda loss: loss.item())
                timed.turn(seconds)
            except Exception as error:  # Our times are worth keeping if PyTorch fails.
                print(f"{name}: the step failed: {one_line(error)}", flush=True)
                continue
            timed.rounds.clear()
            contenders[name] = timed
    for _ in range(rounds):
        for contender in contenders.values():
            contender.turn(seconds)
    times = {name: contender.rounds for name, contender in contenders.items()}
    peak = [2 * side() ** 3 / t for t in times["matrix product"]]
    rates = [operations / t for t in times["step"]]
    row = {"network": network, "batch": batch, "precision": precision, "operations": operations}
    row |= {"seconds": times, "host": contenders["step"].host}
    row |= {"images_per_second": [batch / t for t in times["step"]]}
    row |= {"teraflops": [rate / 1e12 for rate in rates], "share_of_peak": ratios(rates, peak)}
    return row | {
        key: ratios(times[name], times["step"]) for name, key in RATIOS.items() if name in times
    }


def show(rows: list[dict]) -> None:
    """Print the tables of step times and parts."""
    every = dict.fromkeys(name for row in rows for name in row["seconds"])
    names = [name for name in every if name not in ("matrix product", *RATIOS)]
    speeds, parts = [], []
    for row in rows:
        label = [row["network"], str(row["batch"]), row["precision"]]
        share = [100 * share for share in row["share_of_peak"]]
        speed = [spread(row["images_per_second"], 0), spread(row["teraflops"]), spread(share, 1)]
        speed += [spread(row[key]) if key in row else "-" for key in RATIOS.values()]
        speeds.append(label + speed)
        times = [*map(row["seconds"].get, names), row["host"]]
        parts.append(label + [f"{1000 * np.median(t):.2f}" if t else "-" for t in times])
    heads = ["network", "batch", "precision", "images/s", "TFLOP/s", "% of the matrix product"]
    heads += ["PyTorch's time / ours", "with CUDA graphs / ours", "eager PyTorch's / ours"]
    heads += ["with XLA's convolution / ours"]
    print(markdown_table(heads, speeds))
    heads = ["ms", "batch", "precision", *names, "host, until handed over"]
    print(markdown_table(heads, parts))


def main() -> None:
    """Measure all rows and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    choices = [*NETWORKS, *SMALL]
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=choices)
    parser.add_argument("--batches", nargs="+", type=int, help="default: by network")
    parser.add_argument(
        "--precisions", nargs="+", choices=DTYPES, help="default: all, float32 of small networks"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a contender's turn")
    parser.add_argument("--json", type=Path, help="file for all numbers")
    args = parser.parse_args()
    large = set(args.networks) - set(SMALL)
    if jax.default_backend() == "cpu" and large and not args.batches:
        parser.error(
            f"no accelerator is at hand; for a CPU take --networks {' '.join(SMALL)}, or name "
            "--networks and --batches"
        )
    compile_cache.enable()
    logging.getLogger("absl").setLevel(logging.ERROR)
    device = jax.devices()[0].device_kind
    versions = f"jax {jax.__version__}, " + (torch_step.VERSION if torch_step else NO_TORCH)
    print(f"{machine()}, {versions}\n")
    rows = []
    for network in args.networks:
        small = network in SMALL
        for batch in args.batches or ((SMALL_BATCH,) if small else NETWORKS[network][1]):
            for precision in args.precisions or (("float32",) if small else DTYPES):
                rows.append(measure(network, batch, precision, args.rounds, args.seconds))
                jax.clear_caches()
                if torch_step:  # Otherwise it would compile the next row for any batch size.
                    torch_step.torch.compiler.reset()
                if args.json:  # Each row is written as soon as it is measured.
                    document = {"device": device, "versions": versions, "rows": rows}
                    args.json.write_text(json.dumps(document, indent=1))
                print(f"measured: {network}, batch {batch}, {precision}", flush=True)
    print()
    show(rows)


if __name__ == "__main__":
    main()
