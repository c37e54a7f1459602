"""Pictures of a folder or an archive as a data set: `data.name=folder data.path=PATH`.

The layouts that are understood, with the class of a picture being the folder that holds it:

    CLASS/picture.jpg           classes; a share of each is set aside as "test"
    SPLIT/CLASS/picture.jpg     the same with splits such as train and val
    picture.jpg                 no labels, or those of a CSV file

Folders around all of it, such as an archive's own, are skipped.
"""

import csv
import dataclasses
import hashlib
import io
import logging
import os
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow_datasets as tfds

from jaxssl.data import decoding, files
from jaxssl.data.formats import _versions as versions
from jaxssl.errors import UserError, printable

log = logging.getLogger("jaxssl")
UNLABELLED = ("unlabeled", "unlabelled")
SPLITS = ("train", "training", "test", "testing", "val", "valid", "validation", *UNLABELLED)
RULES = 1  # counts up when the same folder would be prepared in another way
NAMED = 3  # files that a message names
GROUP = 2**18  # bytes of pictures that a thread checks at a time
CHANNELS = 3


class Layout(NamedTuple):
    """Which pictures belong to which split, and their classes.

    Attributes:
        splits: for each split the name of every picture and its class; "" is none.
        classes: sorted; label i is the i-th one.
        other: files that are no pictures by their names.
    """

    splits: dict[str, dict[str, str]]
    classes: tuple[str, ...]
    other: tuple[str, ...]


@dataclasses.dataclass
class Config(tfds.core.BuilderConfig):
    """One folder in one state; its name holds a fingerprint of both."""

    root: Path = Path()
    inside: str = ""
    layout: Layout | None = dataclasses.field(default=None, repr=False)  # TFDS logs the others
    on_error: str = "stop"


