"""Time and memory of a training step of the leaderboard's methods, by batch size.

    python benchmarks/step_cost.py docs/studies/small/step_cost.json [--rounds 5]

The step includes augmentation, network, loss and optimiser at scale "small" of the studies, on
random images. The methods of a batch size take turns, so that ratios within a round are comparable
on a shared machine. Memory is that of the compiled program: its arguments and temporary arrays.
`python docs/leaderboard.py` makes a table of the document.
"""

import argparse
import json
import platform
from functools import partial
from pathlib import Path

import jax
from shared import Training, in_turns, machine, on_random_images, timed

from jaxssl import distributed
from jaxssl.studies.compared_methods import LABELLED, METHODS
from jaxssl.training.config import load

BATCH_SIZES = (16, 64, 256)
STEPS = 20  # in a turn of a method


def prepare(method: str, size: int) -> Training:
    """Set up the training with a method at a batch size."""
    values = {"batch_size": size, **METHODS[method]}
    config = load("studies:small", [(key, str(value)) for key, value in values.items()])
    return on_random_images(config, distributed.make_mesh())


def measure(methods: list[str], size: int, rounds: int) -> dict[str, dict]:
    """Return the milliseconds of a step by round and the bytes of memory, by method."""
    turns, memory = {}, {}
    for method in methods:
        training = prepare(method, size)
        batch = training.batches.next()
        sizes = training.program.lower(training.state, batch).compile().memory_analysis()
        memory[method] = sizes.argument_size_in_bytes + sizes.temp_size_in_bytes
        step = partial(training.step, batch)
        timed(step, 2)
        turns[method] = partial(timed, step, STEPS)
        print(f"{method}, {size}: {memory[method] / 2**20:.0f} MiB", flush=True)
    times = in_turns(turns, rounds)
    return {
        method: {"milliseconds": [1000 * x for x, _ in times[method]], "bytes": memory[method]}
        for method in methods
    }


def main() -> None:
    """Measure all methods and write the document."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    methods = [method for method in METHODS if method not in LABELLED]
    results = {size: measure(methods, size, options.rounds) for size in BATCH_SIZES}
    document = {
        "command": f"python benchmarks/step_cost.py {options.out} --rounds {options.rounds}",
        "where": f"{machine()}, jax {jax.__version__}, Python {platform.python_version()}",
        "data": results,
    }
    options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
