"""Read files from a folder or an archive by name. Archives are never unpacked to disk."""

import functools
import gzip
import hashlib
import heapq
import logging
import lzma
import os
import re
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any

from jaxssl.data.decoders import decompression
from jaxssl.errors import UserError, printable, require_utf8

log = logging.getLogger("jaxssl")
ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")
MAX_FILE = 2**28  # bytes of a file, unless the caller allows more
BLOCK = 2**16  # bytes of each block of a file that `fingerprint` hashes
MAX_TAR_ENTRY = 2**36  # bytes that the header of a tar entry may claim
MAX_LONG_HEADER = 2**18  # bytes of a header with a long name or attributes
LONG_HEADERS = (
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
)
# zipfile ignores the limit of a read for these methods of compression.
UNBOUNDED = {zipfile.ZIP_BZIP2: "bzip2", zipfile.ZIP_LZMA: "LZMA"}
# Errors that the standard library raises for damaged archives: of the format, of a compressed
# stream, and of numbers in headers. zipfile raises NotImplementedError for an unknown compression
# method. tarfile recurses for each of thousands of headers of one file.
ARCHIVE_ERRORS = (
    *(tarfile.TarError, zipfile.BadZipFile, NotImplementedError, RecursionError),
    *(gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError),
    *(struct.error, IndexError, ValueError, OverflowError),
)

ReadBytes = Callable[[], bytes]
Files = Iterable[tuple[str, ReadBytes]]  # names of files, and functions that read the files
Entry = tuple[str, Callable[[], Any], int]  # name, function that opens the entry, and size in bytes


def locate(path: str, key: str = "data.path") -> tuple[Path, str]:
    """Split a path into a folder or an archive, and a folder inside the archive ("" for all of it).

    Args:
        path: of a folder or an archive, or of a folder inside an archive.
        key: the setting that holds the path, for messages.

    Raises:
        UserError: if the path does not exist, or is a file but not an archive.
    """
    whole = Path(os.path.expanduser(path))  # An unknown user is left as it is.
    root = whole
    while not os.path.exists(root) and root != root.parent:
        root = root.parent
    inside = whole.relative_to(root).as_posix() if root != whole else ""
    if root.is_dir():
        if inside:
            raise UserError(
                f"{key}={path} does not exist; the nearest existing folder is {root.resolve()}"
            )
        return root, ""
    if not root.name.lower().endswith(ARCHIVES):
        raise UserError(
            f"{key}={path} is a file; expected a folder, or an archive ({', '.join(ARCHIVES)})"
        )
    return root, inside


def read_files(root: Path, inside: str = "", max_bytes: int = MAX_FILE) -> Files:
    """Iterate over the files below ``root`` as (name, function that reads the bytes).

    Names are relative to ``inside``. The files of a folder are sorted by name. The files of an
    archive come in the archive's order, and each can be read only before the iterator moves on.
    Files and folders with a dot at the start of their names are left out.

    Args:
        root: a folder or an archive.
        inside: a folder in the archive. "" is the whole archive.
        max_bytes: largest size of a file.

    Raises:
        UserError: if the archive is damaged, has an unsafe entry, or expands to more than its size
            allows, see `decompression`. The functions that read a file raise this too, and OSError
            if it is too large or cannot be read.
    """
    if root.is_dir():
        for name in list_folder(root):
            yield name, partial(_read_from_folder, root / name, max_bytes)
        return
    entries = _zip_entries if root.name.lower().endswith(".zip") else _tar_entries
    prefix = f"{inside}/" if inside else ""
    seen = set()
    try:
        for name, opener, size in entries(root):
            name = _safe_name(name, root)
            if not name.startswith(prefix) or "/." in f"/{name.removeprefix(prefix)}":
                continue
            if name in seen:
                raise _unsafe(root, name, "occurs twice")
            seen.add(name)
            yield name.removeprefix(prefix), partial(_read_entry, opener, size, max_bytes)
    except _SparseEntryError as error:
        raise UserError(
            f"the archive {root} is rejected because it has an entry that is a sparse file; pack "
            "it again without --sparse"
        ) from error
    except ARCHIVE_ERRORS as error:
        raise UserError(
            f"the archive {root} is damaged: {error}; copy or download it again"
        ) from error
    except OSError as error:
        raise UserError(f"the archive {root} cannot be read: {error}") from error


