"""Pictures with captions as a data set: `data.name=captions data.path=PATH`.

The path is a folder or an archive of pictures with a table `captions.csv` or `captions.txt` in it,
of lines "image,caption" below a header that names these columns; a picture may have several lines.
`data.labels` names another table.
"""

import csv
import dataclasses
import io
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import tensorflow_datasets as tfds

from jaxssl.data import decoding, files, tokens
from jaxssl.data.formats import _versions as versions
from jaxssl.data.formats import folder
from jaxssl.errors import UserError, printable

NAMES = ("captions.csv", "captions.txt", "captions.tsv")
FEATURES = ("captions", "caption")  # of prepared sets, ours and those of TFDS
IMAGE_COLUMNS = ("image", "file", "filename", "image_name")
CAPTION_COLUMNS = ("caption", "text", "comment")
MOST = 5  # captions of a picture that are used; COCO's protocol takes as many
RULES = 1  # counts up when the same folder would be prepared in another way


@dataclasses.dataclass
class Config(tfds.core.BuilderConfig):
    """One folder in one state; its name holds a fingerprint of both."""

    root: Path = Path()
    inside: str = ""
    texts: dict[str, list[str]] = dataclasses.field(default_factory=dict, repr=False)
    on_error: str = "stop"


class Builder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """Pictures as they are in their files with their captions, sorted by name."""

    name = "captions"
    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> tfds.core.DatasetInfo:
        features = {
            "image": tfds.features.Image(shape=(None, None, 3)),
            "captions": tfds.features.Sequence(tfds.features.Text()),
            "file": tfds.features.Text(),
        }
        return tfds.core.DatasetInfo(
            builder=self,
            description=f"Pictures and captions of {self.builder_config.root}",
            features=tfds.features.FeaturesDict(features),
            metadata=tfds.core.MetadataDict({"shape": None, "skipped": [], "upright": True}),
            disable_shuffling=True,
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        del dl_manager
        return {"train": self._generate_examples()}

    def _generate_examples(self) -> Iterator[tuple[int, dict[str, Any]]]:
        config, metadata = self.builder_config, self.info.metadata
        every = files.read_all(config.root, config.inside)
        wanted = (item for item in every if item[0] in config.texts)
        found, sizes = {}, set()
        for name, data, size in folder.checked(wanted):
            if isinstance(size, str):
                metadata["skipped"].append(f"{name}: {size}")
                continue
            sizes.add(size)
            found[name] = data
        if metadata["skipped"] and (config.on_error == "stop" or not found):
            raise UserError(folder.unreadable(config.root, metadata["skipped"]))
        metadata["shape"] = [*sizes.pop(), 3] if len(sizes) == 1 else None
        for place, name in enumerate(sorted(found)):
            yield place, {"image": found[name], "captions": config.texts[name], "file": name}


def builder(data: Mapping[str, Any], data_dir: str | None) -> tfds.core.DatasetBuilder:
    """The builder of a folder in its present state, which its name holds a fingerprint of.

    Args:
        data: "path", see above; "labels", another table; "on_error".
        data_dir: where prepared sets lie; None is TFDS' own place.

    Raises:
        UserError: if there is no such folder or table, or they do not fit.
    """
    path, on_error = data["path"], data["on_error"]
    if not path:
        raise UserError("data.name='captions' needs data.path: a folder or archive of pictures")
    versions.check_on_error(on_error)
    root, inside = files.locate(path)
    stamp = files.stamp(root, (*decoding.SUFFIXES, *(Path(name).suffix for name in NAMES)))
    table = _table_of(data["labels"]) if data["labels"] else None
    state = RULES, stamp, inside, str(root.resolve()), table
    name = versions.name_of(path, state, "captions")
    if found := versions.prepared(Builder, name, data_dir):
        return found
    config = Config(name, root=root, inside=inside, on_error=on_error)
    names = []
    for file, read in files.read_all(root, inside):
        if file.lower().endswith(decoding.SUFFIXES):
            names.append(file)
        elif table is None and PurePosixPath(file).name in NAMES:
            table = _read(read, file)
    if table is None:
        raise UserError(
            f"data.path={path} has no table of captions ({', '.join(NAMES)}); name one with "
            "data.labels"
        )
    config.texts = _matched(parse(table, data["labels"] or path), names, path)
    return Builder(data_dir=data_dir, config=config)


def parse(table: str, path: str) -> dict[str, list[str]]:
    """The captions of each picture, from a table with a header.

    Raises:
        UserError: if it lacks a column, or a line the picture or its caption.
    """
    head = table.partition("\n")[0]
    separator = "\t" if "\t" in head else ","
    reader = csv.DictReader(io.StringIO(table, newline=""), delimiter=separator)
    try:
        columns = [name.strip().lower() for name in reader.fieldnames or ()]
        rows = [(reader.line_num, row) for row in reader]
    except csv.Error as error:  # of a quote that is never closed
        raise UserError(f"the captions of {path} cannot be read: {error}") from error
    image, caption = (
        next((place for place, name in enumerate(columns) if name in known), None)
        for known in (IMAGE_COLUMNS, CAPTION_COLUMNS)
    )
    if image is None or caption is None:
        raise UserError(
            f"the captions of {path} must be a table whose header names the columns 'image' and "
            f"'caption'; its first line is {printable(head)}"
        )
    texts: dict[str, list[str]] = {}
    for place, row in rows:
        if None in row:  # where what is beyond the columns is put
            raise UserError(
                f"line {place} of the captions of {path} has more columns than the header; put a "
                f"caption that holds {separator!r} in quotes"
            )
        values = [(row[name] or "").strip() for name in reader.fieldnames]
        if not values[image] or not values[caption]:
            raise UserError(f"line {place} of the captions of {path} lacks a picture or a caption")
        texts.setdefault(values[image], []).append(values[caption])
    if not texts:
        raise UserError(f"the captions of {path} are a header without lines")
    return texts


class Captions(NamedTuple):
    """Reads the captions of a record.

    Attributes:
        feature: its name.
        context: tokens of a caption.
    """

    feature: str
    context: int

    def __call__(self, record: Mapping[str, Any]) -> np.ndarray:
        """[`MOST`, context] int32; of fewer captions the first ones once more."""
        found = record[self.feature]
        if isinstance(found, Mapping):  # COCO's have an id as well
            found = found["text"]
        if isinstance(found, str | bytes):
            found = [found]
        texts = [x.decode() if isinstance(x, bytes) else str(x) for x in found]
        if not texts:
            raise UserError("a picture has no caption; leave it out")
        return tokens.tokenize([texts[i % len(texts)] for i in range(MOST)], self.context)


def _matched(texts: dict[str, list[str]], names: list[str], path: str) -> dict[str, list[str]]:
    """Captions by the pictures' paths, which the table may name without their folders."""
    by_name: dict[str, list[str]] = {}
    for name in names:
        by_name.setdefault(PurePosixPath(name).name, []).append(name)
    known = set(names)
    found = {n: [n] if n in known else by_name.get(PurePosixPath(n).name, []) for n in texts}
    missing = sorted(name for name, at in found.items() if not at)
    if missing:
        raise UserError(
            f"the captions name {len(missing)} pictures that data.path={path} does not hold: "
            f"{folder.some(missing)}"
        )
    matched: dict[str, list[str]] = {}
    for name, at in found.items():
        if len(at) > 1:
            raise UserError(
                f"the captions name {printable(name)}, which may be any of {folder.some(at)} in "
                f"data.path={path}; name it with its folder"
            )
        matched.setdefault(at[0], []).extend(texts[name])
    return matched


def _table_of(path: str) -> str:
    return _read(Path(path).expanduser().read_bytes, path)


def _read(read: Any, name: str) -> str:
    try:
        return read().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the captions {name} cannot be read: {error}") from error
