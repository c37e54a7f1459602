"""Derive splits and classes of pictures and clips from the folders that hold them.

`Builder` is the part that the TFDS builders of `folder` and `video` share.
"""

import hashlib
import os
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypedDict, Unpack

import tensorflow_datasets as tfds

from jaxssl.components import Settings
from jaxssl.data import KeyedExamples
from jaxssl.data.formats import user_files
from jaxssl.errors import UserError, abbreviate

UNLABELLED = ("unlabeled", "unlabelled")
SPLITS = (
    "train",
    "training",
    "test",
    "testing",
    "val",
    "valid",
    "validation",
    "dev",
    "eval",
    *UNLABELLED,
)


class SplitOptions(TypedDict, total=False):
    """Choice of the test examples of a data set without folders for splits.

    Attributes:
        test_fraction: share of each class that becomes the split "test", in [0, 1), by default 0.2.
        split_seed: selects the test examples, together with their names, by default 0. The order of
            names and the folders around all examples have no influence.
    """

    test_fraction: float
    split_seed: int


class Layout(NamedTuple):
    """Splits, classes and file names of a user's data set.

    Attributes:
        splits: for each split the names of its examples and their classes. "" is no class.
        classes: sorted. Label i is the i-th one.
        other: files that are not used.
        files: for each clip its files: a video, or frames in order. For optical flow, the frames of
            x precede the frames of y. Empty for pictures.
        channels: of the examples. For clips 3 is RGB, and 2 optical flow.
        frame_size: largest side of the frames of clips.
    """

    splits: dict[str, dict[str, str]]
    classes: tuple[str, ...]
    other: tuple[str, ...]
    files: Mapping[str, tuple[str, ...]] = {}
    channels: int = 3
    frame_size: int = 0


class Builder(user_files.Builder, skip_registration=True):
    """TFDS builder of examples with class and file name, which skips unreadable files."""

    noun = "pictures"
    title = "Pictures"
    feature = "image"  # name of the TFDS feature that holds the example

    @abstractmethod
    def _read(self, classes: Mapping[str, str]) -> Iterator[user_files.Checked]:
        """Yield name, content and size of each example, or the reason why it cannot be read."""

    @abstractmethod
    def _shape(self, sizes: set[tuple[int, int]]) -> list[int | None] | None:
        """Return the shape that the metadata record, from the sizes of all examples."""

    @property
    def layout(self) -> Layout:
        """Return the splits, classes and file names."""
        return self.builder_config.contents

    def _describe(self, feature: object, metadata: Settings) -> tfds.core.DatasetInfo:
        classes = self.layout.classes
        features = {self.feature: feature, "file": tfds.features.Text()}
        if classes:
            features["label"] = tfds.features.ClassLabel(names=list(classes))
        return self._make_info(self.title, features, metadata)

    def _split_generators(self, dl_manager: object) -> dict[str, object]:
        sizes: set[tuple[int, int]] = set()
        return {split: self._generate_examples(split, sizes) for split in self.layout.splits}

    def _generate_examples(self, split: str, sizes: set[tuple[int, int]]) -> KeyedExamples:
        # Splits are generated in order, so the last one completes the metadata of the data set.
        source, metadata = self.builder_config.source, self.info.metadata
        layout, reasons = self.layout, []
        for name, content, size in self._read(layout.splits[split]):
            if isinstance(size, str):
                reasons.append(f"{name}: {size}")
                continue
            sizes.add(size)
            example = {self.feature: content, "file": name}
            if layout.classes:
                example["label"] = layout.splits[split][name] or -1
            yield name, example
        assert metadata is not None
        metadata["skipped"] += reasons
        if len(reasons) == len(layout.splits[split]):
            raise UserError(
                f"none of the {len(reasons)} {self.noun} of {split!r} in {source.root} can be read "
                f"({abbreviate(reasons)}); repair them or name another folder"
            )
        metadata["shape"] = self._shape(sizes)
        if source.on_error == "stop" and split == [*layout.splits][-1]:
            user_files.report_unreadable(self.noun, source.root, metadata["skipped"])


