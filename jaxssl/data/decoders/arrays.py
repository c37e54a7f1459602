"""Arrays of a split's examples: decoded when indexed, or cached next to a prepared data set."""

import logging
import os
import string
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from etils import epath
from tensorflow_datasets.core.utils import incomplete_file

from jaxssl.data.decoders import files
from jaxssl.errors import UserError

log = logging.getLogger("jaxssl")
RECORD_FILES = (*string.digits, ".array_record", ".json")  # endings of the files that are decoded
# Number of blocks of the record files that are hashed to notice changes. In files of more than
# 16 MiB, a change that keeps size and modification time may lie between the blocks.
SAMPLES = 256
TAIL_BYTES = 4 + 64  # CRC-32 of the array, fingerprint of the record files
BLOCK = 256  # rows that a thread decodes in one task


@dataclass(frozen=True, eq=False)
class LazyArray:
    """A uint8 array [n, ...] that decodes its rows when they are indexed.

    Attributes:
        decode: maps indices [k] to the k rows.
        shape: shape of the whole array.
        threads: number of threads that decode blocks of rows.
    """

    decode: Callable[[np.ndarray], Iterable[np.ndarray]]
    shape: tuple[int, ...]
    threads: int = 1

    def __len__(self) -> int:
        """Return the number of rows of the array."""
        return self.shape[0]

    def __getitem__(self, key: int | slice | np.ndarray) -> np.ndarray:
        """Decode the rows that a slice, an index, a mask or an array of indices selects."""
        # A slice must not cost an array of all indices.
        every = range(len(self)) if isinstance(key, slice) else np.arange(len(self))
        indices = np.asarray(every[key])
        flat = indices.ravel()
        out = np.empty((len(flat), *self.shape[1:]), np.uint8)
        block = max(1, min(BLOCK, -(-len(flat) // self.threads)))

        def fill(start: int) -> None:
            for i, row in enumerate(self.decode(flat[start : start + block]), start):
                check_shape(row, self.shape[1:], flat[i])  # NumPy would repeat a row of one pixel.
                out[i] = row

        with ThreadPoolExecutor(self.threads) as pool:
            list(pool.map(fill, range(0, len(flat), block)))
        return out.reshape(*indices.shape, *self.shape[1:])


def check_shape(row: np.ndarray, shape: tuple[int | None, ...], index: int) -> None:
    """Raise a UserError if the example at ``index`` has not the shape of its data set."""
    if row.shape != shape:
        raise UserError(
            f"example {index} has the shape {list(row.shape)}, and the data set {list(shape)}; its "
            "file may have changed since it was opened"
        )


def load_or_compute(
    path: Path, shape: tuple[int, ...], dtype: type, compute: Callable[[], np.ndarray]
) -> np.ndarray:
    """Read an array from its cache file. If the file is unusable, compute and cache the array.

    The file is an .npy file followed by a checksum of the array and a fingerprint of the record
    files. Without them, damaged labels and replaced records would go unnoticed.

    Args:
        path: the .npy file, in the folder of the prepared data set.
        shape: expected shape.
        dtype: expected type. A file with another shape or type is replaced.
        compute: returns the array.
    """
    origin = files.fingerprint(path.parent, RECORD_FILES, SAMPLES).encode()
    try:
        cached = np.lib.format.open_memmap(path, mode="r")
        with path.open("rb") as file:
            file.seek(-TAIL_BYTES, os.SEEK_END)
            intact = file.read() == _checksum(cached) + origin
        if (cached.shape, cached.dtype) == (shape, dtype) and intact:
            return cached
    except (OSError, ValueError, EOFError, MemoryError, OverflowError, SyntaxError):
        pass  # The cache file is missing or unreadable.
    if len(shape) > 1:  # Reading labels takes too little time to announce.
        log.info("data       decoding the images of %s once, to %s", path.parent, path.name)
    array = compute()

    def write(file: IO[Any]) -> None:
        np.save(file, array)
        file.write(_checksum(array) + origin)

    write_cache(path, write)
    return array


def write_cache(path: Path, write: Callable[[IO[Any]], object]) -> None:
    """Write a cache file atomically, or log a warning if the file cannot be written.

    Args:
        path: the file, in a folder that exists.
        write: writes the content.
    """
    try:
        with incomplete_file(epath.Path(path)) as temporary, temporary.open("wb") as file:
            write(file)
    except OSError as error:
        log.warning("data       cannot cache %s: %s", path, error)


def _checksum(values: np.ndarray) -> bytes:
    flat = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    return zlib.crc32(flat.data).to_bytes(4, "little")
