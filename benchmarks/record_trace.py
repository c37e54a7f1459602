"""Summarise a profiler trace: where the time of a training step goes on the device."""

import gzip
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

# The first of these words that JAX's name of an operation contains decides its group.
GROUPS = (
    ("conv_general_dilated", "convolutions"),
    ("dot_general", "matrix products"),
    ("BatchNorm", "BatchNorm"),
)
# An operation whose name has none of the words in `GROUPS` is grouped by the name of its kernel.
KERNELS = (
    (("cudnn", "conv", "wgrad", "dgrad", "fprop", "xmma"), "convolutions"),
    (("gemm", "cutlass", "cublas"), "matrix products"),
)
# Operations whose inner kernels have trace events of their own.
CONTAINERS = ("while", "call", "conditional")
SHOWN = ("convolutions", "matrix products", "BatchNorm", "other kernels", "gaps")
INSTRUCTION = re.compile(r'^\s+(?:ROOT )?%(\S+) = .*?(?:op_name="([^"]*)"|$)', re.MULTILINE)


def read_events(folder: Path) -> list[dict[str, Any]]:
    """Read the events of a trace that `jax.profiler.trace` wrote into a folder."""
    paths = sorted(folder.glob("**/*.trace.json.gz"))
    with gzip.open(paths[-1]) as file:
        return json.load(file)["traceEvents"]


def summarise(events: Iterable[Mapping[str, Any]], program: str, steps: int) -> dict[str, Any]:
    """Return the shares of a step's time in groups of kernels, and in gaps between kernels.

    A kernel counts for the operation that it ends with: a convolution that is fused with a ReLU may
    count as either. Concurrent kernels share their time.

    Args:
        events: events of the trace in Chrome's format, times in microseconds.
        program: text of the compiled program, which maps kernels to operations.
        steps: number of steps in the trace.

    Returns:
        The share of each of `SHOWN`, "kernels" a step and "ms" a step.
    """
    names = {kernel_name(name): op or "" for name, op in INSTRUCTION.findall(program)}
    kernels = sorted(_kernels(list(events), names))
    if not kernels:
        raise ValueError("the trace must hold kernels of the device, got none")
    times = dict.fromkeys(SHOWN, 0.0)
    clock = first = kernels[0][0]
    for start, end, group in kernels:
        times["gaps"] += max(0.0, start - clock)
        times[group] += max(0.0, end - max(start, clock))
        clock = max(clock, end)
    whole = clock - first
    shares = {group: time / whole for group, time in times.items()}
    return {**shares, "kernels": len(kernels) / steps, "ms": whole / steps / 1000}


def kernel_name(text: str) -> str:
    """Return the name of an HLO instruction as it appears in names of kernels."""
    return re.sub(r"\W", "_", text)


def _kernels(
    events: list[Mapping[str, Any]], names: Mapping[str, str]
) -> Iterable[tuple[float, float, str]]:
    """Yield (start, end, group) of each kernel in the trace.

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
        yield event["ts"], event["ts"] + event.get("dur", 0.0), group


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