class Builder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """Pictures as they are in their files, their class and their name.

    The metadata holds the pictures' common size, if there is one, and the files left out.
    """

    name = "folder"
    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> tfds.core.DatasetInfo:
        layout = self.builder_config.layout
        features: dict[str, Any] = {
            "image": tfds.features.Image(shape=(None, None, CHANNELS)),
            "file": tfds.features.Text(),
        }
        if layout.classes:
            features["label"] = tfds.features.ClassLabel(names=list(layout.classes))
        return tfds.core.DatasetInfo(
            builder=self,
            description=f"Pictures of {self.builder_config.root}",
            features=tfds.features.FeaturesDict(features),
            metadata=tfds.core.MetadataDict({"shape": None, "skipped": [], "upright": True}),
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        del dl_manager
        sizes: set[tuple[int, int]] = set()
        layout = self.builder_config.layout
        return {split: self._generate_examples(split, sizes) for split in layout.splits}

    def _generate_examples(
        self, split: str, sizes: set[tuple[int, int]]
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Called for one split after the other; the last one knows about all of them."""
        config, metadata = self.builder_config, self.info.metadata
        layout = config.layout
        classes, bad = layout.splits[split], []
        wanted = (item for item in files.read_all(config.root, config.inside) if item[0] in classes)
        for name, data, found in checked(wanted):
            if isinstance(found, str):
                bad.append(f"{name}: {found}")
                continue
            sizes.add(found)
            example = {"image": data, "file": name}
            if layout.classes:
                example["label"] = classes[name] or -1
            yield name, example
        metadata["skipped"] += bad
        metadata["shape"] = [*next(iter(sizes)), CHANNELS] if len(sizes) == 1 else None
        if len(bad) == len(classes):
            raise UserError(
                f"none of the {len(bad)} pictures of {split!r} in {config.root} can be read "
                f"({some(bad)}); mend them or name another folder"
            )
        if metadata["skipped"] and config.on_error == "stop" and split == [*layout.splits][-1]:
            raise UserError(unreadable(config.root, metadata["skipped"]))


def builder(data: Mapping[str, Any], data_dir: str | None) -> tfds.core.DatasetBuilder:
    """The builder of a folder in its present state, which its name holds a fingerprint of.

    Args:
        data: "path", "labels" (a CSV file), "test_fraction", "split_seed" and "on_error".
        data_dir: where prepared sets lie; None is TFDS' own place.

    Raises:
        UserError: if the folder is none, holds no pictures, or has a layout that is not understood.
    """
    path, on_error, fraction = data["path"], data["on_error"], data["test_fraction"]
    if not path:
        raise UserError("data.name='folder' needs data.path: a folder or an archive of pictures")
    versions.check_on_error(on_error)
    if not 0 <= fraction < 1:
        raise UserError(f"data.test_fraction={fraction} must lie in [0, 1)")
    root, inside = files.locate(path)
    labels = read_labels(data["labels"]) if data["labels"] else None
    state = (
        RULES,
        files.stamp(root, decoding.SUFFIXES),
        inside,
        str(root.resolve()),
        fraction,
        data["split_seed"],
    )
    name = versions.name_of(path, (state, labels), "folder")
    if found := versions.prepared(Builder, name, data_dir):
        return found
    config = Config(name=name, root=root, inside=inside, on_error=on_error)
    names = [name for name, _ in files.read_all(root, inside)]
    if inside and not names:
        raise UserError(f"data.path={path}: the archive {root} has no folder {inside!r}")
    config.layout = arrange(
        names, path, of_picture=labels, test_fraction=fraction, split_seed=data["split_seed"]
    )
    if other := config.layout.other:
        log.info("data       %d files are no pictures and left out: %s", len(other), some(other))
    return Builder(data_dir=data_dir, config=config)


def arrange(
    names: Iterable[str],
    path: str,
    *,
    of_picture: Mapping[str, str] | None = None,
    test_fraction: float = 0.2,
    split_seed: int = 0,
) -> Layout:
    """Splits and classes from the names of the files below ``path``.

    Args:
        names: relative to ``path``, with slashes.
        path: for messages.
        of_picture: class of each picture by its name, instead of the folders'.
        test_fraction: share of each class set aside as "test" where folders make no splits.
        split_seed: which ones; they depend on the names alone, not on the order.

    Raises:
        UserError: if there are no pictures, or the layout is not understood.
    """
    names = sorted(names)
    found = [name for name in names if name.lower().endswith(decoding.SUFFIXES)]
    other = tuple(name for name in names if not name.lower().endswith(decoding.SUFFIXES))
    if not found:
        raise UserError(
            f"data.path={path} holds no pictures ({len(other)} other files); expected files "
            f"ending in {', '.join(decoding.SUFFIXES)}"
        )
    below = len(_common(found))
    parts = {name: name.split("/")[below:] for name in found}
    splits = _split(parts, path)
    if of_picture is not None:
        _check_labels(of_picture, found)
        splits = {s: {n: of_picture.get(n, "") for n in of} for s, of in splits.items()}
    for split, of in splits.items():
        loose = [name for name, c in of.items() if not c]
        if 0 < len(loose) < len(of):
            what = "lie beside the folders of classes; move them into one, or away"
            if of_picture is not None:
                what = "have no label in data.labels; give all pictures of a split one, or none"
            raise UserError(f"data.path={path}: of {split!r}, {some(loose)} {what}")
    classes = sorted({c for of in splits.values() for c in of.values()} - {""})
    if len(classes) == 1:
        raise UserError(
            f"data.path={path} holds a single class, {classes[0]!r}; expected a folder for each of "
            "several classes; for pictures without labels, name the folder they lie in"
        )
    if list(splits) == ["train"] and test_fraction:
        ranks = {name: f"{split_seed}/{'/'.join(p)}" for name, p in parts.items()}
        splits = _set_aside(splits["train"], test_fraction, ranks)
    return Layout(splits, tuple(classes), other)


def _split(parts: Mapping[str, Sequence[str]], path: str) -> dict[str, dict[str, str]]:
    """The class of each picture by split, where the folders' names tell them, or as "train"."""
    splits = {p[0]: {} for p in parts.values() if len(p) > 1 and p[0].lower() in SPLITS}
    if len(splits) < 2:
        return {"train": {name: "/".join(p[:-1]) for name, p in parts.items()}}
    beside = [name for name, p in parts.items() if p[0] not in splits]
    if beside:
        raise UserError(
            f"data.path={path}: {some(beside)} lie beside the folders of the splits "
            f"{', '.join(sorted(splits))}; move them into one, or away"
        )
    for name, (split, *folders, _) in parts.items():
        splits[split][name] = "" if split.lower() in UNLABELLED else "/".join(folders)
    return dict(sorted(splits.items()))


def read_labels(path: str) -> dict[str, str]:
    """The classes in a CSV file with the header "file,label", by the pictures' names.

    Raises:
        UserError: if it cannot be read, or is another kind of file.
    """
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8-sig")
        reader = csv.DictReader(io.StringIO(text, newline=""))
        rows = [(row.get("file"), (row.get("label") or "").strip()) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"data.labels={path} cannot be read: {error}") from error
    if not {"file", "label"} <= set(reader.fieldnames or ()):
        raise UserError(
            f"data.labels={path} must be a CSV file with the header 'file,label'; its first line "
            f"is {text.partition(chr(10))[0][:80]!r}"
        )
    for place, row in enumerate(rows, 1):
        if not all(row):
            raise UserError(f"data.labels={path} lacks the file or the label in row {place}")
    twice = sorted(name for name, count in Counter(name for name, _ in rows).items() if count > 1)
    if twice:
        raise UserError(f"data.labels={path} names files twice: {some(twice)}; leave one of each")
    return dict(rows)


def unreadable(root: Path, bad: Sequence[str]) -> str:
    """The message about pictures that cannot be read."""
    return (
        f"{len(bad)} of the pictures in {root} cannot be read ({some(bad)}); mend or remove them, "
        "or leave them out with data.on_error=skip"
    )


def checked(
    wanted: Iterable[tuple[str, files.Read]],
) -> Iterator[tuple[str, bytes, tuple[int, int] | str]]:
    """Name, bytes, and height and width, or what is wrong with it; decoded by several threads."""

    def check(group: Sequence[tuple[str, bytes, str]]) -> list[tuple]:
        return [(name, data, error or _size(data)) for name, data, error in group]

    def groups() -> Iterator[list[tuple[str, bytes, str]]]:
        group, total = [], 0
        for name, read in wanted:
            try:
                data, error = read(), ""
            except OSError as reason:
                data, error = b"", str(reason)
            group, total = [*group, (name, data, error)], total + len(data)
            if total > GROUP:
                yield group
                group, total = [], 0
        yield group

    threads = files.cores()
    with ThreadPoolExecutor(threads) as pool:
        running = deque()
        for group in groups():
            running.append(pool.submit(check, group))
            if len(running) > threads:
                yield from running.popleft().result()
        while running:
            yield from running.popleft().result()


def _size(data: bytes) -> tuple[int, int] | str:
    """Height and width of a picture, or what is wrong with it."""
    if not data:
        return "is empty"
    try:
        picture = decoding.open_picture(data, CHANNELS, upright=True)
    except Exception as error:  # Pillow's decoders raise all sorts
        return str(error) or type(error).__name__
    return picture.height, picture.width


def _common(names: Sequence[str]) -> list[str]:
    """The folders around all pictures, without the class of a single one."""
    folders = sorted({name.rpartition("/")[0] for name in names})
    if len(folders) == 1:
        return folders[0].split("/")[:-1]
    common = os.path.commonpath([f"/{folder}" for folder in folders])
    return [name for name in common.split("/") if name]


def _set_aside(
    of: Mapping[str, str], fraction: float, ranks: Mapping[str, str]
) -> dict[str, dict[str, str]]:
    """Train and test: of each class the pictures whose ranks hash lowest are the test's.

    Each keeps one for either, so a class of one picture has none in the test.
    """
    members: dict[str, list[str]] = {}
    for name in sorted(of, key=lambda name: hashlib.sha256(ranks[name].encode()).digest()):
        members.setdefault(of[name], []).append(name)
    test = set()
    for names in members.values():
        count = max(1, round(fraction * len(names)))
        test |= set(names[: min(count, len(names) - 1)])
    splits = {
        "train": {name: c for name, c in of.items() if name not in test},
        "test": {name: c for name, c in of.items() if name in test},
    }
    return {split: of for split, of in splits.items() if of}


def _check_labels(of_picture: Mapping[str, str], found: Sequence[str]) -> None:
    missing = sorted(set(of_picture) - set(found))
    if missing:
        raise UserError(
            f"data.labels names {len(missing)} pictures that data.path does not hold: "
            f"{some(missing)}; expected names such as {some(found[:1])}"
        )


def some(items: Sequence[str]) -> str:
    """The first few, and how many more."""
    more = f" and {len(items) - NAMED} more" if len(items) > NAMED else ""
    return ", ".join(map(printable, items[:NAMED])) + more
