"""Lock a workdir, so that one run at a time uses it."""

import errno
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from filelock import (
    FileLock,
    LeaseCompromise,
    LeaseSettingsMismatch,
    OwnerRecord,
    SoftFileLease,
    Timeout,
)

from jaxssl.errors import UserError
from jaxssl.training.logs import log

NAME = "lock"  # file that the operating system locks while a run holds the workdir
OWNER = "lock.owner"  # file with the run's process and host, touched while the run is alive
HEARTBEAT = 10.0  # seconds between two touches of the owner file
# A run on another host counts as dead after so many seconds without a touch. Caches of shared file
# systems may show a new time only after a minute.
LEASE = 100.0
NO_FLOCK = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


@contextmanager
def lock(workdir: Path) -> Iterator[None]:
    """Hold the lock of a workdir inside a with block.

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
    lease = SoftFileLease(
        workdir / OWNER,
        lease_duration=LEASE,
        heartbeat_interval=HEARTBEAT,
        on_compromise=_warn_of_lost_lease,
    )
    if (workdir / NAME).is_symlink():
        raise UserError(f"{workdir / NAME} is a symbolic link; delete it")
    with ExitStack() as stack:
        try:
            stack.enter_context(FileLock(workdir / NAME, timeout=0, fallback_to_soft=False))
        except Timeout:
            raise _in_use(workdir, lease) from None
        except OSError as error:
            if error.errno not in NO_FLOCK:
                raise
        _acquire(lease, workdir)
        stack.callback(lease.release)
        yield


def _acquire(lease: SoftFileLease, workdir: Path) -> None:
    """Take the lease of a workdir, after waiting for a run that may be alive on another host.

    The lease of a dead process of this host is taken over at once.
    """
    path = workdir / OWNER
    previous = lease.owner
    try:
        try:
            lease.acquire(timeout=1)
        except Timeout:
            # The owner file is unreadable, and nobody has completed it for a second.
            if lease.owner is None or _is_zombie(lease.owner):
                lease.force_break()
            else:
                log.info("waiting to see whether the run that wrote %s is alive", path)
            start = _modified(path)
            lease.acquire(timeout=2 * LEASE, cancel_check=lambda: _modified(path) != start)
    except (Timeout, LeaseSettingsMismatch):
        raise _in_use(workdir, lease) from None
    if previous:
        log.warning("took over the lock of process %d, which has ended", previous.pid)


def _is_zombie(owner: OwnerRecord) -> bool:
    """Return True for a process of this host that has ended and that its parent has not reaped."""
    if owner.hostname.partition("?")[0] != socket.gethostname():
        return False
    try:
        stat = Path(f"/proc/{owner.pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[:1] == ["Z"]  # the name in parentheses may have spaces


def _modified(path: Path) -> int:
    try:
        return path.lstat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _in_use(workdir: Path, lease: SoftFileLease) -> UserError:
    owner = lease.owner
    # filelock appends the process namespace of a container to the host's name.
    who = f" (process {owner.pid} on {owner.hostname.partition('?')[0]})" if owner else ""
    return UserError(
        f"{workdir} is in use by another run{who}; wait for it, stop it or choose another --workdir"
    )


def _warn_of_lost_lease(loss: LeaseCompromise) -> None:
    log.warning(
        "%s was removed, or another run took it over; make sure that one run alone uses this "
        "workdir (%s)",
        loss.lock_file,
        loss.reason,
    )
