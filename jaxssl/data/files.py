"""Files of a folder or an archive, by name; nothing is ever unpacked to the disk."""

import gzip
import hashlib
import io
import lzma
import os
import re
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO

from jaxssl.errors import UserError

ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")
LARGEST = 2**28  # bytes of a picture in an archive
MOST = 2**36  # bytes that an entry of a tar file may claim
DAMAGED = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, lzma.LZMAError, zlib.error)
DAMAGED += (EOFError, struct.error, IndexError, ValueError, OverflowError)
DAMAGED += (NotImplementedError,)  # zipfile, of a method of compression it does not know

Read = Callable[[], bytes]


def locate(path: str) -> tuple[Path, str]:
    """A path that may go on inside an archive, as (folder or archive, folder inside the archive).

    Raises:
        UserError: if nothing is there, or a file that is no archive.
    """
    whole = Path(path).expanduser()
    root = whole
    while not os.path.exists(root) and root != root.parent:
        root = root.parent
    inside = whole.relative_to(root).as_posix() if root != whole else ""
    if root.is_dir():
        if inside:
            raise UserError(f"data.path={path} does not exist; there is only {root.resolve()}")
        return root, ""
    if not root.name.lower().endswith(ARCHIVES):
        raise UserError(
            f"data.path={path} is a file; expected a folder, or an archive ({', '.join(ARCHIVES)})"
        )
    return root, inside


def read_all(root: Path, inside: str = "", largest: int = LARGEST) -> Iterator[tuple[str, Read]]:
    """Every file below ``root``: its name, relative to ``inside``, and a function that reads it.

    A folder's files come sorted by name, an archive's in the order it holds them; one of an archive
    can only be read before the next one is asked for. Hidden files are left out.

    Args:
        root: a folder or an archive.
        inside: a folder in the archive; "" is all of it.
        largest: bytes of a file; one in an archive may pretend to be smaller than it is.

    Raises:
        UserError: on a damaged archive, or one with an entry that is refused. Reading a file raises
            OSError if it cannot be read or is too large.
    """
    if root.is_dir():
        for name in _names(root):
            yield name, partial(_of_folder, root / name, largest)
        return
    try:
        if root.name.lower().endswith(".zip"):
            entries = _in_zip(root, largest)
        else:
            entries = _in_tar(root, largest)
        prefix, seen = f"{inside}/" if inside else "", set()
        for name, read in entries:
            name = _safe(name, root)
            if not name.startswith(prefix) or "/." in f"/{name}":
                continue
            if name in seen:
                raise UserError(_refused(root, name, "comes twice"))
            seen.add(name)
            yield name.removeprefix(prefix), read
    except DAMAGED as error:
        raise UserError(f"the archive {root} is damaged: {error}; get it again") from error
    except OSError as error:
        raise UserError(f"the archive {root} cannot be read: {error}") from error


def cores() -> int:
    """How many CPU cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def stamp(root: Path, suffixes: tuple[str, ...]) -> str:
    """Changes when a file of the folder, or the archive, does: by names, sizes and times.

    Files of a folder with other suffixes do not count.
    """
    digest = hashlib.sha256()
    for name in _names(root) if root.is_dir() else ("",):
        if name and not name.lower().endswith(suffixes):
            continue
        path = f"{root}/{name}" if name else root
        try:
            facts = os.stat(path)
        except OSError:  # a link to nothing
            facts = os.lstat(path)
        digest.update(f"{name}\0{facts.st_size}\0{facts.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _names(root: Path) -> list[str]:
    """Paths of the files below a folder, sorted; links are followed, but never round in circles."""

    def stop(error: OSError) -> None:
        raise UserError(f"the folder {error.filename} cannot be read: {error.strerror}")

    names, seen = [], set()
    for folder, folders, found in os.walk(root, followlinks=True, onerror=stop):
        facts = os.stat(folder)
        if (facts.st_dev, facts.st_ino) in seen:
            folders.clear()
            continue
        seen.add((facts.st_dev, facts.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        below = Path(folder).relative_to(root).as_posix() + "/"
        below = "" if below == "./" else below
        names += [below + _text(name, root) for name in found if not name.startswith(".")]
    return sorted(names)


def _in_tar(root: Path, largest: int) -> Iterator[tuple[str, Read]]:
    zipped = root.name.lower().endswith(("gz", "tgz"))  # tarfile does not look at its checksum
    with (
        (gzip if zipped else io).open(root, "rb") as file,
        tarfile.open(fileobj=file, mode="r|" if zipped else "r|*", tarinfo=_Entry) as archive,
    ):
        for member in archive:
            if member.isdir():
                continue
            if not member.isfile():
                raise UserError(_refused(root, member.name, "is a link or a device"))
            yield member.name, partial(_limited, partial(archive.extractfile, member), largest)
        while zipped and file.read(2**20):  # on to the checksum
            pass


def _in_zip(root: Path, largest: int) -> Iterator[tuple[str, Read]]:
    with zipfile.ZipFile(root) as archive:
        for member in archive.infolist():
            if member.is_dir():
                continue
            if stat.S_ISLNK(member.external_attr >> 16):
                raise UserError(_refused(root, member.filename, "is a link"))
            yield member.filename, partial(_limited, partial(archive.open, member), largest)


def _of_folder(path: Path, largest: int) -> bytes:
    """The bytes of a file. A link may lead to a device or a pipe, which may have no end."""
    facts = path.stat()
    if not stat.S_ISREG(facts.st_mode):
        raise OSError("is no regular file")
    if facts.st_size > largest:
        raise OSError(_too_large(largest))
    return path.read_bytes()


class _Entry(tarfile.TarInfo):
    """An entry of a tar file. A damaged one is an error; tarfile takes it for the end."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> tarfile.TarInfo:
        try:
            entry = super().fromtarfile(archive)
        except tarfile.EOFHeaderError:
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"{error} at byte {archive.offset}") from error
        # Where the next one should be; tarfile would go there even if the file has long ended.
        if archive.offset - entry.offset > MOST:
            raise tarfile.ReadError(f"an entry of {entry.size} bytes at byte {entry.offset}")
        return entry


def _limited(opened: Callable[[], IO[bytes]], largest: int) -> bytes:
    try:
        with opened() as file:
            data = file.read(largest + 1)
    except (RuntimeError, *DAMAGED) as error:  # encrypted, or damaged
        raise OSError(str(error)) from error
    if len(data) > largest:
        raise OSError(_too_large(largest))
    return data


def _too_large(largest: int) -> str:
    return f"larger than {largest >> 20} MiB"


def _safe(name: str, root: Path) -> str:
    """The name with slashes between its parts, and without a leading "./"."""
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or re.match("[A-Za-z]:", str(path)):
        raise UserError(_refused(root, name, "points out of the archive"))
    return _text(path.as_posix(), root)


def _text(name: str, root: Path) -> str:
    """The name, if it is text."""
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{root} holds the name {name!r}, which is not UTF-8; rename it") from error
    return name


def _refused(root: Path, name: str, why: str) -> str:
    return f"the archive {root} is refused: its entry {name!r} {why}"
