"""Count the kernels of a training step and the bytes that they read and write. Needs no GPU.

    python benchmarks/gpu_program.py --networks resnet18 --batches 128 --precisions bf16

Needs `pip install "jaxssl[cuda]"`: XLA compiles the step of `train_step.py` for the description of
an H200. It cannot choose algorithms of convolutions and matrix products by autotuning without a
device; otherwise the kernels, layouts and arrays are the same as on a device.

A kernel is an instruction of the compiled program that computes or copies. Kernels of a loop count
once for each iteration. Bytes are the sizes of operands and results, also if they are cached or
read in part. The part (augmentation, forward, backward, update) is where JAX traced the operation.
Memory is the temporary memory of the step, without the state and the images.
"""

import argparse
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"  # This script runs on a CPU and only compiles for the GPU.

import jax
from shared import NETWORKS, begin

from jaxssl import distributed
from jaxssl.errors import UserError
from jaxssl.report.markdown import markdown_table
from jaxssl.training import hlo, topology
from jaxssl.training.state import make_train_step, shardings

KERNELS = ("fusion", "copy", "custom-call", "sort", "convolution", "dot")
INSTRUCTION = re.compile(r"\s+(?:ROOT )?%(\S+) = (.*?) ([\w\-]+)\((.*?)\)(?:, |$)")
WORKSPACE = re.compile(r", [su]8\[\d+\]")  # HLO shape of a library's workspace, an upper limit
UNSIZED = re.compile(r"\b(token|opaque)\[\]")  # HLO shapes of values that are no arrays
# The first of these words in JAX's name of an operation decides its part of the step.
PARTS = (("transpose(jvp", "backward"), ("jvp(", "forward"), ("vmap(", "augmentation"))


def program(network: str, batch: int, precision: str) -> tuple[str, int]:
    """Compile a training step and return its program text and temporary memory in bytes."""
    training = begin(network, batch, precision, distributed.make_mesh())
    parts = training.parts
    try:
        mesh = topology.describe("h200-1")
    except UserError as error:
        sys.exit(f"error: {error}")

    def shape(x: jax.Array, sharding: jax.sharding.Sharding) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    split = distributed.data_sharding(mesh)
    given = jax.tree.map(lambda x: shape(x, split), training.batches.next())
    layout = shardings(parts.method, training.state, mesh, "none")
    state = jax.tree.map(shape, training.state, layout)
    step: Any = make_train_step(parts.method, parts.optimiser, parts.augment, mesh)
    compiled = step.lower(state, given).compile(topology.UNTIMED)
    return compiled.as_text(), compiled.memory_analysis().temp_size_in_bytes


def kernels(text: str, computation: str, turns: int = 1) -> Iterator[tuple[str, int, int]]:
    """Yield (name of a part of the step, calls, bytes per call) of each kernel, loops included."""
    start = text.index(f"\n{computation} ") + 1
    sizes: dict[str, int] = {}
    for line in text[start : text.index("\n}", start)].split("\n")[1:]:
        match = INSTRUCTION.match(line)
        if not match:
            continue
        name, shape, kind, operands = match.groups()
        shape = UNSIZED.sub("", WORKSPACE.sub("", shape) if kind == "custom-call" else shape)
        sizes[name] = sum(hlo.sizes(shape))
        if kind == "while":
            (body,) = re.findall(r"body=(%[^,\s]+)", line)
            times = hlo.TRIPS.search(line)
            yield from kernels(text, body, turns * (int(times[1]) if times else 1))
        elif kind in KERNELS:
            where = (re.findall(r'op_name="([^"]*)"', line) or [""])[0]
            part = next((part for word, part in PARTS if word in where), "update")
            read = sum(sizes.get(name, 0) for name in re.findall(r"%([^,\s]+)", operands))
            yield part, turns, read + sizes[name]


def main() -> None:
    """Print kernels and bytes for each network, batch size and precision."""
    parser = argparse.ArgumentParser(description="Count kernels and bytes of a step.")
    parser.add_argument("--networks", nargs="+", default=["resnet18"], choices=NETWORKS)
    parser.add_argument("--batches", nargs="+", type=int, default=[128])
    parser.add_argument("--precisions", nargs="+", default=["bf16"], choices=("bf16", "float32"))
    parser.add_argument("--text", type=Path, help="folder for the compiled programs")
    args = parser.parse_args()
    parts = ("augmentation", "forward", "backward", "update")
    print(f"jax {jax.__version__}, for an H200; kernels / MB\n")
    lines = []
    for row in product(args.networks, args.batches, args.precisions):
        text, memory = program(*row)
        label = [str(word) for word in row]
        if args.text:
            args.text.mkdir(parents=True, exist_ok=True)
            (args.text / f"{'-'.join(label)}.txt").write_text(text)
        counts, sizes = Counter(), Counter()
        (entry,) = re.findall(r"\n(ENTRY %\S+) ", text)
        for part, times, size in kernels(text, entry):
            for key in (part, "all"):
                counts[key] += times
                sizes[key] += times * size
        cells = [f"{counts[key]} / {sizes[key] / 1e6:.0f}" for key in (*parts, "all")]
        lines.append([*label, *cells, f"{memory / 1e6:.0f} MB"])
    print(markdown_table(["network", "batch", "precision", *parts, "all", "memory"], lines))


if __name__ == "__main__":
    main()
