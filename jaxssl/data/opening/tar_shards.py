"""Pictures in tar shards, as WebDataset writes them: `data.name=tar_shards data.path=FOLDER`.

The shards are read where they are, at the offsets of an index, so that a batch depends on the seed
and its number alone. The index is built once, from the headers, and stored in `data.dir`.
"""

import contextlib
import functools
import hashlib
import logging
import os
import re
import tarfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict
from tensorflow_datasets.core import constants

from jaxssl.buckets import is_bucket
from jaxssl.data.decoders import arrays, decoding, files
from jaxssl.data.opening.items import PictureFile
from jaxssl.data.records import UNLABELLED
from jaxssl.errors import UserError

log = logging.getLogger("jaxssl")
NAME = "tar_shards"
# A split is a word in the path of its shards, such as train/000.tar or imagenet-val-000.tar.
SPLIT = re.compile(r"(?<![a-z])(train|test|val|validation)(?![a-z])")
VERSION = 4  # of the format of the index
LABEL = ".cls"
MAX_LABEL = 2**10  # size limit of a label's text in bytes
OPEN_FILES = 256
SCANS = 16  # number of shards that are scanned for headers at the same time


class Index(NamedTuple):
    """Where the pictures of the shards are. The arrays have one row for each picture.

    Attributes:
        shard: int32 [n], position of the shard among the sorted paths.
        offset: int64 [n], first byte of the picture in the shard.
        size: int64 [n], number of bytes.
        label: [n] text of the .cls file, "" for pictures without one, or int32 if all are numbers.
    """

    shard: np.ndarray
    offset: np.ndarray
    size: np.ndarray
    label: np.ndarray


@dataclass(frozen=True)
class TarShards(Sequence):
    """Sequence of the pictures in tar shards, each read at its byte offset.

    Attributes:
        paths: the shards.
        pictures: where they are in the shards.
    """

    paths: tuple[Path, ...]
    pictures: Index

    def __len__(self) -> int:
        """Return the number of pictures."""
        return len(self.pictures.offset)

    def __getitem__(self, index: int) -> PictureFile:  # pyright: ignore
        """Return the image file of a picture."""
        path = self.paths[self.pictures.shard[index]]
        offset, size = int(self.pictures.offset[index]), int(self.pictures.size[index])
        try:
            content = _open(path).read(offset, size)
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error}; copy or download it again") from error
        if len(content) < size:
            raise UserError(f"{path} ends before picture {index}; copy or download it again")
        return PictureFile(f"byte {offset} of {path}", content)


