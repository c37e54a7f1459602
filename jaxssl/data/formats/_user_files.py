"""Sets made of a user's own files: each state of them is prepared once, under its own name."""

import hashlib
import re
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds

from jaxssl.data import dataset_info
from jaxssl.errors import UserError, suggest

ON_ERROR = ("stop", "skip")


def name_of(path: str, state: Any, otherwise: str) -> str:
    """The name of files in one state: that of the path, or ``otherwise``, and a fingerprint.

    Args:
        path: as the user wrote it.
        state: what tells one state from another, by its `repr`.
        otherwise: the name where the path has no letters or digits.
    """
    digest = hashlib.sha256(repr(state).encode()).hexdigest()[:16]
    stem = re.sub(r"[^A-Za-z0-9]+", "_", Path(path).name.partition(".")[0])[:64] or otherwise
    return f"{stem}-{digest}"


def prepared(
    builder: type[tfds.core.DatasetBuilder], name: str, data_dir: str | None
) -> tfds.core.DatasetBuilder | None:
    """The set of that name if it has been prepared: its files need not be looked through again.

    Args:
        builder: the kind of set.
        name: of the files' state, from `name_of`.
        data_dir: where prepared sets lie; None is TFDS' own place.
    """
    whole = Path(data_dir or tfds.core.constants.DATA_DIR).expanduser()
    done = whole / builder.name / name / str(builder.VERSION)
    if not done.exists():
        return None
    with dataset_info.reading(done):
        return tfds.builder_from_directory(done)


def check_on_error(on_error: str) -> None:
    """Raise UserError for what `data.on_error` may not be."""
    if on_error not in ON_ERROR:
        raise UserError(f"data.on_error={on_error!r} is unknown{suggest(on_error, ON_ERROR)}")
