"""Buckets of Google Cloud Storage: paths gs://BUCKET/PATH, text in parts, and locks with a lease.

A bucket holds whole objects. It can neither append to an object, nor lock it, nor rename it.
"""

import errno
import functools
import io
import json
import logging
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from os import PathLike, fspath
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from jaxssl.errors import UserError, WriteError, one_line

# With TensorFlow installed, epath would use its file systems, which report other errors.
os.environ.setdefault("EPATH_USE_TF", "false")
from etils.epath.gpath import PosixGPath  # noqa: E402

SECONDS = 60.0  # limit on a request; gcsfs repeats failed requests for half a minute
FLUSH_SECONDS = 10.0  # between two writes of the part that text is appended to
PART_BYTES = 2**20  # at which a new part begins
HEARTBEAT = 10.0  # seconds between two renewals of a lease
LEASE = 100.0  # seconds after its last renewal at which a lease has expired


class BucketError(WriteError):
    """A bucket that cannot be reached, read or written."""


class InUse(Exception):
    """A lease whose owner is alive."""

    def __init__(self, owner: "Owner") -> None:
        super().__init__(owner.name)
        self.owner = owner


def is_bucket(path: str | PathLike[str]) -> bool:
    """Return True for a path gs://BUCKET/PATH."""
    return fspath(path).startswith("gs://")


def as_path(path: str | PathLike[str]) -> Path:
    """Return a local path, or the path of a bucket, which has the methods of a local one.

    Raises:
        UserError: if the bucket cannot be read, or is not one of Google Cloud Storage.
    """
    scheme = re.match(r"\w+(?=://)", fspath(path))
    if isinstance(path, BucketPath):
        return cast(Path, path)
    if not scheme or scheme[0] == "hf":
        return Path(path)
    if scheme[0] != "gs":
        raise UserError(
            f"{fspath(path)}: {scheme[0]}:// is not supported; checkpoints are written whole only "
            "to local folders and to gs://BUCKET/PATH"
        )
    check(path)
    return cast(Path, BucketPath(fspath(path)))


def check(path: str | PathLike[str]) -> None:
    """Raise BucketError for a path in a bucket that cannot be read."""
    if not is_bucket(path):
        return
    bucket = fspath(path).split("/")[2]
    with _explain(path, "read"):
        try:
            _file_system().ls(bucket, max_results=1)
        except FileNotFoundError as error:
            raise OSError(f"the bucket {bucket!r} does not exist") from error


@functools.cache
def _file_system() -> Any:
    try:
        import fsspec.config
        import gcsfs  # noqa: F401
    except ImportError as error:
        raise UserError("gs:// needs gcsfs: pip install 'jaxssl[gcs]'") from error
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # It logs tracebacks of what it raises.
    # Others write to a run's folder. Orbax's file system gets the same settings.
    settings = fsspec.config.conf.setdefault("gcs", {})
    for name, value in {"use_listings_cache": False, "requests_timeout": SECONDS}.items():
        settings.setdefault(name, value)
    return fsspec.filesystem("gcs")


@contextmanager
def _explain(path: str | PathLike[str], verb: str) -> Iterator[None]:
    """Turn any exception of a request into a BucketError, unless an object exists or does not."""
    try:
        yield
    except FileNotFoundError as error:
        if verb == "write":
            raise BucketError(f"cannot write {fspath(path)}: the bucket does not exist") from error
        raise FileNotFoundError(errno.ENOENT, "it does not exist", fspath(path)) from error
    except (UserError, FileExistsError):
        raise
    except Exception as error:  # of gcsfs, aiohttp and google.auth
        slow = isinstance(error, TimeoutError)
        reason = f"no answer within {SECONDS:g} s" if slow else one_line(error, 200)
        raise BucketError(f"cannot {verb} {fspath(path)}: {reason}") from error


