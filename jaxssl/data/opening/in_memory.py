"""Data sets that are given as Python objects: arrays, lists, Grain sources, Hugging Face sets."""

import hashlib
import inspect
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import tensorflow_datasets as tfds
from ml_collections import ConfigDict
from PIL import Image

from jaxssl import components
from jaxssl.data import IN_MEMORY, kind
from jaxssl.data.decoders import decoding
from jaxssl.data.formats import user_files
from jaxssl.data.opening import items, tar_shards
from jaxssl.data.records import UNLABELLED, PictureReader, PreparedSplit
from jaxssl.data.splits import Source, Splits, find_records, finish, make_splits
from jaxssl.errors import UserError

log = logging.getLogger("jaxssl")
Images = Sequence[np.ndarray | items.PictureFile] | np.ndarray | items.Stream
TEST_SPLITS = ("test", "validation", "val", "valid", "dev", "eval")  # the preferred one first


class Examples(NamedTuple):
    """All examples of one split.

    Attributes:
        images: one for each example.
        labels: int32 [n], -1 for an example without a label.
        class_names: name of each label, () without labels.
        shape: [h, w, c] of the images, where h and w are None if images have different sizes.
        samples: the images that the fingerprint covers: the probes of an `items.Stream`, else all.
        texts: the class names, if labels are texts, which the fingerprint covers.
    """

    images: Images
    labels: np.ndarray
    class_names: tuple[str, ...]
    shape: kind.Shape
    samples: Sequence[np.ndarray | items.PictureFile] | np.ndarray
    texts: tuple[str, ...]

    def fingerprint(self) -> tuple[str, np.ndarray]:
        """Return a hash of labels, texts and samples, and one of each sample, int64."""
        digest = hashlib.sha256(self.labels.tobytes())
        digest.update("".join(f"{x}\0" for x in self.texts).encode())
        hashes = items.hash_samples(self.samples, digest)
        return digest.hexdigest(), hashes


def load_splits(
    data: object,
    *,
    test_fraction: float = 0.2,
    seed: int = 0,
    on_error: str = "stop",
    channels: int = 0,
    cache: str = "auto",
) -> tuple[Splits, str]:
    """Return splits and fingerprint of a data set that is given as Python objects.

    Every example is read once, to find its size and label, and files of pictures once more, for the
    fingerprint. Of an `items.Stream`, only the images that `items.Stream.probe` chooses are read.

    Args:
        data: one of

            * images: uint8 [n, h, w, c] or [n, h, w] with 1 to 16 channels. uint16, and floats in
              [0, 1], are rounded to 8 bits.
            * an object with ``__len__`` and ``__getitem__``, such as a list. An item is an image
              (array, Pillow, or the path or bytes of a file), (image, label), or a dict such as
              {"image": ..., "label": ...}.
            * (images, labels), see `items.convert_labels`. An example without a label is left out
              of evaluation.
            * a path (`items.open_path`), or a data frame with a column of paths.
            * (train, test), or {"train": ..., "test": ...}, of any of these.
        test_fraction: share of the labelled examples that is set aside for "test" if ``data`` has
            no test split. Without any label, or with 0, all examples are in both splits.
        seed: seed of the draw of the test examples.
        on_error: "skip" leaves out picture files that cannot be read, except in a stream.
        channels: number of channels of picture files and Pillow images. With 0, files are RGB, and
            Pillow images are grey or RGB as they are.
        cache: `config.data.cache`, see `items.is_streamed`.

    Raises:
        UserError: if the data are none of these.
    """
    options = {"on_error": on_error, "channels": channels, "cache": cache}
    train, test, read = _load_pair(data, test_fraction, seed, **options)
    digests, hashes = zip(*map(Examples.fingerprint, read), strict=True)
    if len(read) == 1 and test_fraction > 0 and not isinstance(read[0].images, items.Stream):
        hashes = [hashes[0][part.parts[0][1]] for part in (train, test)]
    if len(hashes) == 2 and test.labelled and (number := len(np.intersect1d(*hashes))):
        log.warning("data       %d test images are also training images: remove them", number)
    joined = digests[0] if len(read) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()
    return make_splits(train, train, test), joined


