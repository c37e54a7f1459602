"""Read files of `torch.save` without PyTorch: zip archives, and the format before version 1.6."""

import io
import mmap
import struct
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import numpy as np

from jaxssl.pretrained import pickle_reader
from jaxssl.pretrained.pickle_reader import Tensor

# contents of the first two pickles of the format before version 1.6
MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
Read = Callable[[Tensor], np.ndarray]


@contextmanager
def opened(path: Path) -> Iterator[tuple[object, Read]]:
    """Open a file of `torch.save` without running code that the file contains.

    Yields:
        The saved object, made of dicts, lists, numbers and strings, with a `pickle_reader.Tensor`
        for each tensor and a `pickle_reader.Inert` for anything else, and a function that reads a
        tensor while the file is open.

    Raises:
        Exception: of any type, if the file is damaged or cut off.
    """
    with path.open("rb") as file:
        if file.read(4) == b"PK\x03\x04":
            with zipfile.ZipFile(file) as archive:
                yield _open_zip(archive)
        else:
            # The memory map is not closed here, because arrays may refer to it after this context
            # ends.
            yield _open_stream(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _open_zip(archive: zipfile.ZipFile) -> tuple[object, Read]:
    names = [name for name in archive.namelist() if name.split("/", 1)[-1] == "data.pkl"]
    if len(names) != 1:
        raise ValueError("the file is a zip archive that torch.save did not write")
    prefix = names[0].removesuffix("data.pkl")

    @lru_cache(maxsize=1)  # Tensors that share a storage mostly follow each other.
    def entry(name: str) -> bytes:
        # torch.save does not compress. The refusal of compression bounds memory by the size of the
        # file.
        if archive.getinfo(prefix + name).compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"entry {name!r:.60} is compressed, but torch.save compresses nothing")
        return archive.read(prefix + name)

    if prefix + "byteorder" in archive.namelist():
        _require_little_endian(entry("byteorder") == b"little")
    saved, _ = pickle_reader.load(io.BytesIO(entry("data.pkl")))
    return saved, lambda tensor: _view(tensor, entry(f"data/{tensor.storage.key}"), 0)


def _open_stream(file: mmap.mmap) -> tuple[object, Read]:
    if file[257:262] == b"ustar":  # torch.save's format until 2017
        raise ValueError("the file is a tar archive; load it with PyTorch, and save it again")
    if file[:1] != b"\x80":
        raise ValueError("the content is not a file of torch.save")

    if pickle_reader.load(file)[0] != MAGIC or pickle_reader.load(file)[0] != PROTOCOL:
        raise ValueError("the file is a pickle, but not one of torch.save")
    _require_little_endian(pickle_reader.load(file)[0]["little_endian"])
    saved, dtypes = pickle_reader.load(file)
    keys, _ = pickle_reader.load(file)
    if not all(isinstance(key, str) for key in keys):
        raise ValueError("the names of the storages must be text")

    # Each storage follows after the pickles: first the count of its numbers, then the numbers.
    storages, position = {}, file.tell()
    for key in keys:
        (count,) = struct.unpack_from("<q", file, position)
        start, position = position + 8, position + 8 + count * dtypes[key].itemsize
        if count < 0 or position > len(file):
            raise ValueError(f"the file is too short for a storage of {count} numbers")
        storages[key] = (start, count)

    def read(tensor: Tensor) -> np.ndarray:
        start, count = storages[tensor.storage.key]
        if tensor.storage.first + tensor.storage.size > count:
            raise ValueError(f"a tensor goes beyond its storage of {count} numbers")
        return _view(tensor, file, start)

    return saved, read


def _require_little_endian(little: bool) -> None:
    if not little:
        raise ValueError("the file must be in little-endian byte order")


def _view(tensor: Tensor, buffer: bytes | mmap.mmap, start: int) -> np.ndarray:
    """Return a view of a tensor with its storage at byte ``start`` of the buffer."""
    storage = tensor.storage
    size = storage.dtype.itemsize
    start += storage.first * size
    # NumPy raises an error if the storage is shorter than the pickle claims.
    flat = np.frombuffer(buffer, storage.dtype, storage.size, start)
    strides = tuple(stride * size for stride in tensor.strides)
    return np.lib.stride_tricks.as_strided(
        flat[tensor.offset :], tensor.shape, strides, writeable=False
    )
