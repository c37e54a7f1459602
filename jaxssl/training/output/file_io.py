"""Read files that others may have written, and write files atomically.

A reader of a file that is written here sees the old content or the new one, never a part.
"""

import errno
import json
import os
import stat
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from jaxssl import buckets
from jaxssl.errors import explain_write_errors
from jaxssl.training.output import bucket_files
from jaxssl.training.output.logs import log

MOST_BYTES = 2**24  # size limit of a JSON document
MOST_LOG_BYTES = 2**32  # size limit of a file that is read line by line
MOST_LINE = 2**16  # limit on the bytes of a line
NO_FLOCK = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # errors of file systems without locks
PATIENCE = 10.0  # seconds of waiting for a lock after which a message is logged


def user_folder(variable: str, default: str) -> Path | None:
    """Return a folder of the user, or None if the user has no home folder.

    Args:
        variable: environment variable that names the folder, such as "XDG_CACHE_HOME". A relative
            path in it is ignored.
        default: the folder if the variable is not set, such as "~/.cache".
    """
    folder = Path(os.environ.get(variable, ""))
    try:
        return folder if folder.is_absolute() else Path(default).expanduser()
    except RuntimeError:
        return None


def open_file(path: Path, most: int = MOST_BYTES) -> BinaryIO:
    """Open a regular file for reading. Devices, pipes and files that are too large are refused.

    Links are followed. A pipe without a writer does not block.

    Args:
        path: the file.
        most: largest number of bytes.

    Raises:
        OSError: if the file cannot be opened, or is refused.
    """
    if buckets.is_bucket(path):
        if (size := path.stat().st_size) > most:
            raise OSError(errno.EINVAL, f"its size of {size} bytes exceeds {most}", str(path))
        return path.open("rb")
    file = os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb")
    status, reason = os.fstat(file.fileno()), ""
    if not stat.S_ISREG(status.st_mode):
        reason = "it is not a regular file"
    elif status.st_size > most:
        reason = f"its size of {status.st_size} bytes exceeds {most}"
    if reason:
        file.close()
        raise OSError(errno.EINVAL, reason, str(path))
    return file


def read_json(path: Path, most: int = MOST_BYTES) -> Any:
    """Read a JSON file of at most ``most`` bytes.

    Raises:
        OSError: as `open_file`.
        ValueError: if the file is not JSON in UTF-8.
        RecursionError: if it is nested too deeply.
    """
    with open_file(path, most) as file:
        return json.loads(file.read(most).decode())


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file, or of the parts of a file that a bucket has as a folder.

    Lines longer than `MOST_LINE` come in pieces.

    Raises:
        OSError: as `open_file`.
    """
    if path.is_dir():
        for part in sorted(path.iterdir()):
            yield from read_lines(part)
        return
    with open_file(path, MOST_LOG_BYTES) as file:
        while line := file.readline(MOST_LINE):
            yield line


def count_bytes(folder: Path) -> int:
    """Return the size of the files below a folder.

    Raises:
        ValueError: for a link, a pipe or a device.
    """
    if isinstance(folder, buckets.BucketPath):
        return folder.count_bytes()
    total = 0
    for path in folder.rglob("*"):
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
            raise ValueError(f"{path.name!r} is neither a file nor a folder")
        total += status.st_size
    return total


def write_json(path: Path, document: object) -> None:
    """Replace a file atomically by a JSON document."""
    write_text(path, json.dumps(document, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Replace the content of a file atomically by a text in UTF-8."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Replace the content of a file atomically by these bytes."""
    write_chunks(path, [content])


def write_chunks(path: Path, chunks: Iterable[bytes]) -> None:
    """Replace the content of a file atomically by chunks, which may be read from the old file.

    Raises:
        WriteError: if the file cannot be written. It is unchanged then.
    """
    # The name is unique because several processes may write the same file at once.
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}.partial")
    with explain_write_errors(path):
        if buckets.is_bucket(path):
            path.write_bytes(b"".join(chunks))
            return
        try:
            with partial.open("xb") as file:
                file.writelines(chunks)
                file.flush()
                os.fsync(file.fileno())  # Otherwise a machine crash could leave an empty file.
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock a file, so that no other process or thread changes the file during the with block.

    The lock is the file ``path`` with the suffix ".lock" appended. It stays after the release. All
    writers of ``path`` must hold it.

    Raises:
        WriteError: if the lock cannot be written.
    """
    name = path.with_name(f"{path.name}.lock")
    lock: Any = bucket_files.Lease(name) if buckets.is_bucket(path) else FileLock(name)
    with explain_write_errors(path):
        try:
            _acquire(lock, path)
        except OSError as error:
            if error.errno not in NO_FLOCK:
                raise
            lock = SoftFileLock(name)  # for file systems without locks
            _acquire(lock, path)
    try:
        if not buckets.is_bucket(path):
            with explain_write_errors(path):
                for partial in path.parent.glob(f"{path.name}.*.partial"):
                    partial.unlink(missing_ok=True)  # Its writer was killed.
        yield
    finally:
        lock.release()


def _acquire(lock: bucket_files.Lease | BaseFileLock, path: Path) -> None:
    if isinstance(lock, bucket_files.Lease):
        lock.acquire(wait=True)
        return
    try:
        lock.acquire(timeout=PATIENCE)
    except Timeout:
        log.info("waiting for another process that writes %s", path)
        lock.acquire()
