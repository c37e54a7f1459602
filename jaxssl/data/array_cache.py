"""Arrays kept in files beside a prepared set, so that they are decoded once."""

import contextlib
import logging
import os
import socket
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

log = logging.getLogger("jaxssl")


def array(
    path: Path, shape: tuple[int, ...], dtype: type, make: Callable[[], np.ndarray]
) -> np.ndarray:
    """The array in a file; made and written if there is none, a damaged one, or another one.

    Behind the array its checksum stands, which is looked at: nobody would see a wrong label.
    """
    try:
        found = np.lib.format.open_memmap(path, mode="r")
        if (found.shape, found.dtype) == (shape, dtype) and _checksum(found) == _tail(path):
            return found
    except (OSError, ValueError, EOFError, MemoryError, OverflowError, SyntaxError):
        pass  # none, or not readable: made again
    log.info("data       reading %s once, for %s", path.parent, path.name)
    made = make()
    half = path.with_suffix(f".{socket.gethostname()}-{os.getpid()}.tmp")
    try:
        with half.open("wb") as file:
            np.save(file, made)
            file.write(_checksum(made))
        half.replace(path)
    except OSError as error:
        log.warning("data       %s is not kept: %s", path, error)
        with contextlib.suppress(OSError):
            half.unlink()
    return made


def _checksum(values: np.ndarray) -> bytes:
    return zlib.crc32(np.ascontiguousarray(values).reshape(-1).view(np.uint8)).to_bytes(4, "little")


def _tail(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(-4, os.SEEK_END)
        return file.read()