class _File:
    """A file open for reading, which is closed when Python deletes the object."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __del__(self) -> None:
        os.close(self._number)

    def read(self, offset: int, size: int) -> bytes:
        """Read bytes. The call refers to the object, so other threads cannot close the file."""
        return os.pread(self._number, size, offset)


@functools.lru_cache(OPEN_FILES)
def _open(path: Path) -> _File:
    return _File(os.open(path, os.O_RDONLY))


def load(data: ConfigDict) -> dict[str, tuple[TarShards, np.ndarray]]:
    """Return pictures and labels of the splits, in a form that `in_memory.load_splits` takes.

    Pictures with the same name up to the first dot as a .cls file in their shard have its text as
    label, a number or a name. Other files are ignored. Without splits in the names of the shards,
    all pictures are of "train".

    Args:
        data: the group `config.data`. "path" is the folder of the shards, "dir" the folder for the
            index.

    Raises:
        UserError: if the folder has no shards, their names give no valid splits, a shard is
            damaged, or no shard has pictures.
    """
    root = Path(os.path.expanduser(data["path"]))
    if not data["path"] or not root.is_dir():
        raise UserError(f"data.path={data['path']!r} must be the folder of the .tar files")
    if is_bucket(data["dir"]):
        raise UserError(f"data.dir={data['dir']}: the index of tar shards is stored on disk only")
    paths = tuple(root / name for name in files.list_folder(root) if name.lower().endswith(".tar"))
    if not paths:
        raise UserError(
            f"data.path={root} holds no .tar files; unpack shards that are compressed as a whole, "
            "such as .tar.gz"
        )
    split_of = np.array(_find_splits(root, paths))
    _open.cache_clear()  # Open files may have been replaced under the same names.
    folder = Path(os.path.expanduser(data["dir"] or constants.DATA_DIR))
    index = _find_index(root, paths, folder)
    splits = {}
    for split in np.unique(split_of).tolist():
        in_split = split_of[index.shard] == split
        part = Index(*(column[in_split] for column in index))
        splits[split] = TarShards(paths, part), part.label
    return splits


def _find_splits(root: Path, paths: tuple[Path, ...]) -> list[str]:
    """Return the split of each shard, "train" or "test", by the words in its path."""
    words = []
    for path in paths:
        names = set(SPLIT.findall(path.relative_to(root).as_posix().lower()))
        if len(names) > 1:
            raise UserError(
                f"the path of the shard {path.relative_to(root)} in data.path={root} names "
                f"{' and '.join(sorted(names))}; rename it so that it names one split"
            )
        words.append("".join(names))
    named = sorted(set(words) - {""})
    if not named:
        return ["train"] * len(paths)
    if "" in words or "train" not in named or len(named) > 2:
        raise UserError(
            f"the shards of data.path={root} name {', '.join(named)}"
            f"{', some of them no split' if '' in words else ''}; expected 'train' and at most one "
            "of 'test', 'val' and 'validation' in the path of each shard, or none"
        )
    return ["train" if word == "train" else "test" for word in words]


def _find_index(root: Path, paths: tuple[Path, ...], folder: Path) -> Index:
    """Load the index of the pictures in tar shards, or build and cache it."""
    content = f"{VERSION}\0{root.resolve()}\0{files.fingerprint(root, ('.tar',))}"
    path = folder / NAME / f"{hashlib.sha256(content.encode()).hexdigest()[:16]}.npz"
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return Index(*(stored[name] for name in Index._fields))
    except (OSError, KeyError, RuntimeError, *files.ARCHIVE_ERRORS):
        pass  # The index is missing or damaged.
    log.info("data       reading the headers of %d shards once, for %s", len(paths), path)
    with ThreadPoolExecutor(SCANS) as pool:
        indexes = list(pool.map(_scan, range(len(paths)), paths))
    index = Index(*(np.concatenate(column) for column in zip(*indexes, strict=True)))
    if not len(index.shard):
        raise UserError(
            f"the shards in data.path={root} hold no pictures; expected files ending in "
            f"{', '.join(decoding.SUFFIXES)}"
        )
    present = index.label[~np.isin(index.label, ("", str(UNLABELLED)))]
    if np.char.isdecimal(present).all():
        label = np.where(index.label == "", str(UNLABELLED), index.label)
        with contextlib.suppress(OverflowError):  # Numbers beyond int32 stay class names.
            index = index._replace(label=label.astype(np.int32))
    with contextlib.suppress(OSError):  # `write_cache` warns with the reason.
        path.parent.mkdir(parents=True, exist_ok=True)
    arrays.write_cache(path, lambda file: np.savez(file, **index._asdict()))
    return index


def _scan(number: int, path: Path) -> Index:
    """Read the headers of the shard with this number, and the texts of its labels."""
    labels, pictures, samples = {}, [], set()
    try:
        shard_size = path.stat().st_size
        # Without "r:", tarfile would unpack a compressed shard.
        with tarfile.open(path, "r:", tarinfo=files.TarEntry) as archive:
            for member in archive:
                archive.members.clear()  # pyright: ignore  # tarfile would keep all entries
                end = member.offset_data + member.size
                if end > shard_size:
                    raise tarfile.ReadError(f"{member.name} is cut off")
                folder, name = os.path.split(member.name)
                parts = member.name.split("/")
                key = os.path.join(folder, name.partition(".")[0])
                if any(part[:1] == "." != part or part == "__MACOSX" for part in parts):
                    continue  # hidden files and folders
                is_read = name.lower().endswith((LABEL, *decoding.SUFFIXES))
                if member.issym() or (member.islnk() and is_read):
                    raise UserError(
                        f"{path}: {member.name} is a link; pack files with tar's options "
                        "--dereference --hard-dereference"
                    )
                if not member.isfile():
                    continue
                if name.lower().endswith(LABEL):
                    if member.size > MAX_LABEL:
                        raise UserError(
                            f"{path}: the label {member.name} has {member.size} bytes, and "
                            f"{MAX_LABEL} are allowed; shorten it"
                        )
                    text = _open(path).read(member.offset_data, member.size)
                    if labels.setdefault(key, text) != text:
                        raise UserError(
                            f"{path}: {key} has several labels; names end at the first dot, so "
                            f"give each picture one file {LABEL}"
                        )
                elif name.lower().endswith(decoding.SUFFIXES):
                    if key in samples:
                        raise UserError(
                            f"{path}: the sample {key} has several pictures, which could be in "
                            "training and test data; pack one picture for each sample"
                        )
                    samples.add(key)
                    pictures.append((member.offset_data, member.size, key))
    except (*files.ARCHIVE_ERRORS, OSError) as error:
        raise UserError(f"{path} cannot be read: {error}; copy or download it again") from error
    # Names in other encodings than UTF-8 stay distinct.
    texts = [labels.get(key, b"").decode(errors="backslashreplace").strip() for *_, key in pictures]
    offset, size = np.array([picture[:2] for picture in pictures], np.int64).reshape(-1, 2).T
    return Index(np.full(len(pictures), number, np.int32), offset, size, np.array(texts, np.str_))
