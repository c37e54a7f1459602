"""Buckets of Google Cloud Storage: paths gs://BUCKET/PATH, and copies on disk.

A bucket holds whole objects. It can neither append to an object, nor lock it, nor rename it.
"""

import errno
import functools
import hashlib
import io
import logging
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from os import PathLike, fspath
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar, cast

from filelock import FileLock

from jaxssl.errors import TransientError, UserError, WriteError, explain_write_errors, one_line

# If TensorFlow is installed, epath would use TensorFlow's file systems, which report other errors.
os.environ.setdefault("EPATH_USE_TF", "false")
from etils.epath.gpath import PosixGPath  # noqa: E402

log = logging.getLogger("jaxssl")
SECONDS = 60.0  # limit on a request; gcsfs repeats failed requests for half a minute
CHECK_SECONDS = 10.0  # between two checks of a bucket that another library waits for
VERBS = {"pipe_file": "write", "mv": "move", "rm_file": "delete"}  # calls of gcsfs, for messages
T = TypeVar("T")
# For each bucket that did not answer, the time of the request and the reason. It is not asked again
# for `SECONDS`, so that a run that ends because of a bucket does not wait for each of its files.
_down: dict[str, tuple[float, str]] = {}


class BucketError(WriteError):
    """A bucket that cannot be read or written."""


class LostBucket(BucketError, TransientError):
    """A bucket that cannot be reached."""


def is_bucket(path: str | PathLike[str]) -> bool:
    """Return True for a path gs://BUCKET/PATH."""
    return fspath(path).startswith("gs://")


def as_path(path: str | PathLike[str]) -> Path:
    """Return a local path, or the path of a bucket, which has the methods of a local one.

    An address hf://OWNER/NAME is returned as a local path, which `pretrained.hub` recognises.

    Raises:
        UserError: if the bucket cannot be read, or is not one of Google Cloud Storage, or if a path
            has lost a slash or is no path.
    """
    if isinstance(path, BucketPath):
        return cast(Path, path)
    if not isinstance(path, str | PathLike):
        raise UserError(f"expected a path, got {type(path).__name__}")
    if not fspath(path):
        raise UserError("expected a path, got an empty text")
    if re.match("gs:/(?!/)", fspath(path)):
        raise UserError(
            f"{fspath(path)} must be gs://BUCKET/PATH; pass a str, as pathlib.Path drops a slash"
        )
    address = re.match(r"(\w+)://[^/]*", fspath(path))
    if not address or address[1] == "hf":
        return Path(os.path.expanduser(path))
    if address[1] != "gs" or address[0] == "gs://":
        raise UserError(f"{fspath(path)} must be a local path or gs://BUCKET/PATH")
    check(path)
    return cast(Path, BucketPath(fspath(path)))


def local_path(flag: str, path: str) -> Path:
    """Return the value of a flag as a path, which must not be in a bucket.

    Raises:
        UserError: for a path in a bucket.
    """
    if "://" in path:
        raise UserError(f"--{flag}={path} must be a local path; only runs may be in buckets")
    return Path(os.path.expanduser(path))


def check(path: str | PathLike[str]) -> None:
    """Raise BucketError for a path in a bucket that cannot be read."""
    if not is_bucket(path):
        return
    bucket = _bucket(path)
    with _explain(path, "read"):
        try:
            _file_system().ls(bucket, max_results=1)
        except FileNotFoundError as error:
            raise OSError(f"the bucket {bucket!r} does not exist") from error
    _down.pop(bucket, None)


def call_while_up(path: str | PathLike[str], function: Callable[[], T]) -> T:
    """Return ``function()``, in which a library waits for a bucket, and check the bucket meanwhile.

    Raises:
        BucketError: if the bucket cannot be read. The function may go on in a thread.
    """
    if not is_bucket(path):
        return function()
    outcome: Future[T] = Future()

    def call() -> None:
        try:
            outcome.set_result(function())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    while not wait([outcome], timeout=CHECK_SECONDS).done:
        check(path)
    return outcome.result()


