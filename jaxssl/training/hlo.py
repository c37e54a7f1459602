"""What devices send each other in a compiled program, parsed from the program's HLO text."""

import math
import re
from collections import Counter

from jax.stages import Compiled

COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "collective-permute", "all-to-all")
CALLERS = ("while", "conditional", "call", "fusion", "async-start")
HEAD = re.compile(r"^(ENTRY )?%([\w.-]+) \(.*\{$")
# `%name = shape operation(`, where the shape may be a tuple's.
LINE = re.compile(r"^\s*(?:ROOT )?%[\w.-]+ = (.+?) ([a-z][a-z-]*)\(")
ARRAY = re.compile(r"(\w+)\[([\d,]*)\]")
CALLED = re.compile(r"\w=\{?%([\w.-]+(?:, %[\w.-]+)*)")
TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')

# An operation and the bytes of each array that it sends.
Collective = tuple[str, tuple[int, ...]]


def collectives(compiled: Compiled, devices: int) -> Counter[Collective]:
    """Count a device's collective operations in a program, with the bytes of their arrays.

    The bytes are those of whole arrays: the result of an all-gather, the operand of a
    reduce-scatter. One operation may send several arrays. Operations in a loop count once for each
    iteration.

    Args:
        compiled: the program.
        devices: number of devices that share the work.

    Raises:
        ValueError: on a collective in a loop of unknown length, or in a branch.
    """
    parts: dict[str, list[str]] = {}
    name = entry = ""
    for line in (compiled.as_text() or "").splitlines():
        if head := HEAD.match(line):
            name = head[2]
            entry = name if head[1] else entry
            parts[name] = []
        elif name:
            parts[name].append(line)

    def sent(name: str) -> Counter[Collective]:
        actual: Counter[Collective] = Counter()
        for match in filter(None, map(LINE.match, parts[name])):
            # An asynchronous operation counts at its end ("-done"), where its result has a shape.
            shape, operation = match[1], match[2].removesuffix("-done")
            if operation in COLLECTIVES:
                whole = devices if operation == "reduce-scatter" else 1
                actual[operation, tuple(size * whole for size in sizes(shape))] += 1
            if operation not in CALLERS:
                continue
            called = [part for group in CALLED.findall(match.string) for part in group.split(", %")]
            inner = [sent(part) for part in called if part in parts]
            trips = TRIPS.search(match.string)
            for key, count in sum(inner, Counter[Collective]()).items():
                if operation in ("while", "conditional") and not trips:
                    raise ValueError(
                        "a collective operation is in a loop of unknown length, or in a branch"
                    )
                actual[key] += count * int(trips[1] if trips else 1)
        return actual

    return sent(entry)


def sizes(shape: str) -> list[int]:
    """Return the bytes of each array of a shape or a tuple, such as "(f32[8,4], u8[])"."""
    bits = re.compile(r"^\D+|\D.*")  # matches all but the bits of f32, bf16, f8e4m3fn, u8
    return [
        int(bits.sub("", dtype.replace("pred", "u8")))
        * math.prod(int(side) for side in dims.split(",") if side)
        // 8
        for dtype, dims in ARRAY.findall(shape)
    ]
