"""Communication between devices in a compiled program, parsed from the program's HLO text."""

import math
import re
from collections import Counter

from jax.stages import Compiled

COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "collective-permute", "all-to-all")
CALLERS = ("while", "conditional", "call", "fusion", "async-start")
HEAD = re.compile(r"^(ENTRY )?%([\w.-]+) \(.*\{$")  # first line of a computation
# `%name = shape operation(`, where the shape may be a tuple's.
LINE = re.compile(r"^\s*(?:ROOT )?%[\w.-]+ = (.+?) ([a-z][a-z-]*)\(")
ARRAY = re.compile(r"(\w+)\[([\d,]*)\]")  # type and sides
BITS = re.compile(r"^[a-z]+(\d+)")  # bits in the name of a type: f32, bf16, f8e4m3fn
CALLED = re.compile(r"\w=\{?%([\w.-]+(?:, %[\w.-]+)*)")
TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')

# An operation and the bytes of each array that it sends.
Collective = tuple[str, tuple[int, ...]]


def collectives(compiled: Compiled, devices: int) -> Counter[Collective]:
    """Count a device's collective operations in a program, with the bytes of their arrays.

    The bytes are counted for whole arrays: the result of an all-gather, the operand of a
    reduce-scatter. One operation may send several arrays. Operations in a loop count once for each
    iteration.

    Args:
        compiled: the program.
        devices: number of devices that share the work.

    Raises:
        ValueError: without a text of the program, and on a collective in a loop of unknown length,
            or in a branch.
    """
    computations: dict[str, list[str]] = {}  # lines by the name of a computation
    name = entry = ""
    if not (text := compiled.as_text()):
        raise ValueError("this platform does not give the text of compiled programs")
    for line in text.splitlines():
        if head := HEAD.match(line):
            name = head[2]
            entry = name if head[1] else entry
            computations[name] = []
        elif name:
            computations[name].append(line)

    def count(name: str) -> Counter[Collective]:
        counts: Counter[Collective] = Counter()
        for match in filter(None, map(LINE.match, computations[name])):
            # An asynchronous operation counts at its end ("-done"), where its result has a shape.
            shape, operation = match[1], match[2].removesuffix("-done")
            if operation in COLLECTIVES:
                # The result of a reduce-scatter is the share of one device.
                shares = devices if operation == "reduce-scatter" else 1
                counts[operation, tuple(size * shares for size in sizes(shape))] += 1
            if operation not in CALLERS:
                continue
            inner: Counter[Collective] = Counter()
            for group in CALLED.findall(match.string):
                for called in group.split(", %"):
                    if called in computations:
                        inner += count(called)
            trips = TRIPS.search(match.string)
            if inner and operation in ("while", "conditional") and not trips:
                raise ValueError(
                    "a collective operation is in a loop of unknown length, or in a branch"
                )
            for collective, number in inner.items():
                counts[collective] += number * int(trips[1] if trips else 1)
        return counts

    return count(entry)


def sizes(shape: str) -> list[int]:
    """Return the bytes of each array of a shape or a tuple, such as "(f32[8,4], u8[])"."""
    num_bytes = []
    for dtype, sides in ARRAY.findall(shape):
        bits = BITS.match(dtype)
        size = math.prod(int(side) for side in sides.split(",") if side)
        num_bytes.append(size * int(bits[1] if bits else 8) // 8)  # "pred" has 8 bits
    return num_bytes
