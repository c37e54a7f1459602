"""Summarise a profiler trace: where the time of a training step goes on the device."""

import gzip
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

# The first of these words that JAX's name of an operation contains decides its group.
GROUPS = (
    ("conv_general_dilated", "convolutions"),
    ("dot_general", "matrix products"),
    ("BatchNorm", "BatchNorm"),
)
# An operation without any of the words in `GROUPS` is grouped by the name of its kernel.
KERNELS = (
    (("cudnn", "conv", "wgrad", "dgrad", "fprop", "xmma"), "convolutions"),
    (("gemm", "cutlass", "cublas"), "matrix products"),
)
# Operations with inner kernels that have trace events of their own.
CONTAINERS = ("while", "call", "conditional")
TOP = 20  # number of kernels that are named
SHOWN = ("convolutions", "matrix products", "BatchNorm", "other kernels", "gaps")
INSTRUCTION = re.compile(r'^\s+(?:ROOT )?%(\S+) = .*?(?:op_name="([^"]*)"|$)', re.MULTILINE)


def read_events(folder: Path) -> list[dict[str, Any]]:
    """Read the events of a trace that `jax.profiler.trace` wrote into a folder."""
    paths = sorted(folder.glob("**/*.trace.json.gz"))
    with gzip.open(paths[-1]) as file:
        return json.load(file)["traceEvents"]


def summarise(
    events: Iterable[Mapping[str, Any]], program: str, steps: int, ms: float
) -> dict[str, Any]:
    """Return the shares of a step's time in groups of kernels, and in gaps between kernels.

    XLA turns CUDA graphs off while it is profiled, which widens the gaps. So the gaps are not taken
    from the trace, but are the rest of the time of a step that was not profiled.

    A kernel counts for the operation that it ends with: a convolution that is fused with a ReLU may
    count as either. Concurrent kernels share their time.

    Args:
        events: events of the trace in Chrome's format, times in microseconds.
        program: text of the compiled program, which maps kernels to operations.
        steps: number of steps in the trace.
        ms: time of a step without the profiler, in milliseconds.

    Returns:
        The share of each of `SHOWN`, "kernels" a step, "ms" a step, and "top": group, name and
        milliseconds of the kernels that take most time.
    """
    names = {kernel_name(name): op or "" for name, op in INSTRUCTION.findall(program)}
    kernels = sorted(_kernels(list(events), names))
    if not kernels:
        raise ValueError("the trace must hold kernels of the device, got none")
    times = dict.fromkeys(SHOWN, 0.0)
    longest: Counter[tuple[str, str]] = Counter()
    clock = kernels[0][0]
    for start, end, group, name in kernels:
        took = max(0.0, end - max(start, clock)) / steps / 1000
        times[group] += took
        longest[group, name] += took
        clock = max(clock, end)
    shares = {group: time / ms for group, time in times.items()}
    shares["gaps"] = max(0.0, 1 - sum(shares.values()))
    top = [[*key, round(took, 4)] for key, took in longest.most_common(TOP)]
    return {**shares, "kernels": len(kernels) / steps, "ms": ms, "top": top}


def kernel_name(text: str) -> str:
    """Return the name of an HLO instruction as it appears in names of kernels."""
    return re.sub(r"\W", "_", text)


def _kernels(
    events: list[Mapping[str, Any]], names: Mapping[str, str]
) -> Iterable[tuple[float, float, str, str]]:
    """Yield (start, end, group, name) of each kernel in the trace.

    Only the stream lanes of a device are read, because other lanes repeat them. On a CPU, a kernel
    is an event with the name of an instruction of the program.
    """
    meta = [event for event in events if event.get("ph") == "M"]
    process = {e["pid"]: e["args"]["name"] for e in meta if e["name"] == "process_name"}
    lane = {(e["pid"], e["tid"]): e["args"]["name"] for e in meta if e["name"] == "thread_name"}
    devices = {pid for pid, name in process.items() if name.startswith("/device:")}
    for event in events:
        if event.get("ph") != "X":
            continue
        operation = kernel_name(str(event.get("args", {}).get("hlo_op", event["name"])))
        if devices:
            stream = lane.get((event["pid"], event.get("tid")), "")
            if event["pid"] not in devices or not stream.startswith("Stream"):
                continue
        elif operation not in names or operation.startswith(CONTAINERS):
            continue
        group = group_of(names.get(operation, ""), event["name"])
        name = f"{event['name'][:60]} {names.get(operation, '')[-80:]}".strip()
        yield event["ts"], event["ts"] + event.get("dur", 0.0), group, name


def group_of(operation: str, kernel: str) -> str:
    """Return the group of a kernel by JAX's name of its operation, or by the kernel's name."""
    for word, group in GROUPS:
        if word in operation:
            return group
    if not operation:
        for words, group in KERNELS:
            if any(word in kernel.lower() for word in words):
                return group
    return "other kernels"