def _bucket(path: str | PathLike[str]) -> str:
    return fspath(path).split("/")[2]


@functools.cache
def _file_system(copying: bool = False) -> Any:
    try:
        import aiohttp
        import fsspec.config
        import gcsfs  # noqa: F401
    except ImportError as error:
        raise UserError("gs:// needs gcsfs: pip install 'jaxssl[gcs]'") from error
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # gcsfs logs each error it raises.
    # Listings are not cached, not by Orbax either, because other processes write to a run's folder.
    settings = fsspec.config.conf.setdefault("gcs", {})
    for name, value in {"use_listings_cache": False, "requests_timeout": SECONDS}.items():
        settings.setdefault(name, value)
    # A large file may take as long as it needs, if its bytes keep coming.
    limit = {"requests_timeout": aiohttp.ClientTimeout(total=None, sock_read=SECONDS)}
    return fsspec.filesystem("gcs", **(limit if copying else {}))


@contextmanager
def _explain(path: str | PathLike[str], verb: str) -> Iterator[None]:
    """Turn errors of a request into a BucketError, except for a missing or an existing object."""
    try:
        yield
    except FileNotFoundError as error:
        if verb == "write":
            raise BucketError(f"cannot write {fspath(path)}: the bucket does not exist") from error
        raise FileNotFoundError(errno.ENOENT, "it does not exist", fspath(path)) from error
    except (UserError, FileExistsError):
        raise
    except Exception as error:  # of any type of gcsfs, aiohttp or google.auth
        slow = isinstance(error, TimeoutError)
        reason = f"no answer within {SECONDS:g} s" if slow else one_line(error, 200)
        fault = BucketError
        if slow or type(error).__module__.startswith(("aiohttp", "requests")):
            _down[_bucket(path)] = time.monotonic(), reason
            fault = LostBucket
        raise fault(f"cannot {verb} {fspath(path)}: {reason}") from error


class ObjectStat(NamedTuple):
    """Size of an object, and a modification time, which Orbax reads if it finds none of its own."""

    st_size: int
    mtime: float = 0.0


class BucketPath(PosixGPath):
    """A path gs://BUCKET/PATH. Every write replaces a whole object.

    Unlike in the base class, no method mistakes a failed request for a missing file.
    """

    def _call(self, name: str, *arguments: Any, **options: Any) -> Any:
        verb = VERBS.get(name, "read")
        failed, reason = _down.get(_bucket(self), (-SECONDS, ""))
        if time.monotonic() - failed < SECONDS:
            raise LostBucket(f"cannot {verb} {fspath(self)}: {reason}")
        with _explain(self, verb):
            return getattr(_file_system(), name)(fspath(self), *arguments, **options)

    def _info(self) -> dict[str, Any]:
        try:
            return self._call("info")
        except FileNotFoundError:
            return {"type": None}

    def exists(self) -> bool:
        return self._info()["type"] is not None

    def is_dir(self) -> bool:
        return self._info()["type"] == "directory"

    def is_file(self) -> bool:
        return self._info()["type"] == "file"

    def is_symlink(self) -> bool:
        return False

    def absolute(self) -> "BucketPath":
        return self

    def resolve(self, strict: bool = False) -> "BucketPath":
        return self

    def stat(self) -> ObjectStat:  # pyright: ignore[reportIncompatibleMethodOverride]
        return ObjectStat(self._call("size"))

    def mkdir(self, *_: Any, **__: Any) -> None:
        """Do nothing, because folders are only parts of the names of objects."""

    def rmdir(self) -> None:
        """Do nothing, because buckets have no folders."""

    def iterdir(self) -> "Iterator[BucketPath]":
        own = fspath(self).removeprefix("gs://").rstrip("/")
        names = self._call("ls", detail=False) if self.is_dir() else []
        # gcsfs lists the empty object that stands for a folder, such as of "Create folder" in the
        # console, as the folder itself.
        return (self / name.rpartition("/")[2] for name in names if name.rstrip("/") != own)

    def read_bytes(self) -> bytes:
        return self._call("cat_file")

    def read_text(self, encoding: str | None = None) -> str:
        return self.read_bytes().decode(encoding or "utf-8")

    def open(self, mode: str = "r", **options: Any) -> IO[Any]:
        """Read a whole object into a file in memory. Orbax also opens objects for writing."""
        if "r" not in mode:
            return super().open(mode, **options)
        file = io.BytesIO(self.read_bytes())
        return file if mode == "rb" else io.TextIOWrapper(file, "utf-8")

    def write_bytes(self, data: bytes) -> int:
        self._call("pipe_file", data)
        return len(data)

    def create(self, data: bytes) -> None:
        """Write an object to the bucket, if none of this name exists.

        Raises:
            FileExistsError: if it exists.
        """
        self._call("pipe_file", data, mode="create")

    def touch(self, *_: Any, **__: Any) -> None:
        self.write_bytes(b"")

    def unlink(self, missing_ok: bool = False) -> None:
        try:
            self._call("rm_file")
        except FileNotFoundError:
            if not missing_ok:
                raise

    def replace(self, target: Any) -> "BucketPath":
        # For a missing object this raises an error at once. `mv` would try for half a minute.
        kind = self._call("info")["type"]
        self._call("mv", fspath(target), recursive=kind == "directory")
        return BucketPath(fspath(target))

    def modified(self) -> float:
        """Return the time of an object's last write by the clock of the bucket, in seconds."""
        return self._call("modified").timestamp()

    def count_bytes(self) -> int:
        """Return the size of all objects below this folder."""
        return self._call("du")


