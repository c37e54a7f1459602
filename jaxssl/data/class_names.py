"""Select classes: of subsets of published sets, or those in a file of the user."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from jaxssl.data.records import UNLABELLED
from jaxssl.data.splits import Source, labels_of
from jaxssl.errors import UserError, suggest

# name of a subset to the whole set, and the file of its classes
SUBSETS = {"imagenet100": ("imagenet2012", Path(__file__).with_name("imagenet100.txt"))}


def read_classes(path: Path) -> list[str]:
    """Read class names from a text file with one class a line.

    Text after a tab, and lines that start with #, are ignored.

    Raises:
        UserError: if the file cannot be read, is empty, or names a class twice.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"data.classes={path} cannot be read: {error}") from error
    names = [line.split("\t")[0].strip() for line in lines]
    names = [name for name in names if name and not name.startswith("#")]
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if not names or repeated:
        problem = f"names {repeated[0]!r} twice" if repeated else "names no class"
        raise UserError(f"data.classes={path} {problem}; expected one class a line, each once")
    return names


def finish(source: Source, data: ConfigDict) -> Source:
    """Select the classes that ``data.classes`` lists, and refuse an empty split."""
    _, classes = SUBSETS.get(data["name"], (None, None))
    if classes := data["classes"] or classes:
        source = _select_classes(source, read_classes(Path(classes).expanduser()), classes)
    if not len(source):
        raise UserError(
            f"split {source.split!r} of {data['name']!r} has no examples; take another slice"
        )
    return source


def _select_classes(source: Source, names: Sequence[str], path: object) -> Source:
    """Keep the examples of the classes ``names``, relabelled by their index in ``names``."""
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
    for part, indices in source.parts:
        labels = labels_of(part)[indices]
        parts.append((part, indices[(labels >= 0) & (relabel[labels] >= 0)]))
    return replace(source, parts=tuple(parts), class_names=tuple(names), relabel=relabel)
