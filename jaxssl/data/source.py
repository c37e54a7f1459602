"""Splits of prepared data sets, read by index."""

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow_datasets as tfds

from jaxssl.data import described, files, kept, pictures, prepare
from jaxssl.errors import UserError, line, nearest

log = logging.getLogger("jaxssl")
IN_MEMORY = 2**32  # bytes of decoded images that are kept; more are decoded each time
BLOCK = 256  # records read at a time
SMALL = 64  # pixels; threads decoding smaller images would only wait for Python's lock
UNLABELLED = -1

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Part:
    """A named split as it was prepared.

    Attributes:
        records: random access to dicts of features.
        image: the feature that is the picture: a file's bytes, or uint8 [h, w, c].
        label: the feature that is the label; None if there is none.
        channels: of the pictures.
        num_classes: the labels are below it.
        upright: whether pictures are turned as their EXIF data say.
        keep: beginning of the paths of arrays kept beside the records; None keeps none.
    """

    records: Sequence[Record]
    image: str = "image"
    label: str | None = "label"
    channels: int = 3
    num_classes: int = 2**31
    upright: bool = False
    keep: Path | None = None

    def get(self, places: Sequence[int]) -> list[Record]:
        """Some of the records; those of a file are read together."""
        places = [int(place) for place in places]
        try:
            if hasattr(self.records, "__getitems__"):
                return list(self.records.__getitems__(places))
            return [self.records[place] for place in places]
        except Exception as error:  # of many kinds, for a damaged file
            where = self.keep or "a data set"
            raise UserError(
                f"records of {where} cannot be read ({line(error)}); prepare or copy the set again"
            ) from error

    def label_of(self, record: Record) -> int:
        """The label, or `UNLABELLED`.

        Raises:
            UserError: if there is no such class.
        """
        if self.label is None:
            return UNLABELLED
        label = int(record[self.label])
        if not UNLABELLED <= label < self.num_classes:
            raise UserError(f"records of {self.keep} have the label {label} of {self.num_classes}")
        return label

    def picture_of(self, record: Record) -> Any:
        """The decoded picture, as Pillow has it."""
        found = record[self.image]
        if isinstance(found, np.ndarray):
            return pictures.from_pixels(found)
        return pictures.open_picture(found, self.channels, upright=self.upright)


class Example(NamedTuple):
    """A decoded example."""

    picture: Any
    label: int


@dataclass(frozen=True)
class Source:
    """One split of a data set, made of parts in a fixed order.

    Attributes:
        name: of the data set.
        split: as it was asked for, such as "train[:10%]+test".
        parts: each a prepared split, and which of its records belong here.
        class_names: names of the labels; () if there are none.
        shape: [h, w, c] of the images; h and w are None if they differ from image to image.
        relabel: new label of each old one, -1 for those left out; None changes nothing.
    """

    name: str
    split: str
    parts: tuple[tuple[Part, np.ndarray], ...]
    class_names: tuple[str, ...]
    shape: tuple[int | None, int | None, int]
    relabel: np.ndarray | None = None

    def __len__(self) -> int:
        """How many examples the split has."""
        return sum(len(places) for _, places in self.parts)

    def describe(self) -> str:
        """For the start-up summary."""
        size = "many sizes" if not self.one_size else "x".join(map(str, self.shape))
        classes = f"{self.num_classes} classes" if self.labelled else "no labels"
        return f"{self.name}, {self.split}: {len(self)} images of {size}, {classes}"

    @property
    def num_classes(self) -> int:
        """How many labels there are."""
        return len(self.class_names)

    @property
    def one_size(self) -> bool:
        """Whether all images have the same height and width."""
        return None not in self.shape

    @cached_property
    def labelled(self) -> bool:
        """Whether there are labels, judged by the first example of every part."""
        return bool(self.class_names) and all(
            part.label_of(part.get(places[:1])[0]) != UNLABELLED
            for part, places in self.parts
            if len(places)
        )

    @cached_property
    def labels(self) -> np.ndarray:
        """[n] int32; -1 is unlabelled."""
        if not self.class_names:
            return np.full(len(self), UNLABELLED, np.int32)
        found = [_all_labels(part)[places] for part, places in self.parts]
        return self._renumbered(np.concatenate(found))

    def take(self, places: np.ndarray) -> "Source":
        """The examples at ``places`` [k] only, in the order of this split, each once."""
        places, parts, first = np.unique(places), [], 0
        for part, members in self.parts:
            here = places[(places >= first) & (places < first + len(members))] - first
            parts.append((part, members[here]))
            first += len(members)
        return replace(self, parts=tuple(parts))

    def read(self, places: np.ndarray) -> list[Example]:
        """Examples at places [k] of this split, decoded."""
        out: list[Any] = [None] * len(places)
        first = 0
        for part, members in self.parts:
            here = np.flatnonzero((places >= first) & (places < first + len(members)))
            records = part.get(members[places[here] - first])
            for i, record in zip(here, records, strict=True):
                label = int(self._renumbered(np.int32(part.label_of(record))))
                try:
                    out[i] = Example(part.picture_of(record), label)
                except Exception as error:  # Pillow's decoders raise all sorts
                    raise UserError(
                        f"image {places[i]} of {self.name!r} cannot be decoded ({error}); "
                        "prepare the set again"
                    ) from error
            first += len(members)
        return out

    def shape_at(self, size: int) -> tuple[int, int, int]:
        """[h, w, c] of the images, those of many sizes cut to ``size``."""
        return self.shape if self.one_size else (size, size, self.shape[2])

    def images(self, size: int) -> "np.ndarray | Images":
        """All images as [n, h, w, c] uint8; if they are too many, a stand-in that decodes slices.

        Args:
            size: pixels a side that images of many sizes are cut to, see `pictures.centre`; those
                of one size stay as they are.
        """
        shape = self.shape_at(size)
        if len(self) * math.prod(shape) > IN_MEMORY:
            return Images(self, shape)
        if sum(len(part.records) for part, _ in self.parts) * math.prod(shape) > IN_MEMORY:
            return Images(self, shape)[:]  # a few of too many to keep

        def decode(part: Part) -> np.ndarray:
            whole = replace(self, parts=((part, np.arange(len(part.records))),))
            return Images(whole, shape)[:]

        what = "x".join(map(str, shape[:2]))
        found = []
        for part, places in self.parts:
            whole = _kept(part, what, shape, np.uint8, partial(decode, part))
            found.append(whole if len(places) == len(whole) else whole[places])
        return found[0] if len(found) == 1 else np.concatenate(found)

    def _renumbered(self, labels: np.ndarray) -> np.ndarray:
        if self.relabel is not None:
            labels = np.where(labels < 0, UNLABELLED, self.relabel[labels])
        return labels.astype(np.int32)