def cpu_count() -> int:
    """Return the number of CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def fingerprint(root: Path, suffixes: tuple[str, ...], samples: int = 0) -> str:
    """Hash the names, sizes and modification times of a folder's files, or of an archive.

    Args:
        root: the folder or archive.
        suffixes: files in a folder are ignored if their names do not end with one of these.
        samples: approximate number of blocks, in all files together, that are hashed too, but two
            or more of each file: the first, the last, and others evenly spaced between them.
    """
    digest = hashlib.sha256()
    names = [""]
    if root.is_dir():
        names = [name for name in list_folder(root) if name.lower().endswith(suffixes)]
    for name in names:
        path = root / name  # the archive itself if the name is ""
        try:
            status = os.stat(path)
        except OSError:  # A broken symbolic link has no size.
            status = os.lstat(path)
        digest.update(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
        if samples and os.path.exists(path):
            count, last = max(2, samples // len(names)), max(0, status.st_size - BLOCK)
            with open(path, "rb") as file:
                for start in sorted({last * i // (count - 1) for i in range(count)}):
                    file.seek(start)
                    digest.update(file.read(BLOCK))
    return digest.hexdigest()


def list_folder(root: Path) -> list[str]:
    """List the relative paths of all files below a folder, sorted.

    Symbolic links are followed, but no folder is entered twice: its files are listed below its own
    name, or below that of the first link to it if it lies elsewhere. The log names the others.
    """

    def stop(error: OSError) -> None:
        raise UserError(f"the folder {error.filename} cannot be read: {error.strerror}")

    paths, seen, links = [], {}, [root]
    while links:  # The folders of `root` are walked before those that links lead to.
        for folder, folders, names in os.walk(heapq.heappop(links), onerror=stop):
            status, here = os.stat(folder), Path(folder)
            below = here.relative_to(root).as_posix()
            first = seen.setdefault((status.st_dev, status.st_ino), below)
            if first != below:
                folders.clear()
                _log_skipped(here, root / first)
                continue
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for name in filter(os.path.islink, (here / x for x in folders)):
                heapq.heappush(links, name)
            visible = (name for name in names if not name.startswith("."))
            inside = ((here / name).relative_to(root).as_posix() for name in visible)
            paths += [require_utf8(name, root) for name in inside]
    return sorted(paths)


@functools.cache  # Folders are listed several times in a run.
def _log_skipped(folder: Path, first: Path) -> None:
    names = printable(str(folder)), printable(str(first))
    log.warning("data       left out %s: it is the folder %s, which is read already", *names)


def _tar_entries(root: Path) -> Iterable[Entry]:
    with root.open("rb") as file:
        content = decompression.open_tar(file, root)
        fileobj: Any = content
        with tarfile.open(fileobj=fileobj, mode="r|", tarinfo=TarEntry) as archive:
            for member in archive:
                if member.isdir():
                    continue
                if not member.isfile():
                    problem = "is a link or a device (--dereference --hard-dereference packs files)"
                    raise _unsafe(root, member.name, problem)
                yield member.name, partial(archive.extractfile, member), member.size
                archive.members.clear()  # pyright: ignore  # tarfile would keep all entries
        while content is not file and content.read(decompression.CHUNK):
            pass  # Read to the end, where the decompressor compares checksums.


def _zip_entries(root: Path) -> Iterable[Entry]:
    budget = decompression.Budget(root, root.stat().st_size)
    with zipfile.ZipFile(root) as archive:

        def open_entry(member: zipfile.ZipInfo) -> IO[bytes]:
            budget.spend(member.file_size)  # zipfile reads no more than this size.
            return archive.open(member)

        for member in archive.infolist():
            if member.is_dir():
                continue
            if stat.S_ISLNK(member.external_attr >> 16):
                raise _unsafe(root, member.filename, "is a link")
            if member.compress_type in UNBOUNDED:
                method = UNBOUNDED[member.compress_type]
                raise _unsafe(root, member.filename, f"is compressed by {method}, not by deflate")
            yield member.filename, partial(open_entry, member), member.file_size


def _read_from_folder(path: Path, max_bytes: int) -> bytes:
    status = path.stat()
    # A symbolic link may lead to a device or a pipe, and reading that may never end.
    if not stat.S_ISREG(status.st_mode):
        raise OSError("is not a regular file (a device, a pipe or a folder)")
    _check_size(status.st_size, max_bytes)
    return path.read_bytes()


class _SparseEntryError(tarfile.TarError):
    """Raised for a tar archive with a sparse file."""


class TarEntry(tarfile.TarInfo):
    """Tar entry that raises errors for damage that the tarfile module ignores.

    At a damaged header, tarfile would end the archive. For an entry that claims to be huge, it
    would seek beyond the end of the file, and for a negative size back to an earlier entry. Long
    names and the maps of sparse files would be read into memory whatever their size.
    """

    @classmethod
    def frombuf(cls, buf: bytes, encoding: str, errors: str) -> tarfile.TarInfo:  # pyright: ignore
        """Parse a header, and refuse a negative size and a huge extended header."""
        entry = super().frombuf(buf, encoding, errors)
        if entry.size < 0 or (entry.type in LONG_HEADERS and entry.size > MAX_LONG_HEADER):
            raise tarfile.ReadError(f"a header of {entry.size} bytes")
        return entry

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> tarfile.TarInfo:  # pyright: ignore
        """Read the next header, and refuse a damaged one and one of a huge entry."""
        try:
            entry = super().fromtarfile(archive)
        except tarfile.EOFHeaderError:  # pyright: ignore[reportAttributeAccessIssue]  # untyped
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"{error} at byte {archive.offset}") from error
        if not 0 < archive.offset - entry.offset <= MAX_TAR_ENTRY:
            raise tarfile.ReadError(
                f"the archive claims an impossible entry of {entry.size} bytes at byte "
                f"{entry.offset}"
            )
        return entry

    def _refuse_sparse(self, *_: object) -> object:
        raise _SparseEntryError("an entry is a sparse file")

    # tarfile calls these methods to read the four formats of sparse files.
    _proc_sparse = _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _refuse_sparse


def _read_entry(opener: Callable[[], Any], size: int, max_bytes: int) -> bytes:
    """Read an entry of ``size`` bytes, which ``opener`` opens as a file."""
    _check_size(size, max_bytes)
    try:
        with opener() as file:
            return decompression.read_all(file)
    except (RuntimeError, *ARCHIVE_ERRORS) as error:  # RuntimeError: a zip entry is encrypted
        raise OSError(str(error)) from error


def _check_size(size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise OSError(f"is larger than {max_bytes >> 20} MiB")


def _safe_name(name: str, root: Path) -> str:
    """Normalise the name of an archive entry, and refuse paths outside of the archive."""
    if not name:
        raise ValueError("an entry has no name")
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or re.match("[A-Za-z]:", str(path)):
        raise _unsafe(root, name, "points out of the archive")
    return require_utf8(path.as_posix(), root)


def _unsafe(root: Path, name: str, problem: str) -> UserError:
    return UserError(
        f"the archive {root} is rejected because its entry {name!r} {problem}; pack it again "
        "without that entry"
    )
