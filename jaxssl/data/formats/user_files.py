"""Read a user's files, and name the data sets prepared from them by a fingerprint.

The fingerprint is a hash of the settings, of the path, and of the files' names, sizes and
modification times, so that changed or moved files are prepared again. Sets prepared from earlier
files stay on disk next to the new ones.
"""

import csv
import dataclasses
import hashlib
import io
import logging
import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow_datasets as tfds
from ml_collections import ConfigDict
from tensorflow_datasets.core import constants

from jaxssl.components import Settings
from jaxssl.data import integrity
from jaxssl.data.decoders import decoding, files
from jaxssl.errors import UserError, abbreviate

log = logging.getLogger("jaxssl")
ON_ERROR = ("stop", "skip")
RULES_VERSION = 1  # Increase this number when the same files must be prepared differently.
GROUP = 2**18  # bytes of image files that a thread checks in one task
CHANNELS = 3


class UserFiles(NamedTuple):
    """The user's files that the config key `data.path` names.

    Attributes:
        path: as the user wrote it.
        root: the folder or archive.
        inside: folder inside the archive. "" is all of it.
        on_error: "stop" or "skip", for files that cannot be read.
        content: identifies the content of the files by its `repr`.
    """

    path: str
    root: Path
    inside: str
    on_error: str
    content: tuple[object, ...]

    def read(self, max_bytes: int = files.MAX_FILE) -> files.Files:
        """Iterate over the files below the path, see `files.read_files`."""
        return files.read_files(self.root, self.inside, max_bytes)


class Checked(NamedTuple):
    """An example of a user's files, which has been decoded once to find its size.

    Attributes:
        name: of the image file or the clip.
        content: bytes of the image file, or frames of the clip, uint8 [t, s, s, c].
        size: (height, width) of an image or (frames, side) of a clip. If the example cannot be
            read, the reason instead.
    """

    name: str
    content: Any
    size: tuple[int, int] | str


# TFDS warns of every configuration that the class of a builder does not list.
logging.getLogger("absl").addFilter(
    lambda record: not str(record.msg).startswith("Using custom data configuration")
)


@dataclasses.dataclass(kw_only=True)
class Config(tfds.core.BuilderConfig):
    """TFDS configuration of a user's data set. The name contains the fingerprint of the files.

    Attributes:
        source: the user's files.
        contents: a layout, or the captions of each image.
    """

    source: UserFiles
    contents: Any = dataclasses.field(repr=False)  # TFDS would log all of it.


class Builder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """Base class of the TFDS builders for users' files."""

    VERSION = tfds.core.Version("1.0.0")
    builder_config: Config  # pyright: ignore[reportIncompatibleMethodOverride]

    def _make_info(
        self, title: str, features: Settings, metadata: Settings, disable_shuffling: bool = False
    ) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description=f"{title} of {self.builder_config.source.root}",
            features=tfds.features.FeaturesDict(features),
            metadata=tfds.core.MetadataDict(metadata),
            disable_shuffling=disable_shuffling,
        )


def locate(data: ConfigDict, expected: str, suffixes: tuple[str, ...]) -> UserFiles:
    """Find the files that `data.path` names, and compute their fingerprint.

    Args:
        data: the group `config.data`.
        expected: the files that the path must hold, for the message about a missing path.
        suffixes: files with other endings do not change the fingerprint.

    Raises:
        UserError: if the path is empty or does not exist.
    """
    path = data["path"]
    if not path:
        raise UserError(f"data.name={data['name']!r} needs data.path: {expected}")
    root, inside = files.locate(path)
    content = RULES_VERSION, files.fingerprint(root, suffixes), inside, str(root.resolve())
    return UserFiles(path, root, inside, data["on_error"], content)


def list_names(source: UserFiles) -> list[str]:
    """List the names of all files of a user's data set.

    Raises:
        UserError: if the archive has no such folder.
    """
    names = [name for name, _ in source.read()]
    if source.inside and not names:
        raise UserError(
            f"data.path={source.path}: the archive {source.root} has no folder {source.inside!r}"
        )
    return names


