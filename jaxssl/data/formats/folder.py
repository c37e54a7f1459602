"""Data set of pictures in a folder or an archive: `data.name=folder data.path=PATH`.

The class of a picture is the folder that holds it. These layouts are understood:

    CLASS/picture.jpg           classes, a share of each becomes the split "test"
    SPLIT/CLASS/picture.jpg     the same with splits such as train and val
    picture.jpg                 no labels, or the labels of a CSV file

Folders around all pictures, such as the top folder of an archive, are skipped.
"""

import csv
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Unpack

import tensorflow_datasets as tfds
from ml_collections import ConfigDict

from jaxssl.data.decoders import decoding
from jaxssl.data.formats import _layout, user_files
from jaxssl.data.formats._layout import Layout, SplitOptions
from jaxssl.data.records import UNLABELLED
from jaxssl.errors import UserError, abbreviate


class Builder(_layout.Builder, skip_registration=True):
    """TFDS builder of pictures with class and file name.

    The metadata hold the pictures' size if all have the same, and the pictures left out.
    """

    name = "folder"

    def _info(self) -> tfds.core.DatasetInfo:
        channels = self.layout.channels
        image = tfds.features.Image(shape=(None, None, channels))
        metadata = {"shape": None, "skipped": [], "upright": True, "channels": channels}
        return self._describe(image, metadata)

    def _read(self, classes: Mapping[str, str]) -> Iterator[user_files.Checked]:
        wanted = (file for file in self.builder_config.source.read() if file[0] in classes)
        return user_files.read_checked(wanted, self.layout.channels)

    def _shape(self, sizes: set[tuple[int, int]]) -> list[int | None] | None:
        return [*next(iter(sizes)), self.layout.channels] if len(sizes) == 1 else None


def builder(data: ConfigDict, data_dir: str | None) -> tfds.core.DatasetBuilder:
    """Return the TFDS builder for the present files of a folder of pictures.

    Args:
        data: "path", "labels" (a CSV file), "test_fraction", "split_seed", "on_error" and
            "channels".
        data_dir: folder of prepared sets. None is TFDS' default.

    Raises:
        UserError: if the path does not exist, holds no pictures, or has an unknown layout.
    """
    # Configs of earlier versions lack this key.
    channels = data.get("channels") or user_files.CHANNELS
    if not 0 < channels <= decoding.MAX_CHANNELS:
        raise UserError(f"data.channels must be in [0, {decoding.MAX_CHANNELS}], got {channels}")
    expected = "a folder or an archive of pictures"
    source = user_files.locate(data, expected, decoding.suffixes(channels))
    labels = read_labels(data["labels"]) if data["labels"] else None
    split: SplitOptions = {"test_fraction": data["test_fraction"], "split_seed": data["split_seed"]}
    content = (*source.content, *split.values()), labels
    # Sets with RGB pictures keep the name from when RGB was the only choice.
    if channels != user_files.CHANNELS:
        content = (*content, channels)

    def make_layout() -> Layout:
        names = user_files.list_names(source)
        layout = arrange(names, source.path, channels, labels=labels, **split)
        user_files.log_left_out(layout.other, "not pictures")
        return layout

    return user_files.find_builder(Builder, source, content, data_dir, make_layout)


def arrange(
    names: Iterable[str],
    path: str,
    channels: int = user_files.CHANNELS,
    *,
    labels: Mapping[str, str] | None = None,
    **split: Unpack[SplitOptions],
) -> Layout:
    """Assign pictures to splits and classes by the names of the files below ``path``.

    Args:
        names: relative to ``path``, with slashes.
        path: for messages.
        channels: of the pictures, which give the endings of their names.
        labels: class of each picture by its name, instead of the folders.
        **split: see `SplitOptions`.

    Raises:
        UserError: without any pictures, or if the layout is not understood.
    """
    names, suffixes = sorted(names), decoding.suffixes(channels)
    pictures = [name for name in names if name.lower().endswith(suffixes)]
    other = tuple(name for name in names if not name.lower().endswith(suffixes))
    if not pictures:
        raise UserError(
            f"data.path={path} holds no pictures ({len(other)} other files); expected files "
            f"ending in {', '.join(suffixes)}"
        )
    splits, classes = _layout.assign(pictures, path, noun="pictures", labels=labels, **split)
    return Layout(splits, classes, other, channels=channels)


def read_labels(path: str) -> dict[str, str]:
    """Read a CSV file with the header "file,label", and return classes by names of pictures.

    Raises:
        UserError: if the file cannot be read or has another content.
    """
    try:
        text = Path(os.path.expanduser(path)).read_bytes().decode("utf-8-sig")
        columns, table = user_files.read_table(text, f"data.labels={path}")
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"data.labels={path} cannot be read as UTF-8 CSV: {error}") from error
    if not table or not {"file", "label"} <= set(columns):
        raise UserError(
            f"data.labels={path} must be a CSV file with rows below the header 'file,label'; its "
            f"first line is {','.join(columns)[:80]!r}, and {len(table)} rows follow"
        )
    rows = [(row["file"], (row["label"] or "").strip()) for row in table]
    for number, (name, label) in enumerate(rows, 1):
        if not name or not label:
            raise UserError(f"data.labels={path} lacks the file or the label in row {number}")
        if label == str(UNLABELLED):
            raise UserError(
                f"data.labels={path} has the label -1 in row {number}, which means no label; move "
                "pictures without a label out of the folder, or give the class another name"
            )
    counts = Counter(name for name, _ in rows)
    if repeated := sorted(name for name, count in counts.items() if count > 1):
        raise UserError(
            f"data.labels={path} names files twice: {abbreviate(repeated)}; keep one row of each"
        )
    return dict(rows)
