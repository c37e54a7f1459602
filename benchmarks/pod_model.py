"""Predict the time of a training step on pods of 8 to 4096 devices.

    python benchmarks/pod_model.py                              # the tables of docs/scaling.md
    python benchmarks/pod_model.py --images_per_second 2500     # as one device was measured
    python benchmarks/pod_model.py --processes 1 2 4 8          # processes on this machine

The first command compiles the steps of SimCLR and of AUC-CL with a ResNet-50, and of MoCo-v3 with a
ViT-B, for eight virtual devices, and reads their collective operations (`jaxssl.training.hlo`). It
takes some minutes. A step takes

    images / (rate of a device) + the time of each collective, one after the other.

``--images_per_second`` is the measured rate of a device. By default the rate is a share of the peak
(`SHARE`) over the operations of an image. A collective takes a latency for each hop and its
bytes over the bandwidth, inside of a host or a slice and then between them. Gathered arrays grow
with the batch, the others do not. "Hidden" assumes that the gradient is sent during the backward
pass, which is two thirds of the computation.

The last command measures steps of a small network in 1 to 8 processes, with one thread each. It
predicts them from the steps of as many processes that do not communicate, and from all-reduces of
several sizes.

Sources:
    TPU: https://jax-ml.github.io/scaling-book/tpus (peak, links, network of a chip) and /sharding
        (1 us for each hop; a ring along each axis of the torus)
    GPU: NVIDIA H100 data sheet (989 TFLOP/s, NVLink 900 GB/s in both directions), a DGX H100 has a
        link of 400 Gb/s for each GPU; latencies of NCCL's own model, src/graph/tuning.cc
        (all-reduce: tree; all-gather and reduce-scatter: ring; protocol LL)
    Share of the peak, ResNet-50: 1.05 million images/s on 1024 TPU v3, Ying et al., Image
        Classification at Supercomputer Scale, 2018. ViT: our assumption.
"""

import argparse
import json
import math
import os
import subprocess
import sys
from collections import Counter
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import PartitionSpec as P
from shared import parse_overrides, timed

from jaxssl import distributed
from jaxssl.report.markdown import markdown_table
from jaxssl.training import processes, topology
from jaxssl.training.build import build, make_init
from jaxssl.training.config import load
from jaxssl.training.hlo import Collective, collectives
from jaxssl.training.state import make_train_step, shardings

BATCH, DEVICES, COMPILED = 4096, (8, 64, 512, 4096), 64
EACH = 64  # images per device, if the batch grows with the pod
AUC_CL = "loss.name=auc_cl loss.preset=recommended"
# Name -> config, overrides, operations for the views of an image. A forward pass has 4.1 x 10^9
# multiply-adds in ResNet-50, 17.6 x 10^9 in ViT-B. Training a view costs as much as three forward
# passes, and a fourth with a momentum network.
MODELS = {
    "SimCLR, ResNet-50": ("imagenet_baselines:simclr", "", 2 * 3 * 2 * 4.1e9),
    "AUC-CL, ResNet-50": ("imagenet_baselines:simclr", AUC_CL, 2 * 3 * 2 * 4.1e9),
    "MoCo-v3, ViT-B/16": ("imagenet_moco_v3:vit_s", "net.size=base", 2 * 4 * 2 * 17.6e9),
}
# Share of the device's peak speed that training reaches.
SHARE = {"ResNet-50": 0.2, "ViT-B/16": 0.4}
PARTS = ("gradient", "BatchNorm", "loss")
Parts = dict[str, Counter[Collective]]  # the collectives of each part of a step


class Network(NamedTuple):
    """Links between the devices of a group, or between such groups.

    Attributes:
        latency: seconds of a hop.
        bandwidth: bytes a second that a device sends.
        gather_hops: number of devices or groups -> hops of an all-gather.
        reduce_hops: the same -> hops of half an all-reduce.
    """

    latency: float
    bandwidth: float
    gather_hops: Any
    reduce_hops: Any


