"""Lock a workdir, so that only one run at a time uses the folder."""

import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from filelock import FileLock, LeaseSettingsMismatch, OwnerRecord, SoftFileLease, Timeout

from jaxssl import buckets
from jaxssl.errors import UserError
from jaxssl.training.output import bucket_files
from jaxssl.training.output.file_io import NO_FLOCK
from jaxssl.training.output.logs import log

Owner = bucket_files.Owner | OwnerRecord
NAME = "lock"  # file that the operating system locks while a run holds the workdir
OWNER = "lock.owner"  # file with the run's process and host, touched while the run is alive
HEARTBEAT = 10.0  # seconds between two touches of the owner file
# A run on another host counts as dead after so many seconds without a touch. Caches of shared file
# systems may show a touch only after a minute.
LEASE = 100.0
PATIENCE = 1.0  # seconds to wait until a run that is starting has written its owner file


@contextmanager
def lock(workdir: Path) -> Iterator[Callable[[], None]]:
    """Hold the lock of a workdir inside a with block.

    The value of the block is a function that raises UserError if the lock is lost: a run that was
    suspended may find that a run on another host has taken it over. The run calls it before it
    writes. If the lock is lost, any exception of the block becomes this error.

    The operating system releases the lock of a process that has ended, however it ended. Where
    hosts share a file system that does not share locks, or has none, the owner file tells whether a
    run on another host is alive: it is alive if it touches the file.

    Args:
        workdir: an existing folder.

    Raises:
        UserError: if another run holds the lock, or the lock file is a symbolic link. Nothing has
            been changed then.
        OSError: if a lock file cannot be written.
    """
    hold = _lock_in_bucket if buckets.is_bucket(workdir) else _lock_on_disk
    with hold(workdir) as check:
        try:
            yield check
        except Exception as error:
            try:
                check()
            except UserError as lost:
                raise lost from error
            raise


@contextmanager
def _lock_on_disk(workdir: Path) -> Iterator[Callable[[], None]]:
    """Hold the lock of a workdir on disk inside a with block, see `lock`."""
    lease = SoftFileLease(workdir / OWNER, lease_duration=LEASE, heartbeat_interval=HEARTBEAT)
    if (workdir / NAME).is_symlink():
        raise UserError(f"{workdir / NAME} is a symbolic link; delete it")
    bucket_files.remove_copied_lease(workdir / NAME)
    with ExitStack() as stack:
        try:
            stack.enter_context(FileLock(workdir / NAME, timeout=0, fallback_to_soft=False))
        except Timeout:
            raise _in_use(workdir, lease.owner) from None
        except OSError as error:
            if error.errno not in NO_FLOCK:
                raise
        _acquire(lease, workdir)
        stack.callback(lease.release)
        token = lease.token

        def check() -> None:
            for pause in (0.2, 0.0):
                owner = lease.owner
                if owner and owner.token == token:
                    return
                time.sleep(pause)  # A run that tries to lock moves the owner file for a moment.
            raise _lost(workdir, owner, OWNER)

        yield check


@contextmanager
def _lock_in_bucket(workdir: Path) -> Iterator[Callable[[], None]]:
    """Hold the lease of a workdir in a bucket inside a with block, see `lock`."""
    lease = bucket_files.Lease(workdir / NAME)

    def check() -> None:
        owner = lease.owner()
        if owner != lease.me:
            raise _lost(workdir, owner, NAME)

    try:
        previous = lease.acquire()
    except bucket_files.InUse as error:
        raise _in_use(workdir, *error.args) from None
    if previous:
        log.warning("took over the lock of %s, which has ended", _name(previous))
    try:
        yield check
    finally:
        if not isinstance(sys.exc_info()[1], buckets.BucketError):
            lease.release()


def _lost(workdir: Path, owner: Owner | None, name: str) -> UserError:
    """Return the error for a lock that another run has, or that was deleted."""
    if owner:
        return UserError(
            f"another run ({_name(owner)}) has taken over {workdir}, because this run sent no "
            f"heartbeat for {LEASE:g} s; this run stops, and the other one continues"
        )
    if workdir.is_dir():
        return UserError(
            f"{workdir / name} was deleted during the run, which stops because another run could "
            "start in the workdir; the same command resumes at the last checkpoint"
        )
    return UserError(
        f"the workdir {workdir} was deleted or moved during the run, which stops; if it was moved, "
        "pass its new path as --workdir to resume"
    )


def _acquire(lease: SoftFileLease, workdir: Path) -> None:
    """Take the lease of a workdir, after waiting for a run that may be alive on another host.

    The lease of a dead process of this host is taken over at once.
    """
    path = workdir / OWNER
    previous = lease.owner
    try:
        try:
            lease.acquire(timeout=PATIENCE)
        except Timeout:
            # Break the lease if its owner file stays unreadable, or if its process is a zombie.
            owner = lease.owner
            if owner is None or _is_zombie(owner):
                lease.force_break()
            else:
                log.info("waiting to see whether the run that wrote %s is alive", path)
            start = _modified(path)
            lease.acquire(timeout=2 * LEASE, cancel_check=lambda: _modified(path) != start)
    except (Timeout, LeaseSettingsMismatch):
        raise _in_use(workdir, lease.owner) from None
    if previous:
        log.warning("took over the lock of %s, which has ended", _name(previous))


def _is_zombie(owner: OwnerRecord) -> bool:
    """Return True for a process of this host that has ended and that its parent has not reaped."""
    if owner.hostname.partition("?")[0] != socket.gethostname():
        return False
    try:
        stat = Path(f"/proc/{owner.pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    # The state of the process follows its name, which is in parentheses and may contain spaces.
    return stat.rpartition(")")[2].split()[:1] == ["Z"]


def _modified(path: Path) -> int:
    """Return the time of a file's last change in nanoseconds, or 0 without a file."""
    try:
        return path.lstat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _in_use(workdir: Path, owner: Owner | None) -> UserError:
    """Return the error for a workdir that another run, perhaps of an unknown owner, has locked."""
    who = f" ({_name(owner)})" if owner else ""
    return UserError(
        f"{workdir} is in use by another run{who}; wait for it, stop it or choose another --workdir"
    )


def _name(owner: Owner) -> str:
    """Return process and host of an owner. The host's name may be followed by a namespace."""
    return f"process {owner.pid} on {owner.hostname.partition('?')[0]}"
