"""What the files beside a prepared set say of it, checked before TFDS and we believe them."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from array_record.python.array_record_module import ArrayRecordReader

from jaxssl.data import convert
from jaxssl.errors import UserError, one_line

INFO, FEATURES = "dataset_info.json", "features.json"
# TFDS imports whatever module a set names as the home of a feature.
KNOWN = "tensorflow_datasets.core.features."
MOST_CLASSES = 10**6  # TFDS makes up a name for each
MOST_RECORDS, MOST_SHARDS = 2**40, 10**6
SIDE = 2**16  # pixels


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Around what reads a prepared set, whose files are checked first if they are there.

    Raises:
        UserError: in place of what TFDS raises for a damaged one.
    """
    try:
        if folder.exists():
            check(folder)
        yield
    except (UserError, OSError):
        raise
    except Exception as error:  # of many kinds
        raise UserError(damaged(folder, f"{type(error).__name__}: {one_line(error)}")) from error


def damaged(folder: Path, why: str) -> str:
    """The message about a prepared set."""
    return f"the prepared set {folder} is damaged ({why}); remove it to prepare it again"


def check(folder: Path) -> None:
    """Raise UserError if the set names code to run, or sizes that it cannot have."""
    for path in (folder / FEATURES, folder / INFO):
        if not path.exists():
            continue
        try:
            tree = json.loads(path.read_text(encoding="utf-8"))
            _check_features(tree) if path.name == FEATURES else _check_splits(tree)
        except convert.BAD as error:
            why = f"{path.name}: {type(error).__name__}: {one_line(error)}"
            raise UserError(damaged(folder, why)) from error


def check_records(folder: Path, split: str, said: int) -> None:
    """Raise UserError if the files of a split hold another number of records than is said."""
    paths = sorted(folder.glob(f"*-{split}.array_record-*"))  # as TFDS names them, mostly
    found = sum(ArrayRecordReader(str(path)).num_records() for path in paths)
    if paths and found != said:
        raise UserError(damaged(folder, f"{split}: {found} records, not {said}"))


def shape(folder: Path, found: Any) -> tuple[int | None, int | None, int]:
    """[h, w, c] of a set's images, as it says them; h and w may be None.

    Raises:
        UserError: if no images have that shape.
    """
    fits = isinstance(found, list | tuple) and len(found) == 3 and found[2] in (1, 3, 4, None)
    if not fits or not all(x is None or (type(x) is int and 0 < x <= SIDE) for x in found):
        raise UserError(damaged(folder, f"its images have shape {found!r:.80}"))
    return (found[0], found[1], 1 if found[2] == 1 else 3)  # an alpha channel is dropped


def clip_shape(folder: Path, found: Any) -> tuple[int | None, int, int, int]:
    """[t, h, w, c] of a set's clips, as it says them; t may be None.

    Raises:
        UserError: if no clips have that shape.
    """
    fits = isinstance(found, list | tuple) and len(found) == 4 and found[3] in (1, 2, 3)
    sides = (*found[1:3], 1 if found[0] is None else found[0]) if fits else ()
    if not fits or not all(type(x) is int and 0 < x <= SIDE for x in sides):
        raise UserError(damaged(folder, f"its clips have shape {found!r:.80}"))
    return tuple(found)


def count(folder: Path, key: str, metadata: Mapping[str, Any]) -> int:
    """A number > 0 that a set says of itself.

    Raises:
        UserError: if it says none, or an impossible one.
    """
    found = metadata.get(key)
    if type(found) is not int or not 0 < found <= MOST_CLASSES:
        raise UserError(damaged(folder, f"its {key} is {found!r:.80}"))
    return found


def _check_features(tree: Any) -> None:
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            name = node.get("pythonClassName", KNOWN)
            if not isinstance(name, str) or not name.startswith(KNOWN):
                raise ValueError(
                    f"it names the class {name!r:.80}, which is none of TFDS' features"
                )
            if int(node.get("numClasses", 0)) > MOST_CLASSES:
                raise ValueError(f"it has more than {MOST_CLASSES} classes")
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node


def _check_splits(tree: Any) -> None:
    names = [split["name"] for split in tree["splits"]]
    if len(set(names)) < len(names):
        raise ValueError(f"it names a split twice, of {names!r:.80}")
    for split in tree["splits"]:
        lengths = [int(length) for length in split.get("shardLengths", [])]
        if len(lengths) > MOST_SHARDS or not all(0 <= x <= MOST_RECORDS for x in lengths):
            raise ValueError(f"the split {split['name']!r:.80} has impossible lengths")
