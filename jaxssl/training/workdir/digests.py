"""Digests of the arrays in a checkpoint, which tell whether an array was altered.

Zeros at the end of an array do not change its digest, because per-example buffers are padded with
rows of zeros to a multiple of the device count.
"""

import hashlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np

from jaxssl import distributed

BLOCK = 2**16  # bytes that the search for the last non-zero byte tests at once, from the end


def _sha256(x: np.ndarray) -> str:
    """Return the SHA-256 of the bytes of an array without the zeros at the end."""
    data = np.ascontiguousarray(x).reshape(-1).view(np.uint8)
    end = len(data)
    while end and not data[max(0, end - BLOCK) : end].any():
        end = max(0, end - BLOCK)
    start = max(0, end - BLOCK)
    end = start + len(data[start:end].tobytes().rstrip(b"\0"))
    return hashlib.sha256(data[:end].data).hexdigest()


def compute(tree: object, digest: Callable[[np.ndarray], object] = _sha256) -> dict[str, object]:
    """Return the digest of every array of a tree, by the name of `by_name`.

    Several processes must call this together.

    Args:
        tree: arrays on the host or on the devices.
        digest: ``array -> digest``. Default: the SHA-256 of its bytes without zeros at the end.
    """
    leaves = distributed.copy_to_host(jax.tree.leaves(tree))
    with ThreadPoolExecutor() as pool:  # hashing releases the GIL
        return dict(zip(by_name(tree), pool.map(digest, leaves), strict=True))


def verify(tree: object, expected: Mapping[str, str | int]) -> None:
    """Raise ValueError unless the arrays have the expected names and digests.

    Args:
        tree: arrays on the host or on the devices. Several processes must call this together if
            their devices share arrays.
        expected: result of `compute`, or the sums that version 0.1 wrote.
    """
    names = set(by_name(tree))
    if names != set(expected):
        name = min(names ^ set(expected))
        raise ValueError(f"the array {name!r} is missing or unexpected")
    of_version_0_1 = any(isinstance(value, int) for value in expected.values())
    for name, digest in compute(tree, _sum if of_version_0_1 else _sha256).items():
        if digest != expected[name]:
            raise ValueError(f"the array {name!r} does not match its checksum")


def by_name(tree: object) -> dict[str, np.ndarray]:
    """Return a tree's arrays by path, which is the same if a dict replaces a tuple or dataclass."""
    leaves = jax.tree.leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def _sum(x: np.ndarray) -> int:
    """Compute the checksum that jaxssl 0.1 wrote, which misses an even number of sign flips."""
    bits = np.ascontiguousarray(x).reshape(-1).view(f"uint{8 * x.dtype.itemsize}")
    factors = np.arange(1, 2 * bits.size, 2, dtype=np.uint32)
    return int(np.sum(bits.astype(np.uint32) * factors, dtype=np.uint32))
