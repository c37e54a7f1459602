"""Splits of data sets with access to examples by index, and the selection of classes."""

import logging
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow_datasets as tfds
from ml_collections import ConfigDict

from jaxssl.data import IN_MEMORY, kind
from jaxssl.data.decoders import decoding, files
from jaxssl.data.decoders.arrays import LazyArray
from jaxssl.data.records import UNLABELLED, Example, PreparedSplit, Record
from jaxssl.errors import UserError, suggest

log = logging.getLogger("jaxssl")
MAX_DECODED = 2**32  # largest array in bytes that is kept decoded in memory
# Smaller images (sides in pixels) decode so fast that threads would mostly wait for the GIL.
SMALL = 64
# Maps the name of a subset to the whole data set. The file NAME.txt lists the subset's classes.
SUBSETS = {"imagenet100": "imagenet2012"}


@dataclass(frozen=True, eq=False)
class Source:
    """Examples of a data set's split, which may join slices of prepared splits, in a fixed order.

    Attributes:
        name: name of the data set.
        split: the split as it was asked for, such as "train[:10%]+test".
        parts: prepared splits, each with the indices of the records that belong to this split.
        class_names: name of each label, () without labels.
        shape: [h, w, c] of the images, where h and w are None if images have different sizes. For
            clips [t, h, w, c], where t may be None. For graphs [number of node tags].
        relabel: maps the labels of the records to labels of this split, -1 for records left out.
            None keeps the labels.
        kind: kind of the examples, the name of a file of `jaxssl/kinds`.
    """

    name: str
    split: str
    parts: tuple[tuple[PreparedSplit, np.ndarray], ...]
    class_names: tuple[str, ...]
    shape: kind.Shape
    relabel: np.ndarray | None = None
    kind: str = "image"

    def __len__(self) -> int:
        """Return the number of examples of the split."""
        return sum(len(indices) for _, indices in self.parts)

    def describe(self) -> str:
        """Describe the split in one line of the start-up summary."""
        examples = kind.get(self.kind)
        classes = f"{self.num_classes} classes" if self.labelled else "no labels"
        size = f"{len(self)} {examples.units} of {examples.describe(self.shape)}"
        return f"{self.name}, {self.split}: {size}, {classes}"

    @property
    def num_classes(self) -> int:
        """Return the number of classes of the data set."""
        return len(self.class_names)

    @property
    def captioned(self) -> bool:
        """Return True if the images have captions."""
        return all(part.captions is not None for part, _ in self.parts)

    @property
    def one_size(self) -> bool:
        """Return True if all images have the same height and width."""
        return None not in self.shape

    @property
    def streamed(self) -> bool:
        """Return True if the examples are never read in advance, because they may be very many."""
        return any(part.streamed for part, _ in self.parts)

    @cached_property
    def labelled(self) -> bool:
        """Return True if all labels in memory, or the first of each prepared split, are known."""
        if self.class_names and all(part.path is None for part, _ in self.parts):
            return bool((self.labels != UNLABELLED).all())
        return bool(self.class_names) and all(
            part.label_of(part.read_records(indices[:1])[0]) != UNLABELLED
            for part, indices in self.parts
            if len(indices)
        )

    @property
    def all_labelled(self) -> bool:
        """Return True if every example has a label. The labels of all examples are read."""
        return self.labelled and bool((self.labels != UNLABELLED).all())

    @cached_property
    def labels(self) -> np.ndarray:
        """Return the labels of all examples, int32 [n]. Unlabelled examples have -1."""
        if not self.class_names:
            return np.full(len(self), UNLABELLED, np.int32)
        labels = [part.all_labels()[indices] for part, indices in self.parts]
        return self._map_labels(np.concatenate(labels))

    @cached_property
    def texts(self) -> np.ndarray:
        """Return the caption tokens of all images, int32 [n, k, length]."""
        texts = []
        for part, indices in self.parts:
            if part.captions is not None:
                texts += map(part.captions, part.iter_records(indices))
        return np.stack(texts)

    def take(self, indices: np.ndarray) -> "Source":
        """Return a split of the examples at ``indices`` [k], each once, in this split's order."""
        chosen = np.zeros(len(self), bool)
        chosen[indices] = True
        ends = np.cumsum([len(members) for _, members in self.parts])
        masks = zip(self.parts, np.split(chosen, ends[:-1]), strict=True)
        return replace(self, parts=tuple((part, members[mask]) for (part, members), mask in masks))

    def read(self, indices: np.ndarray, text: bool = False) -> list[Example]:
        """Return the examples that `decode` yields."""
        return list(self.decode(indices, text))

    def decode(self, indices: np.ndarray, text: bool = False) -> Iterator[Example]:
        """Read the examples at ``indices`` [k], with their captions if ``text``; decode one by one.

        Raises:
            UserError: if a record cannot be read or decoded.
        """
        for index, (part, record) in zip(indices, self.read_records(indices), strict=True):
            label = int(self._map_labels(np.array(part.label_of(record))))
            try:
                tokens = part.captions(record) if text and part.captions else None
                example = Example(part.decode(record), label, tokens)
            except UserError:
                raise
            # Pillow's decoders raise many exception types for damaged data.
            except Exception as error:
                hint = "prepare the set again" if part.path else "replace its file"
                raise UserError(
                    f"{self.kind} {index} of {self.name!r} cannot be decoded ({error}); {hint}"
                ) from error
            yield example

    def read_records(self, indices: np.ndarray) -> list[tuple[PreparedSplit, Record]]:
        """Read the records at ``indices`` [k], each with the prepared split that holds it."""
        out: dict[int, tuple[PreparedSplit, Record]] = {}
        start = 0
        for part, members in self.parts:
            here = np.flatnonzero((indices >= start) & (indices < start + len(members)))
            records = part.read_records(members[indices[here] - start])
            out |= {i: (part, record) for i, record in zip(here.tolist(), records, strict=True)}
            start += len(members)
        return [out[i] for i in range(len(indices))]

    def shape_at(self, size: int) -> tuple[int, int, int]:
        """Return the image shape [h, w, c], where images of different sizes are cut to ``size``."""
        h, w, c = self.shape
        return (h, w, c) if self.one_size else (size, size, c)

    def lazy_images(self, size: int, *settings: Any) -> LazyArray:
        """Return all images as an array [n, h, w, c] that decodes images when indexed.

        Size and settings are as in `decoding.centre`, and apply to images of different sizes.
        """
        shape = self.shape_at(size)
        threads = 1 if shape[0] <= SMALL else files.cpu_count()

        def decode(indices: np.ndarray) -> Iterator[np.ndarray]:
            for example in self.decode(indices):
                if self.one_size:
                    yield decoding.pixels(example.input)
                else:
                    yield decoding.centre(example.input, size, *settings)

        return LazyArray(decode, (len(self), *shape), threads)

    def images(self, size: int, *settings: object) -> np.ndarray | LazyArray:
        """Return all images as uint8 [n, h, w, c], as a `LazyArray` if they need too much memory.

        Size and settings are as in `decoding.centre`, and apply to images of different sizes.
        """
        if len(self.shape) != 3:
            units = kind.units(self.kind)
            raise ValueError(f"a data set of images is needed, but {self.name!r} holds {units}")
        shape = self.shape_at(size)
        if self.streamed or len(self) * math.prod(shape) > MAX_DECODED:
            return self.lazy_images(size, *settings)
        total = sum(len(part.records) for part, _ in self.parts) * math.prod(shape)
        if total > MAX_DECODED or self.parts[0][0].path is None:  # No cache file can be written.
            return self.lazy_images(size, *settings)[:]  # decodes the images of this split only

        def decode(part: PreparedSplit) -> np.ndarray:
            whole = replace(self, parts=((part, np.arange(len(part.records))),))
            return whole.lazy_images(size, *settings)[:]

        name, arrays = f"{shape[0]}x{shape[1]}", []
        if not self.one_size:
            # The default and its share use one file. Version 0.2.0 called it 0.0.
            names = {None: 0.0, decoding.CENTRE_SHARE: 0.0, 0.0: "whole"}
            name = "-".join([name, *(str(names.get(x, x)) for x in settings)])
        for part, indices in self.parts:
            array = part.cache(name, shape, np.uint8, partial(decode, part))
            arrays.append(array if len(indices) == len(array) else array[indices])
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)

    def _map_labels(self, labels: np.ndarray) -> np.ndarray:
        if self.relabel is not None:  # The label -1 would take the last class.
            labels = np.where(labels < 0, UNLABELLED, self.relabel[labels])
        return labels.astype(np.int32)