def _load_pair(
    data: object, test_fraction: float, seed: int, *, on_error: str, channels: int, cache: str
) -> tuple[Source, Source, list[Examples]]:
    """Return the splits "train" and "test", and all examples that were read for them."""
    train_data, test_data = _split(data)
    read = partial(_read, on_error=on_error, channels=channels, cache=cache)
    if test_data is None:
        parts = [read(train_data, "data")]
        whole = _source(parts[0])
        labelled = np.flatnonzero(whole.labels != UNLABELLED)
        # The seed may be negative, as for a folder, but NumPy takes no negative seed.
        np.random.default_rng(seed % 2**64).shuffle(labelled)
        count = round(test_fraction * len(labelled))
        if len(labelled) < len(whole):  # Beside unlabelled examples, a single label is enough.
            count = max(count, 1)
        chosen = labelled[:count]
        train = test = whole
        if len(labelled) and test_fraction > 0:
            train = whole.take(np.delete(np.arange(len(whole)), chosen))
            test = whole.take(chosen)
    else:
        parts = [read(train_data, "the training data"), read(test_data, "the test data")]
        train, test = _join_classes(parts)
    train, test = replace(train, split="train"), replace(test, split="test")
    if empty := [source.split for source in (train, test) if not len(source)]:
        advice = "pass (train, test), or change data.test_fraction"
        which = f" for the split {empty[0]!r}; {advice}" if len(empty) == 1 else ""
        raise UserError(f"data has no examples{which}")
    return train, test, parts


def call(data: ConfigDict) -> object:
    """Call the function of a user's file and return its data, in any form that `load_splits` takes.

    Args:
        data: the group `config.data`. "name" is path/to/file.py:NAME. The function NAME may take
            the argument ``path``, which is "path".

    Raises:
        UserError: if the function is not valid.
    """
    name = components.short_name(data["name"])
    function = components.factory("data", data["name"])
    if not callable(function):
        raise UserError(f"data.name={name!r} must be a function that returns the data set")
    arguments = {"path": data["path"]} if "path" in inspect.signature(function).parameters else {}
    if data["path"] and not arguments:
        raise UserError(f"data.name={name!r} takes no argument path; leave data.path empty")
    return function(**arguments)


def make_opener(data: ConfigDict, examples: str) -> Callable[[str], Source]:
    """Return the function ``split name -> Source`` of tar shards or a user's function.

    Args:
        data: the group `config.data`.
        examples: kind of data set that the run needs.

    Raises:
        UserError: if the data are not valid, or the run does not take images.
    """
    name = components.short_name(data["name"])
    kind.require(name, "image", examples)
    if data["labels"]:
        raise UserError("data.labels is only for folders and captions; leave it empty")
    load = call if components.is_custom(data["name"]) else tar_shards.load
    train, test, _ = _load_pair(load(data), **split_options(data))
    parts = {"train": train, "test": test}
    infos = {split: tfds.core.SplitInfo(split, [len(part)], 0) for split, part in parts.items()}

    def open_split(split: str) -> Source:
        members = [parts[part].take(i) for part, i in find_records(name, split, infos)]
        joined = tuple(part for member in members for part in member.parts)
        shape = _common_shape([member.shape for member in members], f"split {split!r} of {name!r}")
        whole = replace(members[0], name=name, split=split, parts=joined, shape=shape)
        return finish(whole, data)

    return open_split


def split_options(data: ConfigDict) -> kind.Settings:
    """Return the arguments of `load_splits` that the group `config.data` sets."""
    return {
        "test_fraction": data["test_fraction"],
        "seed": data["split_seed"],
        "on_error": data["on_error"],
        "channels": data.get("channels", 0),
        "cache": data["cache"],
    }


def load_images(
    images: object, *, channels: int = 0, on_error: str = "stop"
) -> tuple[Source, list[str] | None]:
    """Return images as one split without labels, and their names if all of them are files.

    Args:
        images: in a form that `load_splits` takes for one split, or one image. Labels are ignored.
        channels: as for `load_splits`.
        on_error: "skip" leaves out picture files that cannot be read.

    Raises:
        UserError: as `load_splits`.
    """
    # Data frames and Hugging Face sets have a shape too.
    images, _ = _images_and_labels(images, "images")
    shape = getattr(images, "shape", ()) if hasattr(images, "dtype") else ()
    is_one = len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3, channels))
    if len(shape) == 3 and not is_one and channels != 1 and (shape[2] in (2, 4) or shape[0] == 3):
        expected = f"[n, h, w, c], with {channels or 3} channels last"
        raise UserError(f"images {list(shape)} may be one image; expected {expected}")
    if isinstance(images, Image.Image | bytes) or is_one:
        images = [images]
    options: Any = {"on_error": on_error, "channels": channels, "cache": "auto"}
    examples = _read(images, "images", labelled=False, **options)
    if not len(examples.labels):
        raise UserError("images is empty; expected at least one image")
    unlabelled = _source(examples._replace(class_names=()))
    names = [x.name for x in examples.samples if isinstance(x, items.PictureFile)]
    return unlabelled, names if len(names) == len(unlabelled) else None


