"""Check memory, speed and files of a long run: 20 000 steps on a tiny network.

    python benchmarks/long_run.py [--steps 20000]

Prints for each tenth of the run the median resident memory of the process, the median time of a
step, and the number of files in the workdir. The first tenth, which compiles, is left out. Memory
and files should stay constant. Times are noisy on shared machines.
"""

import argparse
import json
import logging
import os
import tempfile
import threading
from pathlib import Path

import numpy as np
from shared import parse_overrides, resident

from jaxssl.evaluation import pretrain
from jaxssl.report.markdown import markdown_table
from jaxssl.training.config import load
from jaxssl.training.output import compile_cache, logs, metrics_writer

BATCH = 16
SETTINGS = (  # 405 steps between checkpoints
    f"batch_size={BATCH} net.widths=(4,8) net.strides=(2,2) augment.size=8 head.proj_hidden_dim=8 "
    "head.proj_output_dim=6 checkpoint.every=5 eval.every=10 eval.protocols=()"
)
TENTHS = 10


def watch(workdir: Path, samples: list[tuple[int, float, int]], done: threading.Event) -> None:
    """Append (step, memory, number of files) to ``samples`` four times a second."""
    metrics = workdir / "metrics.jsonl"
    while not done.wait(0.25):
        if not metrics.exists() or not (tail := metrics.read_bytes()[-4000:].splitlines()[:-1]):
            continue
        step = json.loads(tail[-1])["step"] if tail[-1].startswith(b"{") else 0
        files = sum(len(names) for _, _, names in os.walk(workdir))
        samples.append((step, resident(), files))


def main() -> None:
    """Run 20 000 steps and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20_000)
    steps = parser.parse_args().steps
    compile_cache.enable()
    logging.getLogger("absl").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        workdir, samples, done = Path(folder) / "run", [], threading.Event()
        config = load(
            "digits", parse_overrides(f"{SETTINGS} total_steps={steps} data.dir={folder}/data")
        )
        watcher = threading.Thread(target=watch, args=(workdir, samples, done))
        watcher.start()
        try:
            with logs.quiet():
                pretrain.train(config, workdir)
        finally:
            done.set()
            watcher.join()
        rows = metrics_writer.read_metrics(workdir / "metrics.jsonl")
    table, memory = [], {}
    for tenth in range(1, TENTHS):
        low, high = steps * tenth // TENTHS, steps * (tenth + 1) // TENTHS
        some = [x for x in samples if low < x[0] <= high]
        memory[tenth] = np.median([x[1] for x in some])
        speeds = [r["images_per_second"] for r in rows if low < r["step"] <= high]
        ms = 1000 * BATCH / np.median(speeds)
        files = f"at most {max(x[2] for x in some)}"
        table.append([f"{low} to {high}", f"{memory[tenth]:.0f}", f"{ms:.2f}", files])
    print(markdown_table(["step", "MB", "ms a step", "files"], table))
    print(f"memory of the last tenth / of the second: {memory[TENTHS - 1] / memory[1]:.3f}")


if __name__ == "__main__":
    main()
