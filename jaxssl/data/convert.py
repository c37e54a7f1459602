"""Make a set that TFDS prepared as TFRecord readable by index: jaxssl data convert DIR.

DIR is the folder of a version, such as ~/tensorflow_datasets/cifar10/3.0.2. ArrayRecord files are
written beside the TFRecord files, which stay, and dataset_info.json names both formats; TensorFlow
is not needed. The records are the same bytes in the same order.
"""

import contextlib
import json
import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path, PurePath

from array_record.python.array_record_module import ArrayRecordWriter

from jaxssl.errors import UserError, one_line

INFO = "dataset_info.json"
OLD, NEW = "tfrecord", "array_record"
LENGTH, CHECKSUM = struct.Struct("<Q"), 4
LARGEST = 2**31  # bytes of a record
MOST_SHARDS = 10**6
# What a document that is none of ours may raise where it is read.
BAD = (OSError, ValueError, OverflowError, RecursionError, KeyError, TypeError, AttributeError)


def convert(directory: Path) -> int:
    """Write the ArrayRecord files of a prepared set.

    A file appears under its name when it is complete, and the set is announced as converted when
    all files are there; an interrupted conversion is done again.

    Args:
        directory: of a version of a set, with its dataset_info.json.

    Returns:
        The number of records; 0 if it was converted before.

    Raises:
        UserError: if it is no such set, a file is damaged, or nothing can be written there.
    """
    path = directory / INFO
    try:
        info = json.loads(path.read_text())
        formats = [info.get("fileFormat", OLD), *info.get("alternativeFileFormats", [])]
        files = _files(info)
    except BAD as error:
        raise UserError(
            f"{directory} holds no prepared set (cannot read {path}: {one_line(error)}); name the "
            "folder of a version, such as ~/tensorflow_datasets/cifar10/3.0.2"
        ) from error
    if NEW in formats:
        return 0
    if OLD not in formats:
        raise UserError(f"{directory} is prepared as {formats[0]}; only {OLD} can be converted")
    if same := [old for old, new, _ in files if old == new]:
        raise UserError(
            f"{directory} cannot be converted: its files' names, such as {same[0]}, lack the "
            f"format; prepare the set again as {NEW}"
        )
    total = sum(_copy(directory / old, directory / new, length) for old, new, length in files)
    try:
        half = path.with_suffix(".tmp")
        half.write_text(
            json.dumps(info | {"alternativeFileFormats": [*formats[1:], NEW]}, indent=2)
        )
        half.replace(path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error
    return total


def read_records(path: Path) -> Iterator[bytes]:
    """The records of a TFRecord file: length, its checksum, bytes, their checksum.

    Raises:
        UserError: if the file ends in the middle of a record.
    """
    with path.open("rb") as file:
        while head := file.read(LENGTH.size + CHECKSUM):
            length = LENGTH.unpack_from(head)[0] if len(head) == LENGTH.size + CHECKSUM else None
            if length is None or length > LARGEST:
                raise UserError(f"{path} is damaged; prepare or copy the set again")
            record = file.read(length)
            if len(record) < length or len(file.read(CHECKSUM)) < CHECKSUM:
                raise UserError(f"{path} is cut short; prepare or copy the set again")
            yield record


def _files(info: dict) -> list[tuple[str, str, int]]:
    """For each shard its file as TFRecord and as ArrayRecord, and how many records it has."""
    found = []
    for split in info["splits"]:
        lengths = split.get("shardLengths", [])
        if len(lengths) > MOST_SHARDS:
            raise ValueError(f"{len(lengths)} shards")
        for shard, length in enumerate(lengths):
            names = (_name(split, info["name"], shard, len(lengths), f) for f in (OLD, NEW))
            found.append((*names, int(length)))
    if len({new for _, new, _ in found}) < len(found):
        raise ValueError("two shards would have one file")
    return found


def _name(split: dict, name: str, shard: int, shards: int, file_format: str) -> str:
    """The name of a shard's file, by the split's template; it never leads out of the folder."""
    template = split.get("filepathTemplate") or "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
    values = {
        "DATASET": name,
        "SPLIT": split["name"],
        "FILEFORMAT": file_format,
        "SHARD_INDEX": f"{shard:05d}",
        "NUM_SHARDS": f"{shards:05d}",
        "SHARD_X_OF_Y": f"{shard:05d}-of-{shards:05d}",
    }
    made = re.sub(r"\{(\w+)\}", lambda match: values[match[1]], template)
    if not made.isprintable() or PurePath(made).is_absolute() or ".." in PurePath(made).parts:
        raise ValueError(f"the file name {made!r:.80}")
    return made


def _copy(source: Path, target: Path, length: int) -> int:
    half = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    try:
        writer = ArrayRecordWriter(str(half), "group_size:1")
        count = 0
        for record in read_records(source):
            writer.write(record)
            count += 1
        writer.close()
        if count != length:
            raise UserError(f"{source} has {count} records, {INFO} says {length}")
        half.replace(target)
    except (OSError, RuntimeError) as error:
        raise UserError(f"cannot convert {source}: {error}") from error
    finally:
        with contextlib.suppress(OSError):
            half.unlink()
    return count
