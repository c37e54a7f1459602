"""Splits of prepared data sets, read by index."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow_datasets as tfds

from jaxssl.data import array_cache, dataset_info, prepare
from jaxssl.data.classes import read_classes
from jaxssl.data.formats import captions, tu, video
from jaxssl.data.images import BLOCK, Images, Videos
from jaxssl.data.packing import GraphArray
from jaxssl.data.records import UNLABELLED, Example, Part
from jaxssl.errors import UserError, suggest

log = logging.getLogger("jaxssl")
IN_MEMORY = 2**32  # bytes of decoded images that are kept; more are decoded each time
KINDS = {"image": "images", "graph": "graphs", "video": "clips"}


@dataclass(frozen=True)
class Source:
    """One split of a data set, made of parts in a fixed order.

    Attributes:
        name: of the data set.
        split: as it was asked for, such as "train[:10%]+test".
        parts: each a prepared split, and which of its records belong here.
        class_names: names of the labels; () if there are none.
        shape: [h, w, c] of the images; h and w are None if they differ from image to image. Of
            clips [t, h, w, c], where t may be None. Of graphs, how many tags nodes may have.
        relabel: new label of each old one, -1 for those left out; None changes nothing.
        kind: what the examples are, one of `KINDS`.
    """

    name: str
    split: str
    parts: tuple[tuple[Part, np.ndarray], ...]
    class_names: tuple[str, ...]
    shape: tuple[int | None, ...]
    relabel: np.ndarray | None = None
    kind: str = "image"

    def __len__(self) -> int:
        """How many examples the split has."""
        return sum(len(places) for _, places in self.parts)

    def describe(self) -> str:
        """For the start-up summary."""
        size = "many sizes" if not self.one_size else "x".join(map(str, self.shape))
        if self.kind == "graph":
            size = f"nodes with {self.shape[0]} tags"
        classes = f"{self.num_classes} classes" if self.labelled else "no labels"
        what = KINDS[self.kind]
        return f"{self.name}, {self.split}: {len(self)} {what} of {size}, {classes}"

    @property
    def num_classes(self) -> int:
        """How many labels there are."""
        return len(self.class_names)

    @property
    def captioned(self) -> bool:
        """Whether there are captions."""
        return all(part.captions is not None for part, _ in self.parts)

    @cached_property
    def texts(self) -> np.ndarray:
        """[n, k, length] int32, the tokens of each picture's captions."""
        found = []
        for part, places in self.parts:
            blocks = range(0, len(places), BLOCK)
            records = (part.get(places[b : b + BLOCK]) for b in blocks)
            found += [part.captions(record) for block in records for record in block]
        return np.stack(found)

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

    def read(self, places: np.ndarray, text: bool = False) -> list[Example]:
        """Examples at places [k] of this split, decoded; with their captions if asked."""
        out: list[Any] = [None] * len(places)
        first = 0
        for part, members in self.parts:
            here = np.flatnonzero((places >= first) & (places < first + len(members)))
            records = part.get(members[places[here] - first])
            for i, record in zip(here, records, strict=True):
                label = int(self._renumbered(np.int32(part.label_of(record))))
                try:
                    tokens = part.captions(record) if text else None
                    out[i] = Example(part.example_of(record), label, tokens)
                except UserError:
                    raise
                except Exception as error:  # Pillow's decoders raise all sorts
                    raise UserError(
                        f"{self.kind} {places[i]} of {self.name!r} cannot be decoded ({error}); "
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
        if self.kind != "image":
            raise ValueError(f"it needs images, {self.name!r} holds {KINDS[self.kind]}")
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

    @cached_property
    def graph_array(self) -> GraphArray:
        """All graphs, decoded."""
        found = self.read(np.arange(len(self)))
        return GraphArray([example.picture for example in found], self.shape[0])

    def video_array(self, frames: int) -> Videos:
        """The middle ``frames`` frames of each clip."""
        return Videos(self, frames)

    def _renumbered(self, labels: np.ndarray) -> np.ndarray:
        if self.relabel is not None:
            labels = np.where(labels < 0, UNLABELLED, self.relabel[labels])
        return labels.astype(np.int32)


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


def load_splits(data: Mapping[str, Any], kind: str = "image") -> Splits:
    """The splits that `config.data` names.

    Raises:
        UserError: as `load`.
    """
    builder = prepare.prepared(data)
    opened = partial(_open, builder, data, kind)
    train, test = (opened(data[f"{which}_split"]) for which in ("train", "test"))
    return Splits(train, opened(data["bank_split"]) if data["bank_split"] else train, test)


def load(data: Mapping[str, Any], split: str, kind: str = "image") -> Source:
    """Open a split; prepare the data set first (as ArrayRecord) where that was not done yet.

    Args:
        data: the group `config.data`.
        split: such as "train", "train[:10%]" or "train+unlabelled".
        kind: what its examples are to be, one of `KINDS`.

    Raises:
        UserError: on an unknown name or split, a set that cannot be prepared or read or is of
            another kind, or a list of classes that does not fit it.
    """
    return _open(prepare.prepared(data), data, kind, split)


def _open(builder: Any, data: Mapping[str, Any], kind: str, split: str) -> Source:
    info, root = builder.info, Path(builder.data_dir)
    with dataset_info.reading(root):
        metadata = dict(info.metadata or {})
        found = metadata.get("kind", "image")
        if found != kind:
            raise UserError(
                f"data.name={data['name']!r} holds {KINDS.get(found, found)}, and augment.name "
                f"makes views of {KINDS[kind]}; set augment.name, or take other data"
            )
        image, label = _features(data["name"], info.features, kind)
        names = tuple(info.features[label].names) if label else ()
        how: dict[str, Any] = {"label": label, "num_classes": len(names)}
        decoders = {}
        if kind == "graph":
            shape = (dataset_info.count(root, "num_tags", metadata),)
            how["decode"] = tu.decode
        elif kind == "video":
            shape = dataset_info.clip_shape(root, metadata.get("shape"))
            how["decode"] = partial(video.decode, side=shape[1])
        else:
            shape = dataset_info.shape(root, metadata.get("shape") or info.features[image].shape)
            decoders[image] = tfds.decode.SkipDecoding()
            text = next((name for name in captions.FEATURES if name in info.features), None)
            how["captions"] = text and captions.Captions(text, data["context"])
            how |= {"image": image, "channels": shape[2], "upright": bool(metadata.get("upright"))}

    def part(name: str) -> Part:
        records = builder.as_data_source(name, decoders=decoders, file_format=prepare.FORMAT)
        dataset_info.check_records(root, name, info.splits[name].num_examples)
        return Part(records, keep=root / name, **how)

    with dataset_info.reading(root):
        places = _places(data["name"], split, info)
        parts = tuple((part(name), at) for name, at in places)
    name = Path(data["path"]).name if data["name"] in prepare.OF_PATHS else data["name"]
    source = Source(name, split, parts, names, shape, kind=kind)
    classes = data["classes"] or prepare.CLASSES.get(data["name"])
    if classes:
        source = _only(source, read_classes(Path(classes).expanduser()), classes)
    if not len(source):
        raise UserError(f"split {split!r} of {data['name']!r} has no examples")
    return source


def _features(name: str, features: Any, kind: str) -> tuple[str, str | None]:
    """The features that are the picture, of images, and the label."""
    images = [key for key, f in features.items() if isinstance(f, tfds.features.Image)]
    labels = [key for key, f in features.items() if isinstance(f, tfds.features.ClassLabel)]
    if not images and kind == "image":
        raise UserError(f"{name!r} has no feature that is an image; it has {', '.join(features)}")
    image = min(images, key=lambda key: key != "image", default="")
    return image, min(labels, key=lambda key: key != "label", default=None)


def _places(name: str, split: str, info: Any) -> list[tuple[str, np.ndarray]]:
    """The prepared splits that a split is made of, and the places in each."""
    try:
        parts = tfds.core.ReadInstruction.from_spec(split).to_absolute(info.splits)
    except (ValueError, AssertionError) as error:
        splits = sorted(info.splits)
        if split.isidentifier():
            raise UserError(f"{name!r} has no split {split!r}{suggest(split, splits)}") from error
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
            f"{len(names)} are unknown){suggest(unknown[0], source.class_names)}"
        )
    relabel = np.full(source.num_classes, UNLABELLED, np.int32)
    relabel[[source.class_names.index(name) for name in names]] = np.arange(len(names))
    parts = []
    for part, places in source.parts:
        labels = _all_labels(part)[places]
        parts.append((part, places[(labels >= 0) & (relabel[labels] >= 0)]))
    return replace(source, parts=tuple(parts), class_names=tuple(names), relabel=relabel)


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
    return array_cache.array(path, (len(part.records), *shape), dtype, make)