def find_builder(
    builder: type[Builder],
    source: UserFiles,
    content: object,
    data_dir: str | None,
    make_contents: Callable[[], object],
) -> tfds.core.DatasetBuilder:
    """Return the TFDS builder of a user's data set, which may not be prepared yet.

    The name of the set consists of the path's last part and a fingerprint. The name of the format
    replaces a part that begins with a dot. If the set is prepared, the user's files are not read
    again.

    Args:
        builder: class of the format.
        source: the user's files.
        content: identifies files and settings by its `repr`.
        data_dir: folder of prepared sets. None is TFDS' default.
        make_contents: returns the contents for the `Config` of a set that is not prepared.
    """
    digest = hashlib.sha256(repr(content).encode()).hexdigest()[:16]
    stem = re.sub(r"[^A-Za-z0-9]+", "_", Path(source.path).name.partition(".")[0])[:64]
    name = f"{stem or builder.name}-{digest}"
    root = Path(os.path.expanduser(data_dir or constants.DATA_DIR))
    folder = root / builder.name / name / str(builder.VERSION)
    if folder.exists():
        with integrity.guard(folder):
            return tfds.builder_from_directory(folder)
    config = Config(name=name, source=source, contents=make_contents())
    return builder(data_dir=data_dir, config=config)


def log_left_out(names: Sequence[str], problem: str) -> None:
    """Log the user's files that are left out of a data set, if any."""
    if names:
        log.info("data       left out, %s: %s", problem, abbreviate(names))


def read_checked(pictures: files.Files, channels: int = CHANNELS) -> Iterator[Checked]:
    """Read image files and check in threads that they decode. The order does not change.

    Args:
        pictures: names, and functions that read the files.
        channels: number of channels to decode to.

    Yields:
        The images, each with the reason if it cannot be read or decoded.
    """

    def groups() -> Iterator[list[tuple[str, bytes, str]]]:
        group, size = [], 0
        for name, read in pictures:
            try:
                data, error = read(), ""
            except OSError as reason:
                data, error = b"", str(reason)
            group.append((name, data, error))
            size += len(data)
            if size > GROUP:
                yield group
                group, size = [], 0
        yield group

    def check(group: Sequence[tuple[str, bytes, str]]) -> list[Checked]:
        return [Checked(x, data, error or image_size(data, channels)) for x, data, error in group]

    threads = files.cpu_count()
    with ThreadPoolExecutor(threads) as pool:
        running = deque()
        for group in groups():
            running.append(pool.submit(check, group))
            if len(running) > threads:
                yield from running.popleft().result()
        while running:
            yield from running.popleft().result()


def image_size(data: bytes, channels: int = CHANNELS) -> tuple[int, int] | str:
    """Return height and width of a decoded image, or the reason why decoding fails."""
    if not data:
        return "is empty"
    try:
        picture = decoding.open_picture(data, channels, upright=True)
    except MemoryError:  # The picture may be a good one.
        raise
    except Exception as error:  # Pillow's decoders raise many exception types for damaged data.
        return str(error) or type(error).__name__
    return picture.height, picture.width


def read_table(text: str, where: str) -> tuple[list[str], list[dict[str, str]]]:
    """Read a CSV table with a header, and return the names of the columns and the rows.

    Raises:
        csv.Error: if a quote is not closed.
        UserError: if two columns have the same name, or a row has more columns than the header.
    """
    reader = csv.DictReader(io.StringIO(text.lstrip("\r\n"), newline=""), strict=True)
    names = list(reader.fieldnames or ())
    for name in names:
        if name and names.count(name) > 1:
            raise UserError(f"{where} has several columns {name!r}; rename or remove all but one")
    rows = list(reader)
    for number, row in enumerate(rows, 1):
        if reader.restkey in row:  # The row has more columns than the header.
            raise UserError(
                f"{where} has more columns in row {number} than in its header; quote names that "
                "contain a comma"
            )
    return names, rows


def report_unreadable(
    noun: str, path: object, reasons: Sequence[str], on_error: str = "stop"
) -> None:
    """Raise UserError for pictures or clips that cannot be read, or warn that they are left out.

    Args:
        noun: "pictures" or "clips".
        path: the folder or archive.
        reasons: for each one its name and the reason.
        on_error: "skip" only warns.
    """
    if not reasons:
        return
    examples = abbreviate(reasons)
    if on_error != "skip":
        raise UserError(
            f"{len(reasons)} of the {noun} in {path} cannot be read ({examples}); repair or remove "
            "them, or leave them out by --config.data.on_error=skip (--on_error skip of "
            "jaxssl embed, on_error='skip' in Python)"
        )
    log.warning("data       %d unreadable %s are left out: %s", len(reasons), noun, examples)
