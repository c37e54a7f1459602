"""Open the splits of a data set by the name of the data set."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds
from ml_collections import ConfigDict

from jaxssl import buckets, components
from jaxssl.data import integrity, kind
from jaxssl.data.opening import in_memory, prepare, tar_shards
from jaxssl.data.records import PreparedSplit
from jaxssl.data.splits import Source, Splits, find_records, finish
from jaxssl.errors import UserError


def load_splits(data: ConfigDict, examples: str = "image") -> Splits:
    """Open the splits of a run. See `load` for arguments and errors."""
    open_split = _make_opener(data, examples)
    train, test = (open_split(data[f"{name}_split"]) for name in ("train", "test"))
    bank = data["bank_split"]
    return Splits(train, open_split(bank) if bank else train, test)


def load(data: ConfigDict, split: str, examples: str = "image") -> Source:
    """Open a split of a data set, after preparing the data set if necessary.

    Args:
        data: the group `config.data`.
        split: such as "train", "train[:10%]" or "train+unlabelled".
        examples: expected kind of data set, a name of `jaxssl.data.kind`.

    Raises:
        UserError: if the data set or split is unknown, cannot be prepared or read or is of another
            kind, or if the list of classes does not match it.
    """
    return _make_opener(data, examples)(split)


def _make_opener(data: ConfigDict, examples: str) -> Callable[[str], Source]:
    """Return a function from a split's name to the opened split. Arguments and errors as in `load`.

    Files in a bucket are copied to the disk. `prepare` does that with "dir".
    """
    paths = [key for key in ("path", "labels", "classes") if "://" in data[key]]
    if paths:
        copies = {key: str(buckets.fetch(buckets.as_path(data[key]))) for key in paths}
        data = ConfigDict({**data, **copies})
    if components.is_custom(data["name"]) or data["name"] == tar_shards.NAME:
        return in_memory.make_opener(data, examples)
    return partial(_open, prepare.prepare(data), data, examples)


def _open(builder: Any, data: ConfigDict, examples: str, split: str) -> Source:
    info, root = builder.info, Path(builder.data_dir)
    with integrity.guard(root):
        metadata = dict(info.metadata or {})
        stored = metadata.get("kind", "image")
        if stored != examples:
            raise UserError(
                f"data.name={data['name']!r} holds {kind.units(stored)}, but augment.name makes "
                f"views of {kind.units(examples)}; change one of them"
            )
        labels = [k for k, f in info.features.items() if isinstance(f, tfds.features.ClassLabel)]
        label = min(labels, key=lambda key: key != "label", default=None)
        class_names = tuple(info.features[label].names) if label else ()
        opened = kind.get(examples).open(root, info.features, metadata, data)

    def open_part(name: str) -> PreparedSplit:
        records = builder.as_data_source(name, decoders=opened.decoders, file_format=prepare.FORMAT)
        integrity.check_num_records(root, name, info.splits[name].num_examples)
        return PreparedSplit(
            records, opened.decode, label, len(class_names), root / name, opened.captions
        )

    with integrity.guard(root):
        parts = find_records(data["name"], split, info.splits)
        parts = tuple((open_part(name), indices) for name, indices in parts)
    name = Path(data["path"]).name if prepare.needs_path(data["name"]) else data["name"]
    return finish(Source(name, split, parts, class_names, opened.shape, kind=examples), data)
