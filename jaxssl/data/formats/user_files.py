"""Name prepared data sets by a fingerprint of the user's files, to prepare changed files again.

The name of a prepared set contains a fingerprint of the files and of the settings. Sets prepared
from earlier content stay on disk beside it.
"""

import dataclasses
import hashlib
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow_datasets as tfds
from tensorflow_datasets.core import constants

from jaxssl.data import integrity
from jaxssl.data.decoders import files
from jaxssl.errors import UserError, printable, suggest

log = logging.getLogger("jaxssl")
ON_ERROR = ("stop", "skip")
RULES_VERSION = 1  # Increase this number when the same files must be prepared differently.
MAX_NAMED = 3  # number of files that an error message names


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
    content: tuple[Any, ...]


@dataclasses.dataclass
class Config(tfds.core.BuilderConfig):
    """TFDS configuration of a user's data set. Its name holds the fingerprint of the files.

    Attributes:
        root: the folder or archive.
        inside: folder inside the archive. "" is all of it.
        on_error: "stop" or "skip", for files that cannot be read.
        contents: a layout, or the captions of each image.
        frame_size: largest side of the frames of a clip.
        channels: of pictures.
    """

    root: Path = Path()
    inside: str = ""
    on_error: str = "stop"
    contents: Any = dataclasses.field(
        default=None, repr=False
    )  # With repr=True, TFDS would log all file contents.
    frame_size: int = 0
    channels: int = 3


def locate(data: Mapping[str, Any], expected: str, suffixes: tuple[str, ...]) -> UserFiles:
    """Find the files that `data.path` names, and compute their fingerprint.

    Args:
        data: the group `config.data`.
        expected: the files that the path must hold, for the message if there is no path.
        suffixes: files with other endings do not change the fingerprint.

    Raises:
        UserError: if the path is empty or does not exist, or `data.on_error` is unknown.
    """
    path, on_error = data["path"], data["on_error"]
    if not path:
        raise UserError(f"data.name={data['name']!r} needs data.path: {expected}")
    if on_error not in ON_ERROR:
        raise UserError(f"data.on_error={on_error!r} is unknown{suggest(on_error, ON_ERROR)}")
    root, inside = files.locate(path)
    content = RULES_VERSION, files.fingerprint(root, suffixes), inside, str(root.resolve())
    return UserFiles(path, root, inside, on_error, content)


def list_names(source: UserFiles) -> list[str]:
    """List the names of all files of a user's data set.

    Raises:
        UserError: if the archive has no such folder.
    """
    names = [name for name, _ in files.read_files(source.root, source.inside)]
    if source.inside and not names:
        raise UserError(
            f"data.path={source.path}: the archive {source.root} has no folder {source.inside!r}"
        )
    return names


def find_prepared(
    builder: type[tfds.core.DatasetBuilder],
    source: UserFiles,
    content: Any,
    data_dir: str | None,
    *,
    default: str,
) -> tuple[Config, tfds.core.DatasetBuilder | None]:
    """Return the configuration of a user's data set, and its builder if it is prepared.

    The name consists of the path's last part and a fingerprint. If the set is prepared, the user's
    files are not read again.

    Args:
        builder: class of the format.
        source: the user's files.
        content: identifies files and settings by its `repr`.
        data_dir: folder of prepared sets. None is TFDS' default.
        default: replaces the path's last part if it has no letters or digits.
    """
    digest = hashlib.sha256(repr(content).encode()).hexdigest()[:16]
    stem = re.sub(r"[^A-Za-z0-9]+", "_", Path(source.path).name.partition(".")[0])[:64] or default
    config = Config(f"{stem}-{digest}", root=source.root, inside=source.inside)
    config.on_error = source.on_error
    root = Path(data_dir or constants.DATA_DIR).expanduser()
    folder = root / builder.name / config.name / str(builder.VERSION)
    if not folder.exists():
        return config, None
    with integrity.guard(folder):
        return config, tfds.builder_from_directory(folder)


def abbreviate(items: Sequence[str]) -> str:
    """List the first items of a collection and the number of the others, for messages."""
    more = f" and {len(items) - MAX_NAMED} more" if len(items) > MAX_NAMED else ""
    return ", ".join(map(printable, items[:MAX_NAMED])) + more


def warn_of_skipped(noun: str, reasons: Sequence[str]) -> None:
    """Log the pictures or clips that are left out, see `unreadable`."""
    examples = abbreviate(reasons)
    log.warning("data       %d unreadable %s are left out: %s", len(reasons), noun, examples)


def unreadable(noun: str, path: Any, reasons: Sequence[str]) -> UserError:
    """Return the error for unreadable pictures or clips.

    Args:
        noun: "pictures" or "clips".
        path: the folder or archive.
        reasons: for each one its name and the reason.
    """
    return UserError(
        f"{len(reasons)} of the {noun} in {path} cannot be read ({abbreviate(reasons)}); repair or "
        "remove them, or leave them out with on_error=skip"
    )