class Pod(NamedTuple):
    """Devices in groups: GPUs of a host, chips of a slice.

    Attributes:
        peak: operations of a device in a second, in bf16.
        size: devices of a group.
        inner: links inside a group, as a function of its number of devices.
        outer: links between groups.
        start: seconds to start a collective.
    """

    peak: float
    size: int
    inner: Any
    outer: Network
    start: float

    def seconds(self, operation: str, num_bytes: float, devices: int) -> float:
        """Return the time of a collective operation on arrays of ``num_bytes``, not per device."""
        inside = min(devices, self.size)
        groups = devices // inside
        levels = (self.inner(inside), inside, num_bytes), (self.outer, groups, num_bytes / inside)
        total = self.start
        for network, number, size in levels:
            reduces = operation == "all-reduce"
            hops = network.reduce_hops if reduces else network.gather_hops
            sent = size * (number - 1) / number / network.bandwidth
            total += (2 if reduces else 1) * (hops(number) * network.latency + sent)
        return total


def torus(link: float, dimensions: int, full: int) -> Any:
    """Return the links of a slice: a ring along each axis, both ways where the axis is closed.

    Args:
        link: bytes a second of a link, one way.
        dimensions: of the torus.
        full: an axis is closed if this number divides its length.
    """

    def network(chips: int) -> Network:
        sides = [side for side in topology.torus(chips, dimensions) if side > 1] or [1]
        closed = [side % full == 0 for side in sides]
        hops = sum(s // 2 if ring else s - 1 for s, ring in zip(sides, closed, strict=True))
        bandwidth = sum(link * (2 if ring else 1) for ring in closed)
        return Network(1e-6, bandwidth, lambda _: hops, lambda _: hops)

    return network


def between(bandwidth: float) -> Network:
    """Return the data centre's network between slices. Its latency is our assumption."""
    return Network(20e-6, bandwidth, math.log2, math.log2)


NVLINK = Network(0.9e-6, 450e9, lambda n: n - 1, lambda n: n - 1)
PODS = {
    "H100": Pod(
        989e12, 8, lambda _: NVLINK, Network(5e-6, 50e9, lambda k: k - 1, math.log2), 4.4e-6
    ),
    "v5e": Pod(197e12, 256, torus(4.5e10, 2, 16), between(3.1e9), 1e-6),
    "v6e": Pod(920e12, 256, torus(9e10, 2, 16), between(12.5e9), 1e-6),
    "v5p": Pod(459e12, 4096, torus(9e10, 3, 4), between(6.2e9), 1e-6),
    "v3": Pod(123e12, 1024, torus(1e11, 2, 32), between(6.2e9), 1e-6),
}
KINDS = ("H100", "v5e", "v6e", "v5p")
# Model, pod, devices, hours of 100 epochs, source. A TPU v3 is a chip of two cores.
PUBLISHED = (
    ("SimCLR, ResNet-50", "v3", 64, 1.5, "128 TPU v3 cores; Chen et al., SimCLR, 2020"),
    ("MoCo-v3, ViT-B/16", "v3", 256, 2.1, "512 TPUs, taken as cores; Chen et al., MoCo-v3, 2021"),
)
EPOCHS_STEPS = 100 * 1_281_167 // BATCH


def compile_step(name: str, overrides: str) -> Parts:
    """Compile a step and return its collectives, grouped by `PARTS`.

    The images have 32 pixels, and the batch has `COMPILED` images. The parameters are the same as
    with 224 pixels, except for a ViT's positions, which are not trained.
    """
    mesh = topology.describe("cpu:8")
    small = f"augment.size=32 batch_size={COMPILED}"
    config = load(name, parse_overrides(f"{small} {overrides}"))
    examples = {
        "input": np.zeros((2, 32, 32, 3), np.uint8),
        "label": np.zeros(2, np.int32),
        "index": np.arange(2, dtype=np.int32),
    }
    setup = build(config, 1_281_167, mesh.size)
    init: Any = make_init(setup, examples, 1_281_167, mesh)
    state = init.eval_shape(0)
    layout = shardings(setup.method, state, mesh, "none")
    split = distributed.data_sharding(mesh)

    def shape(x: Any, sharding: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    def whole(x: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((COMPILED, *x.shape[1:]), x.dtype, sharding=split)

    step: Any = make_train_step(setup.method, setup.optimiser, setup.augment, mesh)
    lowered = step.lower(jax.tree.map(shape, state, layout), jax.tree.map(whole, examples))
    compiled = lowered.compile({"xla_backend_optimization_level": 0})
    # A layer of the backbone sums both moments at once, a layer of a head one after the other.
    sums = {k * x.size for x in jax.tree.leaves(state.carried.batch_stats) for k in (4, 8)}
    parts: Parts = {name: Counter() for name in PARTS}
    for collective, times in collectives(compiled, mesh.size).items():
        parts[part(collective, sums)][collective] += times
    return parts


def part(collective: Collective, sums: set[int]) -> str:
    """Return the part of the step to which a collective belongs, by its kind and array sizes."""
    operation, sizes = collective
    if operation == "all-reduce" and sum(sizes) > 2**20:
        return "gradient"
    return "BatchNorm" if operation == "all-reduce" and max(sizes) in sums else "loss"


class Step(NamedTuple):
    """The predicted time of a step in seconds."""

    compute: float
    gradient: float
    batch_norm: float
    loss: float

    def efficiency(self, hidden: bool = False) -> float:
        """Return the computation's share of the time.

        With ``hidden``, the gradient is sent during the backward pass, 2/3 of the computation.
        """
        gradient = max(0.0, self.gradient - 2 / 3 * self.compute) if hidden else self.gradient
        return self.compute / (self.compute + gradient + self.batch_norm + self.loss)


def predict(
    parts: Parts, pod: Pod, devices: int, batch: int, rate: float, norm_group: int = 4096
) -> Step:
    """Predict the time of a step on a pod.

    Args:
        parts: the collectives of a step with `COMPILED` images.
        pod: the devices.
        devices: number of them.
        batch: images of a step.
        rate: images a second of one device.
        norm_group: number of devices that share BatchNorm's statistics.
    """

    def seconds(part: str) -> float:
        total, number = 0.0, min(devices, norm_group if part == "BatchNorm" else devices)
        for (operation, sizes), times in parts[part].items():
            grow = 1 if operation == "all-reduce" else batch / COMPILED
            total += times * pod.seconds(operation, grow * sum(sizes), number)
        return total

    return Step(batch / devices / rate, *map(seconds, PARTS))


def rate_of(model: str, pod: Pod, measured: float) -> float:
    """Return the images a second of one device: measured, or from a share of its peak speed."""
    return measured or pod.peak * SHARE[model.split(", ")[1]] / MODELS[model][2]


def print_tables(measured: float) -> None:
    """Compile the steps, and print predictions for all pods and for the published runs."""
    models = {name: compile_step(*model[:2]) for name, model in MODELS.items()}
    for name, parts in models.items():
        figures = (
            f"{part} {sum(ops.values())} operations, "
            f"{sum(n * sum(sizes) for (_, sizes), n in ops.items()) / 1e6:.1f} MB"
            for part, ops in parts.items()
        )
        print(f"{name}, batch {COMPILED}: {'; '.join(figures)}")
    efficiencies, detail = [], []
    # First the batch size of the papers, then a batch size that grows with the pod.
    runs = [(n, BATCH) for n in DEVICES] + [(n, EACH * n) for n in DEVICES if EACH * n > BATCH]
    for devices, batch in runs:
        for name, parts in models.items():
            rates = {kind: rate_of(name, pod, measured) for kind, pod in PODS.items()}
            args = devices, batch
            steps = {k: predict(parts, PODS[k], *args, rates[k]) for k in KINDS}
            row = [str(batch), str(devices), name]
            efficiencies.append([*row, *(f"{steps[k].efficiency():.0%}" for k in KINDS)])
            efficiencies[-1].append(f"{steps['H100'].efficiency(hidden=True):.0%}")
            grouped = predict(parts, PODS["H100"], *args, rates["H100"], norm_group=8)
            efficiencies[-1].append(f"{grouped.efficiency():.0%}")
            for kind in ("H100", "v5p"):
                detail.append([*row, kind, *(f"{1e3 * seconds:.2f}" for seconds in steps[kind])])
    header = ["batch", "devices", "model", *KINDS, "H100, hidden", "H100, BatchNorm of 8"]
    print(f"\nShare of computation in a step\n\n{markdown_table(header, efficiencies)}")
    header = ["batch", "devices", "model", "pod", "compute", *PARTS]
    print(f"\nMilliseconds of a step\n\n{markdown_table(header, detail)}")
    print("\nPublished runs\n")
    rows = []
    for name, kind, devices, hours, source in PUBLISHED:
        rate = rate_of(name, PODS[kind], measured)
        step = predict(models[name], PODS[kind], devices, BATCH, rate)
        published = hours * 3600 / EPOCHS_STEPS
        communication = sum(step[1:])
        rows.append([name, source, *(f"{1e3 * x:.1f}" for x in (published, sum(step)))])
        rows[-1].append(f"{1e3 * communication:.1f}")
    print(markdown_table(["model", "run", "published ms", "predicted ms", "of which sent"], rows))


# Steps of several processes on this machine, measured and predicted


def measure() -> None:
    """Time steps and all-reduces of several processes, and print them in the first, as JSON."""
    processes.initialize()
    mesh = distributed.make_mesh()
    batch = int(os.environ["POD_MODEL_BATCH"])
    config = load("digits", [("batch_size", str(batch))])
    rng = np.random.default_rng(0)
    shape = (batch // mesh.size, 8, 8, 1)
    local = {
        "input": rng.integers(0, 256, shape, np.uint8),
        "label": np.zeros(shape[0], np.int32),
        "index": np.arange(shape[0], dtype=np.int32),
    }
    setup = build(config, 1297, mesh.size)
    state = make_init(setup, local, 1297, mesh)(0)
    data = distributed.shard_rows(local, mesh)
    step: Any = make_train_step(setup.method, setup.optimiser, setup.augment, mesh)
    compiled = step.lower(state, data).compile()

    def advance() -> Any:
        nonlocal state
        state = compiled(state, data)[0]
        return state

    result: dict[str, Any] = {"step": [timed(advance)[0] for _ in range(60)], "sums": {}}
    result["collectives"] = [
        (operation, sum(sizes), times)
        for (operation, sizes), times in collectives(compiled, mesh.size).items()
    ]
    for size in (2**8, 2**14, 2**20) if mesh.size > 1 else ():
        x = distributed.shard_rows(np.ones((1, size // 4), np.float32), mesh)
        add = jax.jit(distributed.spmd(lambda x: jax.lax.psum(x, "data"), mesh, P("data"), P()))
        result["sums"][size] = [timed(partial(add, x))[0] for _ in range(60)]
    if distributed.is_first_process():
        print(json.dumps(result), flush=True)


def in_processes(number: int, batch: int, port: int) -> dict[str, Any]:
    """Run `measure` in several processes with one thread each. Return the output of the first.

    Port 0 means that each of them trains for itself.
    """
    flags = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    environment = {**os.environ, "XLA_FLAGS": flags, "POD_MODEL_BATCH": str(batch)}
    environment |= {"JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
    if port:
        environment |= {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}"}
        environment |= {"JAX_NUM_PROCESSES": str(number)}
    processes = []
    for i in range(number):
        identity = {"JAX_PROCESS_ID": str(i)} if port else {}
        options = {"env": environment | identity, "stdout": subprocess.PIPE, "text": True}
        processes.append(subprocess.Popen([sys.executable, __file__, "--measure"], **options))
    outputs = [process.communicate()[0] for process in processes]
    return json.loads(outputs[0].splitlines()[-1])


def print_processes(numbers: list[int], batch: int) -> None:
    """Measure and predict the step of a small network in several processes."""
    cores = len(os.sched_getaffinity(0))
    rows = []
    for number in numbers:
        # Cores slow each other down, so computation is timed with as many processes as the step.
        compute = float(np.median(in_processes(number, batch // number, 0)["step"]))
        together = in_processes(number, batch, 12000 + number if number > 1 else 0)
        communication = 0.0
        if number > 1:
            sizes = sorted(map(int, together["sums"]))
            seconds = [float(np.median(together["sums"][str(size)])) for size in sizes]
            communication = sum(
                times * float(np.interp(size, sizes, seconds))
                for _, size, times in together["collectives"]
            )
        low, middle, high = np.percentile(together["step"], (25, 50, 75))
        measured = f"{1e3 * middle:.1f} [{1e3 * low:.1f}-{1e3 * high:.1f}]"
        predicted = [f"{1e3 * x:.1f}" for x in (compute, communication, compute + communication)]
        rows.append([str(number), measured, *predicted])
    header = ["processes", "measured ms [quartiles]", "compute", "sent", "predicted"]
    print(f"digits, batch {batch}, {cores} cores\n\n{markdown_table(header, rows)}")


def main() -> None:
    """Print the tables, or measure processes."""
    parser = argparse.ArgumentParser(description="Predict the time of a training step on pods.")
    parser.add_argument("--images_per_second", type=float, default=0.0, help="of one device")
    parser.add_argument("--processes", nargs="+", type=int, help="measure on this machine instead")
    parser.add_argument("--batch", type=int, default=512, help="of the measured step")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        measure()
    elif args.processes:
        print_processes(args.processes, args.batch)
    else:
        print_tables(args.images_per_second)


if __name__ == "__main__":
    main()