class BucketPath(PosixGPath):
    """A path gs://BUCKET/PATH. Every write replaces a whole object.

    Unlike those of its base class, no method takes an error of a request for a missing file.
    """

    def _call(self, name: str, *arguments: Any, **options: Any) -> Any:
        with _explain(self, "write" if name in ("pipe_file", "mv") else "read"):
            return getattr(_file_system(), name)(fspath(self), *arguments, **options)

    def _info(self) -> dict[str, Any]:
        try:
            return self._call("info")
        except FileNotFoundError:
            return {"type": None}

    def exists(self) -> bool:  # noqa: D102
        return self._info()["type"] is not None

    def is_dir(self) -> bool:  # noqa: D102
        return self._info()["type"] == "directory"

    def is_file(self) -> bool:  # noqa: D102
        return self._info()["type"] == "file"

    def is_symlink(self) -> bool:  # noqa: D102
        return False

    def absolute(self) -> "BucketPath":  # noqa: D102
        return self

    def resolve(self, strict: bool = False) -> "BucketPath":  # noqa: D102
        return self

    def stat(self) -> os.stat_result:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the size of an object, in ``st_size``. Other fields are 0."""
        return os.stat_result((0,) * 6 + (self._call("size"), 0, 0, 0))

    def mkdir(self, *_: Any, **__: Any) -> None:
        """Do nothing, because folders are only parts of the names of objects."""

    def rmdir(self) -> None:
        """Do nothing, as `mkdir`."""

    def iterdir(self) -> "Iterator[BucketPath]":  # noqa: D102
        names = self._call("ls", detail=False) if self.is_dir() else []
        return (self / name.rpartition("/")[2] for name in names)

    def read_bytes(self) -> bytes:  # noqa: D102
        return self._call("cat_file")

    def read_text(self, encoding: str | None = None) -> str:  # noqa: D102
        return self.read_bytes().decode(encoding or "utf-8")

    def open(self, mode: str = "r", **options: Any) -> IO[Any]:
        """Read the whole object, and return a file in memory. Orbax writes files too."""
        if "r" not in mode:
            return super().open(mode, **options)
        file = io.BytesIO(self.read_bytes())
        return file if mode == "rb" else io.TextIOWrapper(file, "utf-8")

    def write_bytes(self, data: bytes) -> int:  # noqa: D102
        self._call("pipe_file", data)
        return len(data)

    def create(self, data: bytes) -> None:
        """Write a new object.

        Raises:
            FileExistsError: if it exists.
        """
        self._call("pipe_file", data, mode="create")

    def touch(self, *_: Any, **__: Any) -> None:  # noqa: D102
        self.write_bytes(b"")

    def unlink(self, missing_ok: bool = False) -> None:  # noqa: D102
        try:
            self._call("rm_file")
        except FileNotFoundError:
            if not missing_ok:
                raise

    def replace(self, target: Any) -> "BucketPath":  # noqa: D102
        self._call("mv", fspath(target), recursive=self.is_dir())
        return BucketPath(fspath(target))

    def modified(self) -> float:
        """Return the time of the last write by the clock of the bucket, in seconds."""
        return self._call("modified").timestamp()

    def count_bytes(self) -> int:
        """Return the size of all objects below this folder."""
        return self._call("du")


class Parts:
    """A text file in a bucket that is appended to: a folder with an object for each part of it.

    The last part is written again, as a whole, until it has `PART_BYTES`.

    Args:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._text, self._time = path, b"", -FLUSH_SECONDS
        names = [int(part.stem) for part in path.iterdir()]
        self._number, self._changed = max(names, default=-1) + 1, False

    def write(self, text: str) -> None:
        """Append text, which is not sent before the next flush."""
        self._text, self._changed = self._text + text.encode(), True

    def flush(self) -> None:
        """Send the text, unless that was done within the last `FLUSH_SECONDS`."""
        if time.monotonic() - self._time >= FLUSH_SECONDS:
            self.sync()

    def sync(self) -> None:
        """Send the text that has not been sent."""
        if not self._changed:
            return
        (self._path / f"{self._number:08}{self._path.suffix}").write_bytes(self._text)
        self._time, self._changed = time.monotonic(), False
        if len(self._text) >= PART_BYTES:
            self._number, self._text = self._number + 1, b""

    close = sync


