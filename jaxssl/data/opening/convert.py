"""Convert a TFRecord data set of TFDS to ArrayRecord: `jaxssl data convert DIR`.

DIR is the folder of a version, such as ~/tensorflow_datasets/cifar10/3.0.2. ArrayRecord files,
which can be read by index, are written next to the TFRecord files, and dataset_info.json lists both
formats. The records are the same bytes in the same order. TensorFlow is not needed.
"""

import json
import re
import struct
from pathlib import Path, PurePath

import grain
from array_record.python.array_record_module import ArrayRecordWriter
from etils import epath
from tensorflow_datasets.core.utils import incomplete_file

from jaxssl.data.integrity import INFO, MAX_SHARDS
from jaxssl.errors import JSON_ERRORS, UserError, explain_write_errors, one_line

OLD, NEW = "tfrecord", "array_record"
TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"  # TFDS's default file names


def convert(directory: Path) -> int:
    """Write the ArrayRecord files of a TFRecord data set, and return the number of records.

    A file is renamed to its final name when it is complete, and dataset_info.json is updated when
    all files are. An interrupted conversion can be repeated.

    Args:
        directory: folder of a version of a set, with its dataset_info.json.

    Returns:
        The number of records, or 0 if the set was converted before.

    Raises:
        UserError: if the directory does not hold such a set, a file is damaged, or nothing can be
            written there.
    """
    path = directory / INFO
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
        formats = [info.get("fileFormat", OLD), *info.get("alternativeFileFormats", [])]
        shards = _list_shards(info)
    except JSON_ERRORS as error:
        raise UserError(
            f"{directory} does not hold a prepared set (cannot read {path}: {one_line(error)}); "
            "name the folder of a version, such as ~/tensorflow_datasets/cifar10/3.0.2"
        ) from error
    if NEW in formats:
        return 0
    if OLD not in formats:
        raise UserError(f"{directory} is prepared as {formats[0]}; only {OLD} can be converted")
    if same := [old for old, new, _ in shards if old == new]:
        raise UserError(
            f"{directory} cannot be converted, because its file names, such as {same[0]}, do not "
            f"contain the word {OLD}; prepare the data set again as {NEW}"
        )
    total = sum(_convert_shard(directory / old, directory / new, n) for old, new, n in shards)
    with explain_write_errors(path):
        info["alternativeFileFormats"] = [*formats[1:], NEW]
        with incomplete_file(epath.Path(path)) as temporary:
            temporary.write_text(json.dumps(info, indent=2))
    return total


def _list_shards(info: dict) -> list[tuple[str, str, int]]:
    """List each shard's TFRecord file, ArrayRecord file and number of records."""
    shards = []
    for split in info["splits"]:
        lengths = split.get("shardLengths", [])
        if len(lengths) > MAX_SHARDS:
            raise ValueError(f"a split must have at most {MAX_SHARDS} shards, got {len(lengths)}")
        for i, length in enumerate(lengths):
            old, new = (_file_name(split, info["name"], i, len(lengths), f) for f in (OLD, NEW))
            shards.append((old, new, int(length)))
    if len({new for _, new, _ in shards}) < len(shards):
        raise ValueError("two shards have the same file name")
    return shards


def _file_name(split: dict, name: str, shard: int, num_shards: int, file_format: str) -> str:
    """Return a shard's file name by the split's template. Refuse names that leave the folder."""
    number = f"{num_shards:05d}"
    index = f"{shard:0{len(number)}d}"  # as in TFDS, both numbers have equally many digits
    values = {
        "DATASET": name,
        "SPLIT": split["name"],
        "FILEFORMAT": file_format,
        "SHARD_INDEX": index,
        "NUM_SHARDS": number,
        "SHARD_X_OF_Y": f"{index}-of-{number}",
    }
    template = split.get("filepathTemplate") or TEMPLATE
    file = re.sub(r"\{(\w+)\}", lambda match: values[match[1]], template)
    if not file.isprintable() or PurePath(file).is_absolute() or ".." in PurePath(file).parts:
        raise ValueError(f"the file name {file!r:.80} of a shard is not valid")
    return file


def _convert_shard(source: Path, target: Path, length: int) -> int:
    """Copy the records of one shard and check that their number is ``length``."""
    count = 0
    try:
        with incomplete_file(epath.Path(target)) as temporary:
            writer = ArrayRecordWriter(str(temporary), "group_size:1")
            for record in grain.experimental.TFRecordIterDataset(str(source)):
                writer.write(record)
                count += 1
            writer.close()
            if count != length:
                raise UserError(f"{source} has {count} records, but {INFO} says {length}")
    except (ValueError, OverflowError, MemoryError, struct.error) as error:
        raise UserError(
            f"{source} is damaged or cut short in record {count}; prepare or copy the set again"
        ) from error
    except (OSError, RuntimeError) as error:
        raise UserError(f"cannot convert {source}: {error}") from error
    return count
