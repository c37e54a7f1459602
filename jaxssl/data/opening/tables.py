"""Open data that a path names: arrays of NumPy, or a table of pictures and their labels."""

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jaxssl.data.decoders import decoding
from jaxssl.errors import UserError, one_line

IMAGE_KEYS = ("image", "img", "images", "pixels", "x")
LABEL_KEYS = ("label", "labels", "fine_label", "class", "y")
FILE_COLUMNS = ("file", "path", "file_name", "filename", "image_path", *IMAGE_KEYS)
SUFFIXES = (".npz", ".npy", ".csv", ".parquet")


@dataclass(frozen=True)
class PictureFile:
    """A picture that is read when it is needed.

    Attributes:
        name: for messages and listings.
        content: its path, or the bytes of the file.
    """

    name: str
    content: Path | bytes

    def tobytes(self) -> bytes:
        """Return the content of the file."""
        return self.content.read_bytes() if isinstance(self.content, Path) else self.content


def open_path(path: Path) -> Any:
    """Return the content of a file in a form that `in_memory.load_splits` takes.

    Args:
        path: .npy holds images. .npz holds arrays by name, such as "image" and "label". .csv and
            .parquet have a column of paths, which are relative to the file, and may have a column
            of labels. Any other file is a picture.

    Raises:
        UserError: if the file cannot be read.
    """
    suffix = path.suffix.lower()
    try:
        if suffix == ".npy":
            return np.load(path, mmap_mode="r", allow_pickle=False)
        if suffix == ".npz":
            with np.load(path, allow_pickle=False) as file:
                return dict(file)
        if suffix == ".csv":
            return from_columns(_read_csv(path), str(path), path.parent)
        if suffix == ".parquet":
            from pyarrow import parquet

            return from_columns(parquet.read_table(path).to_pydict(), str(path), path.parent)
    except UserError:
        raise
    except Exception as error:  # NumPy and pyarrow raise many exception types for damaged files.
        raise UserError(f"data={path} cannot be read ({one_line(error)})") from error
    if not suffix.endswith(decoding.SUFFIXES):
        raise UserError(
            f"data={path} is no file of data; expected a folder, an archive, a picture, or a file "
            f"ending in {', '.join(SUFFIXES)}"
        )
    return [path]


def from_columns(columns: Mapping[str, Iterable[Any]], name: str, folder: Path) -> dict[str, Any]:
    """Return {"image", "label"} of a table with a column of paths and perhaps one of labels.

    Args:
        columns: the columns by name, of a data frame for example.
        name: of the table, for messages.
        folder: paths of the table are relative to it.

    Raises:
        UserError: if no column holds paths.
    """
    image = next((key for key in FILE_COLUMNS if key in columns), None)
    if image is None:
        raise UserError(
            f"{name} has the columns {', '.join(map(str, columns))}; expected the paths of "
            f"pictures in one of {', '.join(FILE_COLUMNS)}"
        )
    label = next((key for key in LABEL_KEYS if key in columns), None)
    files = [folder / x if isinstance(x, str | Path) else x for x in columns[image]]
    rest = {key: values for key, values in columns.items() if key not in (image, label)}
    return {**rest, "image": files, **({} if label is None else {"label": list(columns[label])})}


def _read_csv(path: Path) -> dict[str, list[str | None]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file, strict=True)
        rows = list(reader)
    for number, row in enumerate(rows, 1):
        if None in row:  # DictReader puts additional columns under the key None.
            raise UserError(
                f"{path} has more columns in row {number} than in its header; quote names that "
                "contain a comma"
            )
    return {name: [row[name] or None for row in rows] for name in reader.fieldnames or ()}