class Splits(NamedTuple):
    """The training, bank and test splits of a run.

    Attributes:
        train: split for pretraining.
        bank: labelled split that evaluation learns from. Often the training split.
        test: split that evaluation predicts.
    """

    train: Source
    bank: Source
    test: Source

    @property
    def labelled(self) -> bool:
        """Return True if the bank and test splits have the labels that evaluation needs."""
        return self.bank.labelled and self.test.labelled

    def labelled_part(self) -> "Splits":
        """Return the labelled examples of bank and test, or all if one of them has no labels.

        Labels on disk are read.
        """
        if not self.labelled:
            return self
        bank, test = (labelled_part(split, on_disk=True) for split in (self.bank, self.test))
        return self._replace(bank=bank, test=test)


def make_splits(train: Source, bank: Source, test: Source) -> Splits:
    """Return splits whose bank and test have their labelled examples. Warn if both overlap."""
    splits = Splits(train, labelled_part(bank), labelled_part(test))
    if splits.labelled and (number := int(in_both(splits.bank, splits.test).sum())):
        advice = "set data.bank_split and data.test_split to splits that do not overlap"
        if bank.name == IN_MEMORY:
            advice = "pass (train, test), or set data.test_fraction"
        log.warning(
            "%d of %d test examples (%s) are also in the bank (%s), so accuracies will be too "
            "high; %s",
            *(number, len(splits.test), test.split, bank.split, advice),
        )
    return splits


