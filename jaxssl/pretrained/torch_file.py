"""Files of `torch.save`, today's (a zip archive) and those of before version 1.6."""

import io
import mmap
import struct
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from jaxssl.pretrained import pickle_reader
from jaxssl.pretrained.pickle_reader import Storage, Tensor

MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # what a file from before 1.6 starts with
Read = Callable[[Tensor], np.ndarray]


@contextmanager
def opened(path: Path) -> Iterator[tuple[Any, Read]]:
    """What was saved, and how to read its tensors while the file is open.

    No code of the file is run. The first of the two is as saved, of dicts, lists, numbers and
    strings, with a `pickle_reader.Tensor` for each tensor and a `pickle_reader.Inert` for
    anything else.

    Raises:
        Exception: of many kinds, if the file is damaged or cut off.
    """
    with path.open("rb") as file:
        if file.read(4) == b"PK\x03\x04":
            with zipfile.ZipFile(file) as archive:
                yield _of_zip(archive)
        else:
            # Not closed here: arrays that look into it may outlive this. It ends with them.
            yield _of_stream(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _of_zip(archive: zipfile.ZipFile) -> tuple[Any, Read]:
    names = [name for name in archive.namelist() if name.split("/", 1)[-1] == "data.pkl"]
    if len(names) != 1:
        raise ValueError("a zip archive, but not one of torch.save")
    prefix = names[0].removesuffix("data.pkl")

    @lru_cache(maxsize=1)  # tensors that share a storage mostly follow each other
    def entry(name: str) -> bytes:
        # torch.save compresses nothing, so what is unpacked is never larger than the file.
        if archive.getinfo(prefix + name).compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"its part {name!r:.60} is compressed, as torch.save leaves none")
        return archive.read(prefix + name)

    if prefix + "byteorder" in archive.namelist() and entry("byteorder") != b"little":
        raise ValueError("its numbers are not in little-endian order")
    saved, _ = pickle_reader.load(pickle_reader.check(io.BytesIO(entry("data.pkl"))))
    return saved, lambda tensor: _view(tensor, entry(f"data/{tensor.storage.key}"), 0)


def _of_stream(file: mmap.mmap) -> tuple[Any, Read]:
    if file[:1] != b"\x80":
        raise ValueError("not a file of torch.save")
    magic, _ = pickle_reader.load(pickle_reader.check(file))
    if magic != MAGIC or pickle_reader.load(pickle_reader.check(file))[0] != PROTOCOL:
        raise ValueError("a pickle, but not one of torch.save")
    system, _ = pickle_reader.load(pickle_reader.check(file))
    if not system["little_endian"]:
        raise ValueError("its numbers are not in little-endian order")
    saved, dtypes = pickle_reader.load(pickle_reader.check(file))
    keys, _ = pickle_reader.load(pickle_reader.check(file))

    # Behind the pickles: of each storage, how many numbers, and the numbers.
    places, position = {}, file.tell()
    for key in keys:
        (count,) = struct.unpack_from("<q", file, position)
        start, position = position + 8, position + 8 + count * dtypes[key].itemsize
        if count < 0 or position > len(file):
            raise ValueError(f"a storage of {count} numbers, for which the file is too short")
        places[key] = (start, count)

    def read(tensor: Tensor) -> np.ndarray:
        start, count = places[tensor.storage.key]
        if tensor.storage.first + tensor.storage.count > count:
            raise ValueError(f"a tensor beyond its storage of {count} numbers")
        return _view(tensor, file, start)

    return saved, read


def _view(tensor: Tensor, raw: bytes | mmap.mmap, start: int) -> np.ndarray:
    """A tensor whose storage begins at byte ``start``."""
    storage: Storage = tensor.storage
    size = storage.dtype.itemsize
    start += storage.first * size
    # Raises if the storage is shorter than the tensor was told.
    flat = np.frombuffer(raw, storage.dtype, storage.count, start)
    strides = tuple(stride * size for stride in tensor.strides)
    return np.lib.stride_tricks.as_strided(
        flat[tensor.offset :], tensor.shape, strides, writeable=False
    )
