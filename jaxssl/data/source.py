"""Prepared data sets, read by index."""

import importlib
import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import jaxssl.data
from jaxssl.errors import UserError, nearest

NOT_DATA_SETS = {"source", "batches"}


class Facts(NamedTuple):
    """What is known of a training set before it is opened.

    Attributes:
        shape: [h, w, c] of an image; of photographs of many sizes, what they are resized to.
        num_examples: of the split that the recipes train on.
        num_classes: how many labels there are.
    """

    shape: tuple[int, int, int]
    num_examples: int
    num_classes: int


FACTS = {
    "digits": Facts((8, 8, 1), 1297, 10),
    "cifar10": Facts((32, 32, 3), 50_000, 10),
    "cifar100": Facts((32, 32, 3), 50_000, 100),
    "stl10": Facts((96, 96, 3), 105_000, 10),  # train and unlabelled
    "fashion_mnist": Facts((28, 28, 1), 60_000, 10),
    "imagenet100": Facts((256, 256, 3), 126_689, 100),
    "imagenet2012": Facts((256, 256, 3), 1_281_167, 1000),
}


@dataclass(frozen=True)
class Source:
    """One split of a data set.

    Attributes:
        name: of the data set.
        split: of it.
        records: random access to {"image": uint8 [h, w, c], "label": int}.
        num_classes: how many labels there are.
        class_names: their names.
    """

    name: str
    split: str
    records: Sequence[dict[str, Any]]
    num_classes: int
    class_names: tuple[str, ...]

    def __len__(self) -> int:
        """How many examples the split has."""
        return len(self.records)


def load(name: str, split: str, data_dir: str | Path = "") -> Source:
    """Open a split; prepare the data set first (as ArrayRecord) where that was not done yet.

    Args:
        name: a file of `jaxssl/data/` with a TFDS `Builder`.
        split: such as "train" or "test".
        data_dir: where prepared sets lie; "" is TFDS' own, `~/tensorflow_datasets`.

    Raises:
        UserError: on an unknown name or split, or a data directory that cannot be written.
    """
    names = [m.name for m in pkgutil.iter_modules(jaxssl.data.__path__)]
    names = sorted(set(names) - NOT_DATA_SETS)
    if name not in names:
        raise UserError(f"data.name={name!r} is unknown{nearest(name, names)}")
    module = importlib.import_module(f"jaxssl.data.{name}")
    directory = str(Path(data_dir).expanduser()) if data_dir else None
    try:
        builder = module.Builder(data_dir=directory, file_format="array_record")
        if not Path(builder.data_dir).exists():
            builder.download_and_prepare()
    except OSError as error:
        raise UserError(
            f"cannot prepare {name!r} under {directory or 'the TFDS data directory'}: {error}; "
            "name a directory that can be written with --config.data.dir"
        ) from error
    if split not in builder.info.splits:
        splits = sorted(builder.info.splits)
        raise UserError(f"{name!r} has no split {split!r}{nearest(split, splits)}")
    label = builder.info.features["label"]
    records = builder.as_data_source(split=split)
    return Source(name, split, records, label.num_classes, tuple(label.names))


def facts(name: str) -> Facts:
    """Sizes of a data set without opening it.

    Raises:
        UserError: if they are not known.
    """
    if name not in FACTS:
        raise UserError(f"the sizes of data.name={name!r} are not known{nearest(name, FACTS)}")
    return FACTS[name]


def arrays(source: Source) -> dict[str, np.ndarray]:
    """The whole split in memory: "image" uint8 [n, h, w, c] and "label" int32 [n].

    Raises:
        UserError: if the images differ in size.
    """
    examples = [source.records[i] for i in range(len(source))]
    shapes = sorted({example["image"].shape for example in examples})
    if len(shapes) != 1:
        raise UserError(f"the images of {source.name!r} differ in size: {shapes[0]}, {shapes[1]}")
    return {
        "image": np.stack([example["image"] for example in examples]),
        "label": np.array([example["label"] for example in examples], np.int32),
    }