def _split(data: object) -> tuple[object, object]:
    """Return the training data and the test data (or None) that a user has passed as one object."""
    if isinstance(data, Mapping) and "train" in data:
        test = next((x for x in TEST_SPLITS if x in data), None)
        for unused in sorted(set(map(str, data)) - {"train", str(test)}):
            log.warning("data       %r is not used; splits are train, %s", unused, TEST_SPLITS[0])
        return data["train"], data[test] if test else None
    if isinstance(data, tuple) and len(data) == 2 and not _is_labelled(data):
        return data
    return data, None


def _is_labelled(data: object) -> bool:
    """Return True for (images, labels), where labels are an array, a series, a list or a tuple."""
    if not isinstance(data, tuple) or len(data) != 2:
        return False
    labels = data[1]
    ndim = getattr(labels, "ndim", 0)
    type_code = getattr(getattr(labels, "dtype", None), "kind", "O")  # A data frame has no dtype.
    if ndim == 2:
        return type_code != "O"
    if ndim == 1 and type_code not in "OSTU":  # The values of texts decide below.
        return True
    whole = ndim == 1 or isinstance(labels, list | tuple)
    no_list = isinstance(labels, Mapping | str) or not hasattr(labels, "__getitem__")
    if not whole and (ndim or no_list or not hasattr(labels, "__len__")):
        return False
    # Of another object some values are read, because it may be a test set.
    values = list(labels) if whole else [labels[i] for i in range(min(len(labels), 9))]
    suffixes = (*decoding.SUFFIXES, ".npy")
    if all(isinstance(x, str) and x.lower().endswith(suffixes) for x in values):
        return False  # The values are the paths of pictures.
    return all(
        isinstance(x, int | float | str)
        or getattr(x, "ndim", None) == 0
        or (not hasattr(x, "shape") and items.is_missing(x))
        for x in values
    )


def _read(
    data: Any, name: str, *, on_error: str, channels: int, cache: str, labelled: bool = True
) -> Examples:
    """Read a split in any of the forms of `load_splits`, without its labels if not ``labelled``."""
    is_pair = isinstance(data, list) and _is_labelled(tuple(data))
    if is_pair and getattr(data[0], "ndim", 0) > 2 and np.ndim(data[1]) == 1:
        raise UserError(f"{name} is a list [images, labels]; pass a tuple (images, labels)")
    data, labels = _images_and_labels(data, name)
    column, class_names = None, ()
    if labels is None and (column := items.label_column(data)):
        class_names = tuple(getattr(data.features[column], "names", None) or ())

    is_array = hasattr(data, "shape") and hasattr(data, "dtype")
    streamed = items.is_streamed(data, name, channels, cache)
    if is_array and not streamed:
        images = samples = items.pixels_of(data, name)
        shapes: list[kind.Shape | None] = [images.shape[1:]]
    elif streamed:
        images = items.Stream(data, name, channels)
        samples = images.probe()
        shapes = [sample.shape for sample in samples]
        if column:
            labels = data[column]
        elif labels is None and items.read_item(data, 0, name, channels)[1] is not None:
            log.warning(
                "data       %s is read as it goes, without the labels of its items; pass (data, "
                "labels) to use them",
                name,
            )
    elif hasattr(data, "__len__") and hasattr(data, "__getitem__"):
        pairs = [items.read_item(data, index, name, channels) for index in range(len(data))]
        images = samples = [image for image, _ in pairs]
        shapes = items.check_files(images, name, channels or user_files.CHANNELS, on_error)
        labels = [label for _, label in pairs] if labels is None else labels
    else:
        raise UserError(
            f"{name} has type {type(data).__name__}; expected uint8 images [n, h, w, c], (images, "
            "labels), a pair (train, test) of these, or an object with __len__ and __getitem__ "
            "whose items are images, (image, label) or dicts"
        )
    if labelled or getattr(data, "dtype", None) == np.uint16:
        items.report_dark(samples, name)
    labels, texts = items.convert_labels(labels if labelled else None, len(images), name)
    largest = labels.max(initial=UNLABELLED)
    class_names = class_names or texts or tuple(str(label) for label in range(largest + 1))
    if largest >= len(class_names):
        raise UserError(f"{name} has the label {largest}, but only {len(class_names)} class names")
    if None in shapes:
        readable = [index for index, shape in enumerate(shapes) if shape is not None]
        images = samples = [images[index] for index in readable]
        labels = labels[readable]
    shape = _common_shape(shapes, name)
    if isinstance(images, items.Stream):
        images = replace(images, shape=shape)
    return Examples(images, labels, class_names, shape, samples, texts)