class Images:
    """The images of a source as an array [n, h, w, c] that decodes what it is asked for."""

    def __init__(self, source: Source, shape: tuple[int, int, int]) -> None:
        self._source = source
        self.shape = (len(source), *shape)

    def __len__(self) -> int:
        """How many images there are."""
        return self.shape[0]

    def __getitem__(self, key: Any) -> np.ndarray:
        """A slice, or the images at an array of places."""
        places = np.arange(len(self))[key]
        out = np.empty((places.size, *self.shape[1:]), np.uint8)
        whole, size = self._source.one_size, self.shape[1]
        threads = 1 if out.shape[1] <= SMALL else files.cores()
        rows = min(BLOCK, -(-len(out) // threads))

        def fill(first: int) -> None:
            block = slice(first, first + rows)
            for i, example in enumerate(self._source.read(places.ravel()[block]), first):
                picture = example.picture
                out[i] = pictures.pixels(picture) if whole else pictures.centre(picture, size)

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(fill, range(0, len(out), rows or 1)))
        return out.reshape(*places.shape, *self.shape[1:])


class Splits(NamedTuple):
    """The splits of a run.

    Attributes:
        train: what is trained on.
        bank: labelled images that evaluation learns from; often the same.
        test: images that evaluation predicts.
    """

    train: Source
    bank: Source
    test: Source

    @property
    def labelled(self) -> bool:
        """Whether evaluation has the labels that it needs."""
        return self.bank.labelled and self.test.labelled


def load_splits(data: Mapping[str, Any]) -> Splits:
    """The splits that `config.data` names.

    Raises:
        UserError: as `load`.
    """
    builder = prepare.prepared(data)
    train, test = (_open(builder, data, data[f"{which}_split"]) for which in ("train", "test"))
    bank = _open(builder, data, data["bank_split"]) if data["bank_split"] else train
    return Splits(train, bank, test)


def load(data: Mapping[str, Any], split: str) -> Source:
    """Open a split; prepare the data set first (as ArrayRecord) where that was not done yet.

    Args:
        data: the group `config.data`.
        split: such as "train", "train[:10%]" or "train+unlabelled".

    Raises:
        UserError: on an unknown name or split, a set that cannot be prepared or read, or a list of
            classes that does not fit it.
    """
    return _open(prepare.prepared(data), data, split)


def _open(builder: Any, data: Mapping[str, Any], split: str) -> Source:
    info, root = builder.info, Path(builder.data_dir)
    with described.reading(root):
        image, label = _features(data["name"], info.features)
        metadata = dict(info.metadata or {})
        shape = described.shape(root, metadata.get("shape") or info.features[image].shape)
        names = tuple(info.features[label].names) if label else ()

    def part(name: str) -> Part:
        decoders = {image: tfds.decode.SkipDecoding()}
        records = builder.as_data_source(name, decoders=decoders, file_format=prepare.FORMAT)
        described.check_records(root, name, info.splits[name].num_examples)
        upright = bool(metadata.get("upright"))
        return Part(records, image, label, shape[2], len(names), upright, root / name)

    with described.reading(root):
        places = _places(data["name"], split, info)
        parts = tuple((part(name), at) for name, at in places)
    name = Path(data["path"]).name if data["name"] == "folder" else data["name"]
    source = Source(name, split, parts, names, shape)
    classes = data["classes"] or prepare.CLASSES.get(data["name"])
    if classes:
        source = _only(source, read_classes(Path(classes).expanduser()), classes)
    if not len(source):
        raise UserError(f"split {split!r} of {data['name']!r} has no examples")
    return source


def read_classes(path: Path) -> list[str]:
    """The classes of a text file: one a line, up to a tab; lines that begin with # are comments.

    Raises:
        UserError: if it cannot be read, or holds no class or one twice.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"data.classes={path} cannot be read: {error}") from error
    names = [line.split("\t")[0].strip() for line in lines]
    names = [name for name in names if name and not name.startswith("#")]
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if not names or repeated:
        what = f"names {repeated[0]!r} twice" if repeated else "names no class"
        raise UserError(f"data.classes={path} {what}; expected one class a line, each once")
    return names


def _features(name: str, features: Any) -> tuple[str, str | None]:
    """The features that are the picture and the label."""
    images = [key for key, f in features.items() if isinstance(f, tfds.features.Image)]
    labels = [key for key, f in features.items() if isinstance(f, tfds.features.ClassLabel)]
    if not images:
        raise UserError(f"{name!r} has no feature that is an image; it has {', '.join(features)}")
    image = min(images, key=lambda key: key != "image")
    return image, min(labels, key=lambda key: key != "label", default=None)


def _places(name: str, split: str, info: Any) -> list[tuple[str, np.ndarray]]:
    """The prepared splits that a split is made of, and the places in each."""
    try:
        parts = tfds.core.ReadInstruction.from_spec(split).to_absolute(info.splits)
    except (ValueError, AssertionError) as error:
        splits = sorted(info.splits)
        if split.isidentifier():
            raise UserError(f"{name!r} has no split {split!r}{nearest(split, splits)}") from error
        reason = str(error).splitlines()[0].partition(" See format")[0].rstrip(".")
        raise UserError(
            f"split {split!r} of {name!r}: {reason}; expected such as 'train', 'train[:90%]' or "
            f"'train+test', of the splits {', '.join(splits)}"
        ) from error
    return [
        (p.splitname, np.arange(info.splits[p.splitname].num_examples)[p.from_ : p.to])
        for p in parts
    ]


def _only(source: Source, names: Sequence[str], path: Any) -> Source:
    """The examples of some classes, whose labels are their places in ``names``."""
    if not source.class_names:
        raise UserError(f"data.classes={path}: {source.name!r} has no labels, leave it empty")
    unknown = [name for name in names if name not in source.class_names]
    if unknown:
        raise UserError(
            f"data.classes={path}: {source.name!r} has no class {unknown[0]!r} ({len(unknown)} of "
            f"{len(names)} are unknown){nearest(unknown[0], source.class_names)}"
        )
    relabel = np.full(source.num_classes, UNLABELLED, np.int32)
    relabel[[source.class_names.index(name) for name in names]] = np.arange(len(names))
    parts = []
    for part, places in source.parts:
        labels = _all_labels(part)[places]
        parts.append((part, places[(labels >= 0) & (relabel[labels] >= 0)]))
    return Source(source.name, source.split, tuple(parts), tuple(names), source.shape, relabel)


def _labels(part: Part) -> np.ndarray:
    """Every label of a part, [n] int32."""
    blocks = range(0, len(part.records), BLOCK)
    found = [part.get(range(b, min(b + BLOCK, len(part.records)))) for b in blocks]
    return np.array([part.label_of(record) for block in found for record in block], np.int32)


def _all_labels(part: Part) -> np.ndarray:
    """Every label of a part, [n] int32, kept beside its records."""
    return _kept(part, "labels", (), np.int32, lambda: _labels(part))


def _kept(
    part: Part, what: str, shape: tuple[int, ...], dtype: type, make: Callable[[], np.ndarray]
) -> np.ndarray:
    """An array of a part's records, kept beside them."""
    if part.keep is None:
        return make()
    path = part.keep.with_name(f"decoded-{part.keep.name}-{what}.npy")
    return kept.array(path, (len(part.records), *shape), dtype, make)