class Owner(NamedTuple):
    """The owner of a lease: a random token, its process and host, and whether it released it."""

    token: str
    pid: int
    host: str
    released: bool = False

    @property
    def name(self) -> str:
        """Return process and host in words."""
        return f"process {self.pid} on {self.host.partition('?')[0]}"

    def is_dead(self) -> bool:
        """Return True if the owner has released its lease, or is a dead process of this host."""
        if self.released or self.host != _host():
            return self.released
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            pass
        return False


def _host() -> str:
    """Return the name of this host, with that of the namespace of its processes in a container."""
    with suppress(OSError):
        return f"{socket.gethostname()}?{os.readlink('/proc/self/ns/pid')}"
    return socket.gethostname()


class Lease:
    """A lock in a bucket: a folder of numbered objects, of which the last one names the owner.

    A number is created only once, so that one process gets it. The owner renews its object; a lease
    that was not renewed for `LEASE` seconds has expired, and the next process takes it over. Times
    are those of the bucket, because the clocks of hosts differ.

    Args:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.me = Owner(uuid.uuid4().hex, os.getpid(), _host())
        self._object: Any = None
        self._stop = threading.Event()

    def acquire(self, *, wait: bool = False) -> Owner | None:
        """Take the lease, and return the owner from which it was taken over, if any.

        Args:
            wait: whether to wait for an owner that is alive.

        Raises:
            InUse: if the owner is alive.
            BucketError: if the bucket cannot be written.
        """
        seen: tuple[Any, float] | None = None
        while True:
            number, owner = self._last()
            if owner and not owner.is_dead():
                path = self._path / f"{number:08}"
                written = path.modified()  # pyright: ignore[reportAttributeAccessIssue]
                if not wait and seen not in (None, (number, written)):
                    raise InUse(owner)
                seen = number, written
                if self._now() - written < LEASE:
                    time.sleep(HEARTBEAT / 10)
                    continue
            self._object = self._path / f"{number + 1:08}"
            with suppress(FileExistsError):
                self._object.create(json.dumps(self.me).encode())
                if self.owner() == self.me:
                    break
        for path in self._path.iterdir():
            if path.name < self._object.name:
                path.unlink(missing_ok=True)
        threading.Thread(target=self._renew, daemon=True).start()
        return None if owner is None or owner.released else owner

    def owner(self) -> Owner | None:
        """Return the owner, which is ``me`` if this process has the lease still."""
        return self._last()[1]

    def release(self) -> None:
        """Mark the lease as free, unless another process has taken it over."""
        self._stop.set()
        if self.owner() == self.me:
            self._write(self.me._replace(released=True))

    def _last(self) -> tuple[int, Owner | None]:
        names = [path.name for path in self._path.iterdir() if path.name.isdecimal()]
        if not names:
            return 0, None
        try:
            owner = Owner(*json.loads((self._path / max(names)).read_bytes()))
        except FileNotFoundError:  # A process that has taken it over has deleted it meanwhile.
            return self._last()
        return int(max(names)), owner

    def _now(self) -> float:
        probe: Any = self._path / f"time-{self.me.token}"
        probe.write_bytes(b"")
        now = probe.modified()
        probe.unlink()
        return now

    def _renew(self) -> None:
        while not self._stop.wait(HEARTBEAT):
            with suppress(BucketError):  # The next try may succeed, and the run asks for `owner`.
                if self.owner() != self.me:
                    return
                if not self._stop.is_set():
                    self._write(self.me)

    def _write(self, owner: Owner) -> None:
        self._object.write_bytes(json.dumps(owner).encode())


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the `Lease` of a folder, after waiting until it is free."""
    lease = Lease(path)
    lease.acquire(wait=True)
    try:
        yield
    finally:
        lease.release()