def _images_and_labels(data: Any, name: str) -> tuple[Any, Any]:
    """Open a file or a table, and separate the images from their labels (or None)."""
    images, labels = cast(tuple[Any, Any], data if _is_labelled(data) else (data, None))
    if isinstance(images, str | Path):
        images = items.open_path(Path(os.path.expanduser(images)))
    elif hasattr(images, "columns"):
        is_arrow = hasattr(images, "to_pydict")
        columns = images.to_pydict() if is_arrow else {key: images[key] for key in images.columns}
        images = items.from_columns(columns, name, Path())
    if isinstance(images, Mapping):
        images, beside = items.image_and_label(images, name, warn=labels is None)
        labels = beside if labels is None else labels
    return list(images) if getattr(images, "ndim", 0) == 1 else images, labels  # of paths


def _common_shape(shapes: Sequence[kind.Shape | None], name: str) -> kind.Shape:
    """Return the shape of all images, where height and width are None if they differ."""
    sizes = {shape for shape in shapes if shape is not None}
    channels = {size[-1] for size in sizes}
    if len(channels) > 1:
        raise UserError(
            f"{name} has images of {' and '.join(map(str, sorted(channels)))} channels; give all "
            "of them one number, by data.channels if they are pictures"
        )
    return sizes.pop() if len(sizes) == 1 else (None, None, *channels)


def _join_classes(splits: Sequence[Examples]) -> list[Source]:
    """Give all splits the same class names.

    If the names of every split are the beginning of the longest list, that list is used. Otherwise
    all names are merged and sorted, and must differ within a split.
    """
    names = max((split.class_names for split in splits), key=len)
    if all(split.class_names == names[: len(split.class_names)] for split in splits):
        return [_source(split._replace(class_names=names)) for split in splits]
    if any(len(set(split.class_names)) < len(split.class_names) for split in splits):
        raise UserError("two classes share a name, and the splits list other names; rename one")
    names = tuple(sorted({name for split in splits for name in split.class_names}))
    position, joined = {name: index for index, name in enumerate(names)}, []
    for split in splits:
        # The label -1 of unlabelled examples selects the last entry, so that it stays -1.
        new = np.array([*map(position.get, split.class_names), UNLABELLED], np.int32)
        joined.append(_source(split._replace(labels=new[split.labels], class_names=names)))
    return joined


@dataclass(frozen=True)
class _Records(Sequence):
    """Random access to records of images and labels. Files are read when they are needed."""

    images: Images
    labels: np.ndarray

    def __getitem__(self, index: Any) -> Any:
        image = self.images[index]
        image = image.tobytes() if isinstance(image, items.PictureFile) else image
        return {"image": image, "label": self.labels[index]}

    def __len__(self) -> int:
        return len(self.labels)


def _source(examples: Examples) -> Source:
    """Return all examples as the split "all" of a data set without a name."""
    images, labels, class_names, shape, *_ = examples
    part = PreparedSplit(
        _Records(images, labels),
        PictureReader(channels=shape[-1], upright=True),
        label="label" if class_names else None,
        num_classes=len(class_names),
        labels=labels,
        streamed=isinstance(images, items.Stream),
    )
    return Source(IN_MEMORY, "all", ((part, np.arange(len(labels))),), class_names, shape)
