"""Choose whether training examples are cached on the device or streamed from the host."""

from typing import NamedTuple

import jax

from jaxssl.data import kind
from jaxssl.data.decoders import files
from jaxssl.data.decoders.decoding import Crops
from jaxssl.data.splits import Source
from jaxssl.errors import UserError, suggest

CACHES = ("auto", "device", "none")
# cache="auto" keeps a data set on the device if it takes at most 1 GiB, or at most this share of
# the device memory if that is larger.
CACHE_BYTES = 2**30
CACHE_SHARE = 1 / 8


class Plan(NamedTuple):
    """How training examples get to the device: cached there, or streamed by processes.

    Attributes:
        cached: whether all examples are kept on the device. If not, they are streamed.
        host: whether the host crops images before they are sent.
        workers: number of reading processes; 0 reads in threads of this process.
        why: explanation for the start-up summary.
    """

    cached: bool
    host: bool
    workers: int
    why: str


def make_plan(source: Source, crops: Crops, *, cache: str = "auto", workers: int = -1) -> Plan:
    """Choose how training examples get to the device.

    Args:
        source: the training split.
        crops: crops that the host can cut. Without random crops, images of one size are sent whole.
        cache: "device" keeps uint8 images on every device, "none" streams them, "auto" chooses
            "device" if they have one size and take little memory.
        workers: number of processes that read a stream; 0 reads in threads of this process, -1
            takes half of the cores if there are more than four, else threads.

    Raises:
        UserError: if ``cache`` is unknown, ``workers`` is out of range, or the split cannot be kept
            on the device.
    """
    if cache not in CACHES:
        raise UserError(f"data.cache={cache!r} is unknown{suggest(cache, CACHES)}")
    cores = files.cpu_count()
    if not -1 <= workers <= 8 * cores:
        raise UserError(
            f"data.workers must be -1 (automatic) or between 0 and {8 * cores} here, got {workers}"
        )
    return kind.get(source.kind).plan(source, crops, cache, workers)


def cache_limit() -> float:
    """Return the largest data set in bytes that cache="auto" keeps on a device."""
    sizes = [(device.memory_stats() or {}).get("bytes_limit", 0) for device in jax.local_devices()]
    return max(CACHE_BYTES, CACHE_SHARE * min(sizes))
