"""Measure the overhead of losses and of the trainer on the demo's network.

    python benchmarks/trainer.py [--rounds 5]

1. Time of the whole jitted training step with each loss, relative to NT-Xent, at B = 256.
2. Speed of the trainer (batches, metrics, progress, logging) relative to a bare jitted step.

Shared machines are noisy: compare the ratios, which are medians over rounds with one turn of each
contender.
"""

import argparse
import logging
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from shared import Training, in_turns, parse_overrides, ratios, spread, timed

from jaxssl import distributed
from jaxssl.data import source
from jaxssl.evaluation import pretrain
from jaxssl.report.markdown import markdown_table
from jaxssl.training.config import load
from jaxssl.training.output import metrics_writer

# B - 1 negatives, as in MMCL's released code, instead of the 2 (B - 1) of the paper's Algorithm 1.
TOWERS = "method.name=momentum method.momentum=0.0 method.symmetric=False"
LOSSES = {
    **{name: f"loss.name={name}" for name in ("nt_xent", "auc_cl", "decl", "sogclr", "tcl")},
    "mmcl, inv": "loss.name=mmcl loss.solver=inv",
    "mmcl, admm, 16 steps": "loss.name=mmcl loss.solver=admm loss.num_steps=16",
    "mmcl, pgd, 200 steps": "loss.name=mmcl",
    "mmcl, inv, B - 1": f"loss.name=mmcl loss.solver=inv {TOWERS}",
    "mmcl, admm, 16 steps, B - 1": f"loss.name=mmcl loss.solver=admm loss.num_steps=16 {TOWERS}",
    "mmcl, pgd, 50 steps, B - 1": f"loss.name=mmcl loss.num_steps=50 {TOWERS}",
    "mmcl, pgd, 200 steps, B - 1": f"loss.name=mmcl {TOWERS}",
}
RUN = "total_steps=300 eval.every=100 eval.protocols=() checkpoint.every=100"


def bare_step(overrides: str, batch_size: int, steps: int) -> Callable[[], float]:
    """Return a function that times the jitted step on one batch in the device's memory."""
    config = load("digits", parse_overrides(f"batch_size={batch_size} {overrides}"))
    training = Training(config, source.load(config.data, "train"), distributed.make_mesh())
    step = partial(training.step, training.batches.next())
    timed(step, 2)
    return lambda: timed(step, steps)[0]


def losses(rounds: int) -> None:
    """Print the step time of each loss relative to NT-Xent."""
    steps = {name: bare_step(overrides, 256, 5) for name, overrides in LOSSES.items()}
    seconds = in_turns(steps, rounds)
    rows = [
        [name, f"{1000 * np.median(times):.0f}", spread(ratios(times, seconds["nt_xent"]))]
        for name, times in seconds.items()
    ]
    print(markdown_table(["loss, B = 256", "ms a step", "of NT-Xent's"], rows))


def trainer(rounds: int) -> None:
    """Print the speed of a whole run relative to a bare training step."""
    bare, shares = bare_step("", 64, 100), []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            config = load("digits", parse_overrides(f"{RUN} schedule.warmup_epochs=1"))
            before = bare()
            workdir = Path(folder) / str(number)
            pretrain.train(config, workdir)
            rows = metrics_writer.read_metrics(workdir / "metrics.jsonl")
            # The first logged row includes compilation, and the last one the wait for evaluation.
            inside = 1 / np.mean([1 / row["images_per_second"] for row in rows[1:-1]])
            after = bare()
            shares.append(inside / (64 / ((before + after) / 2)))
            print(f"trainer {inside:.0f} images/s, bare step {64 / before:.0f}, {64 / after:.0f}")
    print(f"trainer / bare step: {spread(shares)}")


def main() -> None:
    """Print the tables of loss times and trainer overhead."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    logging.getLogger("absl").setLevel(logging.ERROR)
    losses(rounds)
    trainer(rounds)


if __name__ == "__main__":
    main()
