"""Measure the overhead of losses and of the trainer on the demo's network.

    python benchmarks/trainer.py [--rounds 5]

1. Time of the whole jitted training step with each loss, relative to NT-Xent, at B = 256.
2. Speed of the trainer (batches, metrics, progress, logging) relative to a bare jitted step.

Shared machines are noisy: compare the ratios, which are medians over rounds with one turn of each
contender.
"""

import argparse
import logging
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import jax
import numpy as np
from shared import spread

from jaxssl import distributed
from jaxssl.data import source
from jaxssl.evaluation import pretrain
from jaxssl.training.build import build, make_batches, make_init
from jaxssl.training.config import load
from jaxssl.training.output import metrics_writer
from jaxssl.training.state import make_train_step

# B - 1 negatives, as in MMCL's released code, instead of the 2 (B - 1) of the paper's Algorithm 1.
TOWERS = {"method.name": "momentum", "method.momentum": "0.0", "method.symmetric": "False"}
LOSSES = {
    "nt_xent": {"loss.name": "nt_xent"},
    "auc_cl": {"loss.name": "auc_cl"},
    "decl": {"loss.name": "decl"},
    "sogclr": {"loss.name": "sogclr"},
    "tcl": {"loss.name": "tcl"},
    "mmcl, inv": {"loss.name": "mmcl", "loss.solver": "inv"},
    "mmcl, admm, 16 steps": {"loss.name": "mmcl", "loss.solver": "admm", "loss.num_steps": "16"},
    "mmcl, pgd, 200 steps": {"loss.name": "mmcl"},
    "mmcl, inv, B - 1": {"loss.name": "mmcl", "loss.solver": "inv", **TOWERS},
    "mmcl, admm, 16 steps, B - 1": {
        "loss.name": "mmcl",
        "loss.solver": "admm",
        "loss.num_steps": "16",
        **TOWERS,
    },
    "mmcl, pgd, 50 steps, B - 1": {"loss.name": "mmcl", "loss.num_steps": "50", **TOWERS},
    "mmcl, pgd, 200 steps, B - 1": {"loss.name": "mmcl", **TOWERS},
}


class Bare:
    """A jitted training step on one batch in the device's memory."""

    def __init__(self, overrides: dict[str, str], batch_size: int) -> None:
        config = load(
            ROOT / "configs" / "digits.py", [("batch_size", str(batch_size)), *overrides.items()]
        )
        mesh = distributed.make_mesh()
        train_set = source.load(config.data, "train")
        parts = build(config, len(train_set))
        batches = make_batches(config, train_set, mesh)
        example = batches.example
        self.state = make_init(parts, example, len(train_set), mesh)(config.seed)
        self.batch = batches.next()
        self.step = make_train_step(parts.method, parts.optimiser, parts.augment, mesh)
        self.run(2)

    def run(self, steps: int) -> float:
        """Run training steps and return the seconds of one step."""
        start = time.perf_counter()
        for _ in range(steps):
            self.state, metrics, _ = self.step(self.state, self.batch)
        jax.block_until_ready(metrics)
        return (time.perf_counter() - start) / steps


def losses(rounds: int) -> None:
    """Print the step time of each loss relative to NT-Xent."""
    contenders = {name: Bare(overrides, 256) for name, overrides in LOSSES.items()}
    seconds = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, contender in contenders.items():
            seconds[name].append(contender.run(5))
    print("| loss, B = 256 | ms a step | of NT-Xent's |\n| --- | --- | --- |")
    for name, times in seconds.items():
        ratios = np.array(times) / np.array(seconds["nt_xent"])
        print(f"| {name} | {1000 * np.median(times):.0f} | {spread(ratios)} |")


def trainer(rounds: int) -> None:
    """Print the speed of a whole run relative to a bare training step."""
    bare, ratios = Bare({}, 64), []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            config = load(
                ROOT / "configs" / "digits.py",
                [("total_steps", "300"), ("eval.every", "100"), ("eval.protocols", "()")]
                + [("checkpoint.every", "100"), ("schedule.warmup_epochs", "1")],
            )
            before = bare.run(100)
            workdir = Path(folder) / str(number)
            pretrain.train(config, workdir)
            rows = metrics_writer.read_metrics(workdir / "metrics.jsonl")
            # The first logged row includes compilation, and the last one the wait for evaluation.
            inside = 1 / np.mean([1 / row["images_per_second"] for row in rows[1:-1]])
            after = bare.run(100)
            ratios.append(inside / (64 / ((before + after) / 2)))
            print(f"trainer {inside:.0f} images/s, bare step {64 / before:.0f}, {64 / after:.0f}")
    print(f"trainer / bare step: {spread(ratios)}")


def main() -> None:
    """Print the tables of loss times and trainer overhead."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    logging.getLogger("absl").setLevel(logging.ERROR)
    losses(rounds)
    trainer(rounds)


if __name__ == "__main__":
    main()
