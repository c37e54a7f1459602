"""Read the files of a workdir, which somebody else may have written."""

import errno
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

MOST_BYTES = 2**24  # in a JSON document
MOST_LOG_BYTES = 2**32  # in a file of lines, which is read line by line
MOST_LINE = 2**16  # bytes of a line


def open_file(path: Path, most: int = MOST_BYTES) -> BinaryIO:
    """Open a file for reading, unless it is a device, a pipe or too large.

    Links are followed. A pipe without a writer does not block.

    Args:
        path: the file.
        most: largest number of bytes.

    Raises:
        OSError: if the file cannot be opened, or is refused.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    file = os.fdopen(descriptor, "rb")
    status = os.fstat(descriptor)
    reason = ""
    if not stat.S_ISREG(status.st_mode):
        reason = "it is not a regular file"
    elif status.st_size > most:
        reason = f"its {status.st_size} bytes are more than {most}"
    if reason:
        file.close()
        raise OSError(errno.EINVAL, reason, str(path))
    return file


def read_json(path: Path, most: int = MOST_BYTES) -> Any:
    """Read a JSON document of at most so many bytes.

    Raises:
        OSError: as `open_file`.
        ValueError: if the file is not JSON in UTF-8.
        RecursionError: if it is nested too deeply.
    """
    with open_file(path, most) as file:
        return json.loads(file.read(most).decode())


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file. Lines longer than `MOST_LINE` come in pieces.

    Raises:
        OSError: as `open_file`.
    """
    with open_file(path, MOST_LOG_BYTES) as file:
        while line := file.readline(MOST_LINE):
            yield line
