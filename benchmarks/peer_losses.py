"""Compare the time of losses with their gradient with that of lightly.

    python benchmarks/peer_losses.py [--rounds 5] [--peer PATH/python]

``--peer`` is the Python with lightly. Both libraries get the same embeddings of two views in
float32, [examples, 128], or [examples, 1024] for the losses of features. Each runs in a process of
its own, and they measure in turn. The printed numbers are the milliseconds of a call, the ratio of
lightly's time to ours, as median [smallest-largest] over rounds, and both values.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

# By the name of our loss: the width of the embeddings, lightly's class, and arguments of both.
LOSSES = {
    "nt_xent": (128, "NTXentLoss", {"temperature": 0.5}),
    "dcl": (128, "DCLLoss", {"temperature": 0.1}),
    "dclw": (128, "DCLWLoss", {"temperature": 0.1}),
    "barlow_twins": (1024, "BarlowTwinsLoss", {}),
    "vicreg": (1024, "VICRegLoss", {}),
}
EXAMPLES = (512, 2048)  # 1 024 and 4 096 rows of two views


def embeddings(examples: int, width: int) -> np.ndarray:
    """Draw embeddings [2, examples, width] of two views that resemble each other."""
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(examples, width))
    return (shared + 0.5 * rng.normal(size=(2, examples, width))).astype(np.float32)


def ours(loss: str, examples: int) -> Callable[[], float]:
    """Return a function that computes a loss of ours with its gradient."""
    import jax

    sys.path.insert(0, str(Path(__file__).parents[1]))
    from jaxssl import losses

    width, _, hyper = LOSSES[loss]
    views = jax.device_put(tuple(embeddings(examples, width)))
    value = lambda z1, z2: getattr(losses, loss)(z1, z2, **hyper)  # noqa: E731
    program = jax.jit(jax.value_and_grad(value, argnums=(0, 1)))
    return lambda: float(jax.block_until_ready(program(*views))[0])


def lightly(loss: str, examples: int) -> Callable[[], float]:
    """Return a function that computes a loss of lightly with its gradient."""
    import torch
    from lightly import loss as classes

    width, name, hyper = LOSSES[loss]
    views = [torch.from_numpy(view).requires_grad_() for view in embeddings(examples, width)]
    module = getattr(classes, name)(**hyper)

    def call() -> float:
        value = module(*views)
        torch.autograd.grad(value, views)
        return value.item()

    return call


def serve(make: Callable[[str, int], Callable[[], float]]) -> None:
    """Measure each loss that a line of the input names, for half a second."""
    calls: dict[str, Callable[[], float]] = {}
    for line in sys.stdin:
        loss, examples = line.split()
        if line not in calls:
            calls[line] = make(loss, int(examples))
            calls[line]()  # compiles
        seconds: list[float] = []
        while sum(seconds) < 0.5:
            start = time.perf_counter()
            value = calls[line]()
            seconds.append(time.perf_counter() - start)
        print(json.dumps([1e3 * float(np.median(seconds)), value]), flush=True)


def main() -> None:
    """Measure all losses in turn and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer", default=sys.executable, help="the Python that has lightly")
    parser.add_argument("--serve", choices=("jaxssl", "lightly"), help="for itself")
    args = parser.parse_args()
    if args.serve:
        serve(ours if args.serve == "jaxssl" else lightly)
        return
    from shared import machine, ratios, spread  # the Python with lightly may lack JAX

    servers = [
        subprocess.Popen(
            [python, __file__, "--serve", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name, python in (("jaxssl", sys.executable), ("lightly", args.peer))
    ]
    print(machine())
    for loss in LOSSES:
        for examples in EXAMPLES:
            results = []
            for _ in range(args.rounds):
                for server in servers:
                    print(loss, examples, file=server.stdin, flush=True)
                    results.append(json.loads(server.stdout.readline()))
            times, values = zip(*results, strict=True)
            cells = [spread(times[side::2]) for side in (0, 1)]
            cells.append(spread(ratios(times[1::2], times[::2])))
            print(f"{loss}, {2 * examples} rows", *cells, *values[:2], sep="  ", flush=True)
    for server in servers:
        server.communicate()


if __name__ == "__main__":
    main()
