"""Files of a folder or an archive, by name; nothing is ever unpacked to the disk."""

import hashlib
import lzma
import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from jaxssl.errors import UserError

ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")
LARGEST = 2**28  # bytes of a picture in an archive
DAMAGED = (tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, zlib.error, EOFError)

Read = Callable[[], bytes]


def locate(path: str) -> tuple[Path, str]:
    """A path that may go on inside an archive, as (folder or archive, folder inside the archive).

    Raises:
        UserError: if nothing is there, or a file that is no archive.
    """
    whole = Path(path).expanduser()
    root = whole
    while not root.exists() and root != root.parent:
        root = root.parent
    inside = whole.relative_to(root).as_posix() if root != whole else ""
    if root.is_dir():
        if inside:
            raise UserError(f"data.path={path} does not exist; there is only {root}")
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
        largest: bytes of a file in an archive, which may pretend to be smaller than it is; reading
            a larger one raises OSError.

    Raises:
        UserError: on a damaged archive, or one with an entry that points out of it.
    """
    if root.is_dir():
        for name in _names(root):
            yield name, (root / name).read_bytes
        return
    try:
        if root.name.lower().endswith(".zip"):
            entries = _in_zip(root, largest)
        else:
            entries = _in_tar(root, largest)
        prefix = f"{inside}/" if inside else ""
        for name, read in entries:
            name = _safe(name, root)
            if name.startswith(prefix) and "/." not in f"/{name}":
                yield name.removeprefix(prefix), read
    except DAMAGED as error:
        raise UserError(f"the archive {root} is damaged: {error}; get it again") from error


def stamp(root: Path) -> str:
    """Changes when a file of the folder, or the archive, does: by names, sizes and times."""
    digest = hashlib.sha256()
    for name in _names(root) if root.is_dir() else ("",):
        facts = os.stat(f"{root}/{name}" if name else root)
        digest.update(f"{name}\0{facts.st_size}\0{facts.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _names(root: Path) -> list[str]:
    """Paths of the files below a folder, sorted; links are followed, but never round in circles."""
    names, seen = [], set()
    for folder, folders, found in os.walk(root, followlinks=True):
        facts = os.stat(folder)
        if (facts.st_dev, facts.st_ino) in seen:
            folders.clear()
            continue
        seen.add((facts.st_dev, facts.st_ino))
        folders[:] = [name for name in folders if not name.startswith(".")]
        below = Path(folder).relative_to(root).as_posix() + "/"
        below = "" if below == "./" else below
        names += [below + name for name in found if not name.startswith(".")]
    return sorted(names)


def _in_tar(root: Path, largest: int) -> Iterator[tuple[str, Read]]:
    with tarfile.open(root, "r|*") as archive:
        for member in archive:
            if member.isdir():
                continue
            if not member.isfile():
                raise UserError(_refused(root, member.name, "is a link or a device"))
            yield member.name, lambda member=member: _limited(archive.extractfile(member), largest)


def _in_zip(root: Path, largest: int) -> Iterator[tuple[str, Read]]:
    with zipfile.ZipFile(root) as archive:
        for member in archive.infolist():
            if member.is_dir():
                continue
            if stat.S_ISLNK(member.external_attr >> 16):
                raise UserError(_refused(root, member.filename, "is a link"))
            yield member.filename, lambda member=member: _limited(archive.open(member), largest)


def _limited(file: IO[bytes], largest: int) -> bytes:
    with file:
        data = file.read(largest + 1)
    if len(data) > largest:
        raise OSError(f"larger than {largest >> 20} MiB")
    return data


def _safe(name: str, root: Path) -> str:
    """The name without a leading "./"."""
    path = name.replace("\\", "/")
    while path.startswith("./"):
        path = path[2:]
    if path.startswith("/") or "/../" in f"/{path}/" or ":" in path.partition("/")[0]:
        raise UserError(_refused(root, name, "points out of the archive"))
    return path


def _refused(root: Path, name: str, why: str) -> str:
    return f"the archive {root} is refused: its entry {name!r} {why}"
