"""Files in a bucket that change: text in parts, and locks with a lease."""

import json
import os
import re
import shutil
import socket
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, cast

from jaxssl.buckets import BucketError, BucketPath

FLUSH_SECONDS = 10.0  # shortest time between two writes of the part that text is appended to
PART_BYTES = 2**20  # size of a part from which text is appended to a new part
HEARTBEAT = 10.0  # seconds between two renewals of a lease
LEASE = 100.0  # seconds after its last renewal at which a lease has expired


class Parts:
    """A growing text file in a bucket, stored as a folder with an object for each part of the text.

    Buckets cannot append to an object, so the last part is written again as a whole until it has
    `PART_BYTES`. Then the next part begins.

    Args:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._text, self._changed = b"", False  # of the last part
        self._number = max((int(part.stem) for part in path.iterdir()), default=-1) + 1
        self._sent_at = -FLUSH_SECONDS  # The first flush sends the text at once.

    def write(self, text: str) -> None:
        """Append text. It is sent by `flush` or `sync`."""
        self._text, self._changed = self._text + text.encode(), True

    def flush(self) -> None:
        """Send the new text, unless text was sent within the last `FLUSH_SECONDS`."""
        if time.monotonic() - self._sent_at >= FLUSH_SECONDS:
            self.sync()

    def sync(self) -> None:
        """Send the new text."""
        if not self._changed:
            return
        (self._path / f"{self._number:08}{self._path.suffix}").write_bytes(self._text)
        self._sent_at, self._changed = time.monotonic(), False
        if len(self._text) >= PART_BYTES:
            self._number, self._text = self._number + 1, b""

    close = sync


class Owner(NamedTuple):
    """The owner of a lease.

    Attributes:
        token: random, so that two owners always differ.
        pid: id of the process.
        hostname: host of the process, and on Linux the namespace of the process ids.
        released: whether the owner has released the lease.
    """

    token: str
    pid: int
    hostname: str
    released: bool = False

    def is_dead(self) -> bool:
        """Return True if the owner has released the lease, or is a dead process of this host.

        The processes of other hosts cannot be seen, so they count as alive.
        """
        if self.released:
            return True
        try:
            if self.hostname == _host():
                os.kill(self.pid, 0)  # Signal 0 only tests whether the process exists.
        except OSError as error:  # PermissionError: the process of another user
            return isinstance(error, ProcessLookupError)
        return False


class InUse(Exception):
    """Raised for a lease that a living process owns. Its argument is the `Owner`."""


def _host() -> str:
    """Return the name of this host and, on Linux, of the namespace of the process ids."""
    with suppress(OSError):
        return f"{socket.gethostname()}?{os.readlink('/proc/self/ns/pid')}"
    return socket.gethostname()


class Lease:
    """A lock in a bucket: a folder of numbered objects. The last one names the owner.

    The bucket creates each object only once, so only one process gets a number. The owner writes
    its object again every `HEARTBEAT` seconds. A lease that was not renewed for `LEASE` seconds has
    expired, and the next process takes it over. Times are from the bucket's clock, because the
    clocks of hosts differ.

    Args:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self._path = cast(BucketPath, path)
        self.me = Owner(uuid.uuid4().hex, os.getpid(), _host())
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True)

    def acquire(self, *, wait: bool = False) -> Owner | None:
        """Take the lease, and return the previous owner if that one has not released it.

        Args:
            wait: whether to wait for an owner that is alive.

        Raises:
            InUse: if the owner is alive, which it shows by renewing the lease.
            BucketError: if the bucket cannot be written.
        """
        if self._path.is_file():  # The lock of a disk, from which the folder was copied.
            self._path.unlink(missing_ok=True)
        last_renewal: tuple[int, float] | None = None
        while True:
            number, owner = self._last()
            if owner and not owner.is_dead():
                try:
                    renewal = number, (self._path / f"{number:08}").modified()
                except FileNotFoundError:  # The next owner has deleted this object.
                    continue
                if not wait and last_renewal not in (None, renewal):
                    raise InUse(owner)
                last_renewal = renewal
                if self._now() - renewal[1] < LEASE:
                    time.sleep(HEARTBEAT / 10)
                    continue
            self._object = self._path / f"{number + 1:08}"
            with suppress(FileExistsError):  # made by another process or an earlier try
                self._object.create(json.dumps(self.me).encode())
            if self.owner() == self.me:
                break
        for path in self._path.iterdir():
            if path.name < self._object.name:
                path.unlink(missing_ok=True)
        self._thread.start()
        return None if owner is None or owner.released else owner

    def owner(self) -> Owner | None:
        """Return the owner. It is ``me`` as long as this process has the lease."""
        return self._last()[1]

    def release(self) -> None:
        """Mark the lease as released, unless another process has taken the lease over."""
        self._stop.set()
        self._thread.join()  # The thread could write the lease once more after its release.
        if self.owner() == self.me:
            self._write(self.me._replace(released=True))

    def _last(self) -> tuple[int, Owner | None]:
        """Return the number and the owner of the last object, or (0, None) without objects."""
        names = [path.name for path in self._path.iterdir() if path.name.isdecimal()]
        if not names:
            return 0, None
        try:
            owner = Owner(*json.loads((self._path / max(names)).read_bytes()))
        except FileNotFoundError:  # The next owner has deleted this object.
            return self._last()
        return int(max(names)), owner

    def _now(self) -> float:
        """Return the time of the bucket's clock, from the modification time of a new object."""
        probe = self._path / f"time-{self.me.token}"
        probe.write_bytes(b"")
        now = probe.modified()
        probe.unlink()
        return now

    def _renew(self) -> None:
        while not self._stop.wait(HEARTBEAT):
            with suppress(BucketError):  # The next renewal may succeed. The run checks `owner`.
                if self.owner() != self.me:
                    return
                self._write(self.me)

    def _write(self, owner: Owner) -> None:
        self._object.write_bytes(json.dumps(owner).encode())


def remove_copied_lease(path: Path) -> None:
    """Remove a lease from a folder on disk, which was copied from a bucket. Locks there are files.

    A folder that holds other files stays.
    """
    with suppress(OSError):  # Another process may remove it at the same time.
        if all(re.fullmatch(r"\d{8}|time-\w+", file.name) for file in path.iterdir()):
            shutil.rmtree(path.rename(path.with_name(f"{path.name}.{uuid.uuid4().hex}")))
