"""Check the metadata of a prepared data set before TFDS reads it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from array_record.python.array_record_module import ArrayRecordReader

from jaxssl.components import Settings
from jaxssl.errors import JSON_ERRORS, UserError, one_line

INFO, FEATURES = "dataset_info.json", "features.json"  # metadata files of a prepared data set
# TFDS imports any module that the metadata name for a feature, so only modules of TFDS are allowed.
TFDS_FEATURES = "tensorflow_datasets.core.features."
CLASS_KEYS = ("pythonClassName", "python_class_name", "type")  # of a feature; "type" in old files
MAX_CLASSES = 10**6  # limit on classes, because TFDS generates a name for each
MAX_RECORDS = 2**40  # limit on the records of a shard
MAX_SHARDS = 10**6  # limit on the shards of a split
MAX_SIDE = 2**16  # largest image side in pixels


@contextmanager
def guard(folder: Path) -> Iterator[None]:
    """Check a prepared data set's metadata files, then run the with block, which reads the data.

    Raises:
        UserError: if the set is damaged, in place of the many exceptions of TFDS.
    """
    try:
        if folder.exists():
            check_files(folder)
        yield
    except (UserError, OSError):
        raise
    except Exception as error:
        raise damaged(folder, f"{type(error).__name__}: {one_line(error)}") from error


def check_files(folder: Path) -> None:
    """Raise UserError if a data set's JSON files name code to import or impossible sizes."""
    for name, check in ((FEATURES, _check_features), (INFO, _check_splits)):
        try:
            if (folder / name).exists():
                check(folder, json.loads((folder / name).read_text(encoding="utf-8")))
        except JSON_ERRORS as error:
            raise damaged(folder, f"{name}: {type(error).__name__}: {one_line(error)}") from error


def check_num_records(folder: Path, split: str, expected: int) -> None:
    """Raise UserError if the files of a split do not hold the expected number of records."""
    # TFDS names its files NAME-SPLIT.array_record-*, unless told otherwise. SPLIT may have hyphens.
    # A killed conversion leaves files named incomplete.*.
    paths = [
        path
        for path in sorted(folder.glob("*.array_record-*"))
        if path.name.partition("-")[2].startswith(f"{split}.array_record-")
        and not path.name.startswith("incomplete.")
    ]
    count = sum(ArrayRecordReader(str(path)).num_records() for path in paths)
    if paths and count != expected:
        raise damaged(folder, f"the split {split} has {count} records, not {expected}")


def damaged(folder: Path, reason: str) -> UserError:
    """Return a UserError for a prepared data set that cannot be read."""
    return UserError(
        f"the prepared set {folder} is damaged ({reason}); remove it to prepare it again"
    )


def is_side(value: object) -> bool:
    """Return True for a number of pixels that the side of an image may have."""
    return type(value) is int and 0 < value <= MAX_SIDE


def _check_features(folder: Path, tree: Settings) -> None:
    """Check the Python classes of features, and the number of class names of each label feature."""
    stack: list[object] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            for name in map(node.get, CLASS_KEYS):
                if isinstance(name, str) and not name.startswith(TFDS_FEATURES):
                    raise ValueError(f"the class {name!r:.80} is not a feature of TFDS")
            numbers = [node.get(key) for key in ("numClasses", "num_classes")]
            if any(int(x) > MAX_CLASSES for x in numbers if isinstance(x, int | float | str)):
                raise ValueError(f"the data set has more than {MAX_CLASSES} classes")
            if isinstance(node.get("json"), str):  # JSON inside of JSON, for features of users
                stack.append(json.loads(node["json"]))
            stack += node.values()
        elif isinstance(node, list):
            stack += node
    for name, feature in tree.get("featuresDict", {}).get("features", {}).items():
        path = folder / f"{name}.labels.txt"
        if "classLabel" in feature and path.exists():
            lines = path.read_text(encoding="utf-8").split("\n")
            names = [line for line in lines if line.strip()]
            expected = int(feature["classLabel"].get("numClasses", 0))
            if len(names) != expected:
                raise ValueError(
                    f"{path.name} has {len(names)} class names, but {FEATURES} says {expected}"
                )


def _check_splits(folder: Path, tree: Settings) -> None:
    """Check that the splits have different names and possible sizes."""
    names = [split["name"] for split in tree["splits"]]
    if len(set(names)) < len(names):
        raise ValueError(f"the metadata name a split twice: {names!r:.80}")
    for split in tree["splits"]:
        lengths = [int(length) for length in split.get("shardLengths", [])]
        if len(lengths) > MAX_SHARDS or not all(0 <= x <= MAX_RECORDS for x in lengths):
            raise ValueError(f"the split {split['name']!r:.80} has impossible shard lengths")