def labelled_part(source: Source, *, on_disk: bool = False) -> Source:
    """Return the labelled examples of a split, or all of them if none has a label.

    Splits on disk are returned as they are unless ``on_disk``, because finding their labels reads
    all records.
    """
    if not on_disk and any(part.path is not None for part, _ in source.parts):
        return source
    labelled = np.flatnonzero(source.labels != UNLABELLED)
    if len(labelled) in (0, len(source)):
        return source
    without = len(source) - len(labelled)
    log.info("data       %d examples of %r have no label: not evaluated", without, source.split)
    return source.take(labelled)


def in_both(one: Source, other: Source) -> np.ndarray:
    """Return for each example of ``other``, as bool [n], whether it is also an example of ``one``.

    Examples are the same if they are the same record of a prepared split.
    """
    masks = [np.zeros(0, bool)]
    for part, indices in other.parts:
        mask = np.zeros(len(indices), bool)
        for theirs, members in one.parts:
            if part.records is theirs.records or (part.path and part.path == theirs.path):
                mask |= np.isin(indices, members)
        masks.append(mask)
    return np.concatenate(masks)


def find_records(
    name: str, split: str, splits: Mapping[str, tfds.core.SplitInfo]
) -> list[tuple[str, np.ndarray]]:
    """Return the prepared splits that a split expression names, with record indices."""
    try:
        slices = tfds.core.ReadInstruction.from_spec(split).to_absolute(splits)
    except (ValueError, AssertionError, NotImplementedError) as error:
        if split.isidentifier():
            hint = suggest(split, sorted(splits))
            raise UserError(
                f"{name!r} has no split {split!r}{hint}; choose them by data.train_split, "
                "data.bank_split and data.test_split"
            ) from error
        reason = str(error).splitlines()[0].partition(" See format")[0].rstrip(".")
        raise UserError(
            f"split {split!r} of {name!r}: {reason}; expected for example 'train', 'train[:90%]' "
            f"or 'train+test', from the splits {', '.join(sorted(splits))}, as data.train_split, "
            "data.bank_split or data.test_split"
        ) from error
    return [
        (x.splitname, np.arange(splits[x.splitname].num_examples)[x.from_ : x.to]) for x in slices
    ]


def read_classes(path: Path) -> dict[str, str]:
    """Read a text file with one class a line, by its name in the data set.

    After a tab may follow its name in words. Lines that start with # are ignored.

    Returns:
        The names in words, by the names in the data set.

    Raises:
        UserError: if the file cannot be read, is empty, or names a class twice.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"data.classes={path} cannot be read: {error}") from error
    pairs = [tuple(map(str.strip, line.partition("\t")[::2])) for line in lines]
    pairs = [(name, words) for name, words in pairs if name and not name.startswith("#")]
    names = [name for name, _ in pairs]
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if not names or repeated:
        problem = f"names {repeated[0]!r} twice" if repeated else "names no class"
        raise UserError(f"data.classes={path} {problem}; expected one class a line, each once")
    return {name: words or name for name, words in pairs}


def finish(source: Source, data: ConfigDict) -> Source:
    """Select the classes that ``data.classes`` or the subset lists, and refuse an empty split."""
    path = data["classes"]
    if not path and data["name"] in SUBSETS:
        path = Path(__file__).with_name(f"{data['name']}.txt")
    if path:
        source = _select_classes(source, read_classes(Path(os.path.expanduser(path))), path)
    if not len(source):
        what = "labelled examples of the listed classes" if path else "examples"
        raise UserError(f"split {source.split!r} of {data['name']!r} has no {what}; take another")
    return source


def _select_classes(source: Source, names: Mapping[str, str], path: object) -> Source:
    """Keep the examples of some classes, relabelled by their index in ``names``."""
    if not source.class_names:
        raise UserError(f"data.classes={path}: {source.name!r} has no labels, leave it empty")
    unknown = [name for name in names if name not in source.class_names]
    if unknown:
        raise UserError(
            f"data.classes={path}: {source.name!r} has no class {unknown[0]!r} ({len(unknown)} of "
            f"{len(names)} are unknown){suggest(unknown[0], source.class_names)}"
        )
    relabel = np.full(source.num_classes, UNLABELLED, np.int32)
    relabel[[source.class_names.index(name) for name in names]] = np.arange(len(names))
    source = replace(source, class_names=tuple(names.values()), relabel=relabel)
    return source.take(np.flatnonzero(source.labels != UNLABELLED))
