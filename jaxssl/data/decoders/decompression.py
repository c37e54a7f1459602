"""Decompress archives in bounded memory and time.

An archive of a few kilobytes can expand to gigabytes, and the standard library sets no limit.
"""

import bz2
import gzip
import io
import lzma
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from jaxssl.errors import UserError

FREE = 96 * 2**20  # bytes to which even the smallest archive may expand
RATIO = 200  # further bytes that an archive may expand to, for each byte of its own
CHUNK = 2**18  # bytes of one read
INPUT = 2**13  # compressed bytes of one read; each stream copies the rest of its read
MAX_DICTIONARY = 160 * 2**20  # bytes of memory for xz; "xz -9" needs 65 MiB
BZIP2_BLOCK = b"1AY&SY"  # follows the four bytes of the header
# First bytes of files; xz includes .lzma, as "xz -6" writes it.
GZIP, BZIP2, XZ = b"\x1f\x8b", b"BZh", (b"\xfd7zXZ\0", b"\x5d\0\0\x80")


class Readable(Protocol):
    """Type of a stream that bytes are read from, such as a file."""

    def read(self, size: int, /) -> bytes:
        """Return up to ``size`` > 0 bytes, none at the end."""
        ...


class Budget:
    """Counts the bytes that an archive expands to.

    Args:
        name: name of the archive, for the message.
        size: bytes of the archive.
    """

    def __init__(self, name: Path | str, size: int) -> None:
        self._name = name
        self._left = self._total = FREE + RATIO * size

    def spend(self, count: int) -> None:
        """Subtract further decompressed bytes from the limit.

        Raises:
            UserError: if the archive expands to more than its size allows.
        """
        self._left -= count
        if self._left < 0:
            raise UserError(
                f"the archive {self._name} is rejected because it expands to more than "
                f"{self._total >> 20} MiB ({FREE >> 20} MiB plus {RATIO} times its size); unpack "
                "it and name the folder"
            )


def open_tar(file: BinaryIO, name: Path) -> Readable:
    """Return a stream of a tar file's content, which may be compressed by gzip, bzip2 or xz.

    Args:
        file: the opened file.
        name: its name, for messages.
    """
    head = file.read(10)
    file.seek(0)
    stream: Readable
    if head.startswith(GZIP):
        stream = gzip.GzipFile(fileobj=file)
    elif head.startswith(BZIP2) and head[4:] == BZIP2_BLOCK:  # "BZh" may begin a file's name.
        stream = _ConcatenatedStreams(file, bz2.BZ2Decompressor)
    elif head.startswith(XZ):
        stream = _ConcatenatedStreams(file, lambda: lzma.LZMADecompressor(memlimit=MAX_DICTIONARY))
    else:
        return file
    return _Limited(stream, Budget(name, os.fstat(file.fileno()).st_size))


def gunzip(data: bytes, name: str) -> bytes:
    """Decompress the bytes of a gzip file.

    Raises:
        UserError: if they expand to more than the limit of `Budget`.
        OSError, EOFError, zlib.error: if they are damaged.
    """
    return read_all(_Limited(gzip.GzipFile(fileobj=io.BytesIO(data)), Budget(name, len(data))))


def read_all(stream: Readable) -> bytes:
    """Return all remaining bytes of a stream, read in chunks.

    zipfile's `read()` would decompress up to 1 GiB before it cuts the result to the size of the
    entry.
    """
    out = io.BytesIO()
    while chunk := stream.read(CHUNK):
        out.write(chunk)
    return out.getvalue()


class _Limited:
    """A stream that charges its bytes to a `Budget` as they are read."""

    def __init__(self, stream: Readable, budget: Budget) -> None:
        self._stream, self._budget = stream, budget

    def read(self, size: int, /) -> bytes:
        data = self._stream.read(size)
        self._budget.spend(len(data))
        return data


class _ConcatenatedStreams:
    """Decompresses one or more bz2 or xz streams that follow each other in a file.

    `lzma.LZMAFile` cannot limit the memory for the dictionary. `bz2.BZ2File` takes a damaged second
    stream for the end of the file.
    """

    def __init__(self, file: BinaryIO, make_decompressor: Callable[[], Any]) -> None:
        self._file, self._make, self._stream = file, make_decompressor, make_decompressor()

    def read(self, size: int, /) -> bytes:
        while True:
            stream, data = self._stream, b""
            if stream.eof:
                data = stream.unused_data.lstrip(b"\0")  # Zeros pad the space after a stream.
                while not data and (chunk := self._file.read(INPUT)):
                    data = chunk.lstrip(b"\0")
                if not data:
                    return b""
                self._stream = stream = self._make()
            elif stream.needs_input and not (data := self._file.read(INPUT)):
                raise EOFError("the compressed data were cut short")
            try:
                out = stream.decompress(data, size)
            # bz2 raises OSError for damaged data, as if the file could not be read.
            except OSError as error:
                raise tarfile.ReadError(str(error)) from error
            if out:
                return out
