"""One run at a time in a workdir."""

import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from jaxssl.errors import UserError
from jaxssl.training.logs import log

NAME = "lock"
BEAT = 10.0  # seconds between signs of life
PATIENCE = 100.0  # seconds without one, after which a run on another host is no more; caches of
# shared file systems show a new time after a minute


@contextmanager
def lock(workdir: Path) -> Iterator[None]:
    """Hold the lock of a workdir, the file "lock", which names the host and the process.

    The operating system gives up the lock of a process that is no more, however it ended. Where
    hosts share a file system that does not share locks, a run of another host shows that it is
    alive by touching the file.

    Args:
        workdir: an existing folder.

    Raises:
        UserError: if a run holds it; nothing has been changed then.
    """
    path = workdir / NAME
    with path.open("a+") as file:
        _take(file, path)
        done = threading.Event()
        beat = threading.Thread(target=_beat, args=(file, done), daemon=True)
        beat.start()
        try:
            yield
        finally:
            done.set()
            beat.join()
            file.truncate(0)  # the file stays: another process may be waiting for this very one


def _take(file: IO[str], path: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _held(path, _owner(file)) from None
    except OSError:  # a file system without locks
        owner = _owner(file)
        if owner and owner["host"] == socket.gethostname() and _runs(owner["pid"]):
            raise _held(path, owner) from None
    owner = _owner(file)
    if owner and owner["host"] != socket.gethostname():
        log.info("waiting to see whether a run on %s is alive: %s", owner["host"], path)
        if _is_touched(path):
            raise _held(path, owner)
    if owner:
        log.warning("took over the lock of process %(pid)s on %(host)s, which is no more", owner)
    file.truncate(0)
    file.write(json.dumps({"host": socket.gethostname(), "pid": os.getpid()}) + "\n")
    file.flush()


def _held(path: Path, owner: dict | None) -> UserError:
    who = f" (process {owner['pid']} on {owner['host']})" if owner else ""
    return UserError(
        f"{path.parent} is in use by another run{who}; wait for it or stop it, or take another "
        "--workdir"
    )


def _owner(file: IO[str]) -> dict | None:
    """Who wrote the lock; None if nobody holds it, or it was cut off."""
    file.seek(0)
    try:
        found = json.loads(file.read())
        return {"host": str(found["host"]), "pid": int(found["pid"])}
    except (ValueError, KeyError, TypeError):
        return None


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _is_touched(path: Path) -> bool:
    # Clocks of hosts differ: only whether the time changes says something.
    before, end = path.stat().st_mtime_ns, time.monotonic() + PATIENCE
    while time.monotonic() < end:
        time.sleep(min(1.0, PATIENCE / 10))
        if path.stat().st_mtime_ns != before:
            return True
    return False


def _beat(file: IO[str], done: threading.Event) -> None:
    while not done.wait(BEAT):
        try:
            os.utime(file.fileno())
        except OSError:  # a full or lost disk: the run itself will say so
            pass
