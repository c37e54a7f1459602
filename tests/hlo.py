"""What the devices of a compiled program send each other, read from its text."""

import math
import re
from collections import Counter

COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "collective-permute", "all-to-all")
BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4}
BYTES |= {"s64": 8, "u64": 8, "f64": 8}
HEAD = re.compile(r"^(ENTRY )?%([\w.-]+) \(.*\{$")
# `%name = shape operation(`, where the shape may be a tuple's.
LINE = re.compile(r"^\s*(?:ROOT )?%[\w.-]+ = (.+?) ([a-z][a-z-]*)\(")
ARRAY = re.compile(r"(\w+)\[([\d,]*)\]")
CALLED = re.compile(r"(\w+)=%([\w.-]+)")
BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


def collectives(text: str, devices: int) -> Counter[tuple[str, int]]:
    """How often a device sends what: (operation, bytes of the array that all devices share).

    The array is whole: what an all-gather makes, what a reduce-scatter starts from. An operation
    on a tuple counts as one for each array, so that it does not matter what the compiler puts
    together. What a loop sends counts once for each round.

    Args:
        text: of the compiled program, in HLO.
        devices: how many share the work.

    Raises:
        ValueError: on a collective in a loop of unknown length, or in one branch alone.
    """
    parts: dict[str, list[str]] = {}
    name = entry = ""
    for line in text.splitlines():
        if head := HEAD.match(line):
            name = head[2]
            entry = name if head[1] else entry
            parts[name] = []
        elif name:
            parts[name].append(line)

    def sent(name: str) -> Counter[tuple[str, int]]:
        actual: Counter[tuple[str, int]] = Counter()
        for line in parts[name]:
            if not (match := LINE.match(line)):
                continue
            shape, operation = match[1], match[2].removesuffix("-start")
            if operation in COLLECTIVES:
                if match[2].endswith("-start"):
                    raise ValueError(f"asynchronous collectives are not read: {line}")
                whole = devices if operation == "reduce-scatter" else 1
                actual.update((operation, size * whole) for size in sizes(shape))
                continue
            called = dict((key, part) for key, part in CALLED.findall(line) if part in parts)
            if operation == "while":
                body, trips = sent(called["body"]), TRIPS.search(line)
                if body and not trips:
                    raise ValueError(f"a collective in a loop of unknown length: {line}")
                for key, count in body.items():
                    actual[key] += count * int(trips[1])
            elif operation == "conditional":
                names = [*re.findall(r"%([\w.-]+)", "".join(BRANCHES.findall(line)))]
                names += [called[key] for key in called if key.endswith("_computation")]
                branches = [sent(branch) for branch in names]
                if any(branch != branches[0] for branch in branches):
                    raise ValueError(f"a collective in one branch alone: {line}")
                actual += branches[0]
            elif operation in ("call", "fusion"):
                for part in called.values():
                    actual += sent(part)
        return actual

    return sent(entry)


def sizes(shape: str) -> list[int]:
    """Bytes of every array of a shape or tuple of shapes."""
    return [
        BYTES[dtype] * math.prod(map(int, filter(None, dims.split(","))))
        for dtype, dims in ARRAY.findall(shape)
    ]
