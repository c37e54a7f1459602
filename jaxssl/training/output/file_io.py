"""Read files that others may have written, and write files atomically.

A reader of a file that is written here sees the old content or the new one, never a part.
"""

import errno
import io
import json
import os
import shutil
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from jaxssl import buckets
from jaxssl.errors import UserError, explain_write_errors
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
        _check_size(path, path.stat().st_size, most)
        return path.open("rb")
    file = open(path, "rb", opener=_open_without_blocking)
    try:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        _check_size(path, status.st_size, most)
    except OSError:
        file.close()
        raise
    return file


def _open_without_blocking(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _check_size(path: Path, size: int, most: int) -> None:
    if size > most:
        raise OSError(errno.EINVAL, f"its size of {size} bytes exceeds {most}", str(path))


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
        OSError: as `open_file`. A folder among the parts is refused.
    """
    for part in sorted(path.iterdir()) if path.is_dir() else [path]:
        with open_file(part, MOST_LOG_BYTES) as file:
            while line := file.readline(MOST_LINE):
                yield line


def convert_copied_log(path: Path) -> None:
    """Convert a growing text file of a workdir that was copied between a disk and a bucket.

    It is a file on disk and a folder of parts in a bucket. An interruption loses no line.
    """
    copied = path.with_name(f"{path.name}.copied")
    with explain_write_errors(path):
        if buckets.is_bucket(path):
            if path.is_file():
                copied.write_bytes(path.read_bytes())
                path.unlink()
            if copied.is_file():
                for part in path.iterdir():  # of the run on which the copy was written
                    part.unlink()
                (path / f"{0:08}{path.suffix}").write_bytes(copied.read_bytes())
                copied.unlink()
            return
        if path.is_dir():
            path.rename(copied)
        if copied.is_dir():
            if not path.exists():
                write_chunks(path, read_lines(copied))
            shutil.rmtree(copied)


def count_bytes(folder: Path) -> int:
    """Return the size of the files below a folder.

    Raises:
        ValueError: for a link, a pipe or a device, which a bucket does not have.
    """
    if isinstance(folder, buckets.BucketPath):
        return folder.count_bytes()
    total = 0
    for path in folder.rglob("*"):
        status = path.lstat()
        if stat.S_ISREG(status.st_mode):
            total += status.st_size
        elif not stat.S_ISDIR(status.st_mode):
            raise ValueError(f"{path.name!r} is neither a file nor a folder")
    return total


def require_writable(folder: Path) -> None:
    """Raise UserError if a local folder for results is read-only, or in a read-only one."""
    path = folder.absolute()
    existing = next((each for each in (path, *path.parents) if each.exists()), path)
    if not buckets.is_bucket(folder) and not os.access(existing, os.W_OK):
        raise UserError(f"{folder} is read-only; write to another folder with --out")


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
    write_with(path, lambda file: file.writelines(chunks))


def write_with(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Replace the content of a file atomically by the output of a function that writes to a file.

    Raises:
        WriteError: if the file cannot be written. It is unchanged then.
    """
    # The name is unique because several processes may write the same file at once.
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}.partial")
    with explain_write_errors(path):
        if buckets.is_bucket(path):
            content = io.BytesIO()
            write(content)
            path.write_bytes(content.getvalue())
            return
        try:
            with partial.open("xb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())  # Otherwise a machine crash could leave an empty file.
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)


def remove_partials(path: Path) -> None:
    """Remove what killed writers of a file have left. All writers must hold a lock of the caller.

    Raises:
        WriteError: if a file cannot be removed.
    """
    if not buckets.is_bucket(path):
        with explain_write_errors(path):
            for partial in path.parent.glob(f"{path.name}.*.partial"):
                partial.unlink(missing_ok=True)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock a file, so that no other process or thread changes the file during the with block.

    The lock is the file ``path`` with the suffix ".lock" appended, which stays after the release.
    On file systems without locks it is a file with the suffix ".held", which is removed. All
    writers of ``path`` must hold the lock.

    Raises:
        WriteError: if the lock cannot be written.
    """
    if buckets.is_bucket(path):
        lock: Any = bucket_files.Lease(_beside(path, "lock"))
        with explain_write_errors(path):
            lock.acquire(wait=True)
    else:
        with explain_write_errors(path):
            lock = _acquire_on_disk(path)
    try:
        remove_partials(path)
        yield
    finally:
        lock.release()


def _acquire_on_disk(path: Path) -> BaseFileLock:
    bucket_files.remove_copied_lease(_beside(path, "lock"))
    try:
        return _wait_for(FileLock(_beside(path, "lock"), fallback_to_soft=False), path)
    except OSError as error:
        if error.errno not in NO_FLOCK:
            raise
    # A lock file without content, which the attempt above leaves, would count as held.
    return _wait_for(SoftFileLock(_beside(path, "held")), path)


def _wait_for(lock: BaseFileLock, path: Path) -> BaseFileLock:
    try:
        lock.acquire(timeout=PATIENCE)
    except Timeout:
        log.info("waiting for another process that writes %s", path)
        lock.acquire()
    return lock


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(f"{path.name}.{suffix}")