@functools.cache
def fetch(path: str | PathLike[str]) -> Path:
    """Copy an object or a folder of a bucket to the user's cache, unless that was done before.

    A copy belongs to the names, sizes and generations of the objects. A new process copies changed
    objects again. A copy that was interrupted is never used.

    Args:
        path: gs://BUCKET/PATH. A local path is returned as it is.

    Raises:
        UserError: if the object does not exist or cannot be read or stored, or its name has "..".
    """
    if not is_bucket(path):
        return Path(path)
    source, text = as_path(path), fspath(path).rstrip("/")
    with _explain(path, "read"):
        objects = _file_system().find(text, detail=True)
    if not objects:
        raise UserError(f"the file or folder {text} does not exist in the bucket")
    # A name with ".." could place a copy anywhere on this machine.
    if outside := next((name for name in objects if ".." in name.split("/")), None):
        raise UserError(f"{text} has an object named gs://{outside}; rename it, without '..'")
    listing = sorted((name, x["size"], x.get("generation")) for name, x in objects.items())
    num_bytes = sum(x["size"] for x in objects.values())
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jaxssl" / "buckets"
    folder = home / hashlib.sha256(repr((text, listing)).encode()).hexdigest()[:16]
    with explain_write_errors(folder):
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):
            if folder.exists():
                return folder / source.name
            log.info("data       copying %s (%.4g MB) to %s", text, num_bytes / 1e6, folder)
            for leftover in home.glob(f"{folder.name}.tmp*"):
                shutil.rmtree(leftover)  # The process that copied was killed.
            with tempfile.TemporaryDirectory(prefix=f"{folder.name}.tmp", dir=home) as partial:
                # The names of objects begin with the bucket, without "gs://".
                target, root = f"{partial}/copy/{source.name}", text.removeprefix("gs://")
                files = [target + name.removeprefix(root) for name in objects]
                try:
                    with _explain(path, "read"):
                        _file_system(copying=True).get(list(objects), files)
                except FileNotFoundError as error:
                    reason = "an object was deleted meanwhile; run the command again"
                    raise BucketError(f"cannot copy {text}: {reason}") from error
                Path(partial, "copy").rename(folder)
    return folder / source.name