def assign(
    names: Sequence[str],
    path: str,
    *,
    noun: str,
    labels: Mapping[str, str] | None = None,
    hash_suffix: str = "",
    group: Callable[[str], str] = lambda name: name,
    **split: Unpack[SplitOptions],
) -> tuple[dict[str, dict[str, str]], tuple[str, ...]]:
    """Assign examples to splits and classes by the folders in their names.

    Args:
        names: of the examples, relative to ``path``, with slashes, at least one.
        path: for messages.
        noun: "pictures" or "clips", for messages.
        labels: class of each example by its name, instead of the folders.
        hash_suffix: appended to the names before they are hashed to select the test examples.
        group: maps the name of an example to that of its group. A group is in one split.
        **split: see `SplitOptions`.

    Returns:
        The splits and classes as in `Layout`.

    Raises:
        UserError: if the layout is not understood, or the share is not in [0, 1).
    """
    test_fraction, seed = split.get("test_fraction", 0.2), split.get("split_seed", 0)
    if not 0 <= test_fraction < 1:
        raise UserError(f"data.test_fraction must be in [0, 1), got {test_fraction}")
    depth = len(_common_folders(names))
    paths = {name: name.split("/")[depth:] for name in names}
    splits = _split_by_folders(paths, path, labels is not None)
    problem, mend = "outside of its class folders", "move them into a class folder or elsewhere"
    expected = (
        f"a folder for each of several classes; for {noun} without labels, name the folder they "
        "lie in"
    )
    if len(folders := {name.rpartition("/")[0] for name in names}) == 1:
        expected += f": {path.rstrip('/')}/{folders.pop()}"
    if labels is not None:
        expected = "several classes in data.labels; for pictures without labels, leave it empty"
        problem, mend = "without a label in data.labels", "label all pictures of a split, or none"
        if missing := sorted(set(labels) - set(names)):
            raise UserError(
                f"data.labels names pictures that data.path does not hold: {abbreviate(missing)}; "
                f"expected names such as {abbreviate(names[:1])}"
            )
        for classes in splits.values():
            classes.update({name: labels.get(name, "") for name in classes})
    for split_name, classes in splits.items():
        loose = [name for name, label in classes.items() if not label]
        if 0 < len(loose) < len(classes):
            raise UserError(
                f"data.path={path}: the split {split_name!r} has {noun} {problem} "
                f"({abbreviate(loose)}); {mend}"
            )
    class_names = _list_classes(splits, path, expected)
    if list(splits) == ["train"] and test_fraction:
        keys = {n: f"{seed}/{group('/'.join(p))}{hash_suffix}" for n, p in paths.items()}
        splits = _split_off_test(splits["train"], test_fraction, keys)
    return splits, class_names


def _list_classes(
    splits: Mapping[str, Mapping[str, str]], path: str, expected: str
) -> tuple[str, ...]:
    """List the sorted names of all classes.

    Args:
        splits: as `Layout.splits`.
        path: for messages.
        expected: description of a valid layout, for the message about a single class.

    Raises:
        UserError: if a name is not valid, or only one class is found.
    """
    labels = {label for classes in splits.values() for label in classes.values()}
    class_names = tuple(sorted(labels - {""}))
    for name in class_names:  # TFDS stores one name a line.
        if name != name.strip() or {"\n", "\r"} & set(name):
            raise UserError(
                f"data.path={path}: the class name {name!r} has a line break, or spaces at an end; "
                "rename the folder or the label"
            )
    if len(class_names) == 1:
        raise UserError(
            f"data.path={path} holds a single class, {class_names[0]!r}; expected {expected}"
        )
    return class_names


def _split_by_folders(
    paths: Mapping[str, Sequence[str]], path: str, in_table: bool
) -> dict[str, dict[str, str]]:
    """Return the classes of the examples in each split, by the folders that hold the examples.

    Args:
        paths: file name of each example after its folders, without folders around all examples.
        path: for messages.
        in_table: whether a table has the classes, so that folders are only splits.

    Returns:
        As `Layout.splits`. The only split is "train" unless two or more folders are splits.
    """
    splits = {first: {} for first, *rest in paths.values() if rest and first.lower() in SPLITS}
    # A single folder "train" may be a class, unless it holds folders of classes.
    has_classes = any(first in splits and len(rest) > 1 for first, *rest in paths.values())
    if len(splits) < 2 and (in_table or not has_classes):
        alone = next((first for first in splits if first.lower() in UNLABELLED), None)
        if alone and not in_table and len({first for first, *rest in paths.values() if rest}) > 1:
            raise UserError(
                f"data.path={path} has the folder {alone} beside class folders; move the classes "
                "into a folder 'train', or rename it if it is a class"
            )
        return {"train": {name: "/".join(folders) for name, (*folders, _) in paths.items()}}
    outside = [name for name, (first, *_) in paths.items() if first not in splits]
    if outside:
        raise UserError(
            f"data.path={path} mixes the split folders {', '.join(sorted(splits))} with others "
            f"({abbreviate(outside)}); move these into a split folder or elsewhere, rename their "
            f"folder to one of {', '.join(SPLITS)}, or rename a class folder of such a name"
        )
    for name, (split, *folders, _) in paths.items():
        splits[split][name] = "" if split.lower() in UNLABELLED else "/".join(folders)
    return dict(sorted(splits.items()))


def _common_folders(names: Sequence[str]) -> list[str]:
    """List the folders that contain all examples, except a folder that is the only class."""
    folders = sorted({name.rpartition("/")[0] for name in names})
    if len(folders) == 1:
        return folders[0].split("/")[:-1]
    common = os.path.commonpath([f"/{folder}" for folder in folders])
    return [name for name in common.split("/") if name]


def _split_off_test(
    train: Mapping[str, str], fraction: float, keys: Mapping[str, str]
) -> dict[str, dict[str, str]]:
    """Move the examples of each class with the smallest hashes from "train" to a split "test".

    Examples with one key stay together. Each split gets at least one example of a class. A class
    whose examples have one key is in "train" only.
    """
    classes: dict[str, dict[str, list[str]]] = {}  # examples by class and key
    for name in sorted(train, key=lambda name: hashlib.sha256(keys[name].encode()).digest()):
        classes.setdefault(train[name], {}).setdefault(keys[name], []).append(name)
    test: set[str] = set()
    for by_key in classes.values():
        *movable, rest = by_key.values()
        count = max(1, round(fraction * sum(map(len, (*movable, rest)))))
        moved: list[str] = []
        for names in movable:
            if len(moved) < count:
                moved += names
        test.update(moved)
    splits = {"train": {name: c for name, c in train.items() if name not in test}}
    if test:
        splits["test"] = {name: c for name, c in train.items() if name in test}
    return splits
