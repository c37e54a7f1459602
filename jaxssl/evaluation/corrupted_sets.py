"""Read the published sets of corrupted test images, CIFAR-10-C and ImageNet-C.

A set is a folder of `data.dir`, either as its authors publish it or as TFDS prepares it:

    CIFAR-10-C/fog.npy, labels.npy              the test images at severity 1, then 2, ..., 5
    ImageNet-C/fog/3/n01440764/PICTURE.JPEG     a folder for each corruption, severity and class
    cifar10_corrupted/fog_3/                    TFDS' copy of CIFAR-10-C
    imagenet2012_corrupted/fog_3/               TFDS' own run of the authors' code, not their files
"""

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict
from tensorflow_datasets.core import constants

from jaxssl.augment.corruptions import CORRUPTIONS, SEVERITIES
from jaxssl.buckets import fetch
from jaxssl.data import source
from jaxssl.data.decoders import decoding, files
from jaxssl.data.decoders.arrays import LazyArray
from jaxssl.errors import one_line

CIFAR10 = tuple("airplane automobile bird cat deer dog frog horse ship truck".split())
TFDS_NAMES = {"glass_blur": "frosted_glass_blur", "elastic_transform": "elastic"}
# For each data set: TFDS' names of the corruptions, and the split that has the corrupted images.
TFDS = {
    "cifar10_corrupted": ({name: TFDS_NAMES.get(name, name) for name in CORRUPTIONS}, "test"),
    "imagenet2012_corrupted": ({name: name for name in CORRUPTIONS}, "validation"),
}

Labelled = tuple[np.ndarray | LazyArray, np.ndarray]  # images [n, h, w, c] uint8, labels [n]
Key = tuple[str, int]  # corruption and severity
Readers = dict[Key, Callable[[], Labelled]]


def open_set(
    name: str,
    data: ConfigDict,
    class_names: Sequence[str],
    size: int,
    interpolation: str = "bilinear",
) -> Readers:
    """Open a published set of corrupted images. Pictures are read later.

    Args:
        name: folder of the set, see above.
        data: the group `config.data`. Its "dir" holds the folder.
        class_names: the classes. Labels of the result are indices of them.
        size: side in pixels to which pictures of files are resized.
        interpolation: of the resizing, "bilinear" or "bicubic".

    Returns:
        Functions that read images and labels, by corruption and severity.

    Raises:
        ValueError: if the set is not there or lacks a corruption at a severity, the set has other
            classes, or the numbers of labels and of images do not fit.
    """
    folder = os.path.expanduser(data.get("dir") or constants.DATA_DIR)
    root = fetch(f"{folder}/{name}")
    if name.startswith(("CIFAR", "cifar")) and tuple(class_names) != CIFAR10:
        raise ValueError(
            f"{name} has the classes {', '.join(CIFAR10)}, got {', '.join(class_names[:10])}; "
            "evaluate on --dataset cifar10"
        )
    if name == "CIFAR-10-C":
        readers = _find_arrays(root)
    elif name == "ImageNet-C":
        readers = _find_pictures(root, class_names, size, interpolation)
    else:
        readers = _find_prepared(root, data, class_names, size, interpolation)
    expected = [(corruption, severity) for corruption in CORRUPTIONS for severity in SEVERITIES]
    if lacking := [key for key in expected if key not in readers]:
        raise ValueError(
            f"{root} lacks {_describe(lacking)}; it holds {_describe(readers) or 'nothing'}; "
            f"put the whole set there, or name the folder that has {name} by --config.data.dir"
        )
    return readers


def _describe(keys: Iterable[Key]) -> str:
    """Describe corruptions with their severities, such as "fog 1 2 3 4, snow 5"."""
    severities: dict[str, str] = {}
    for name, severity in keys:
        severities[name] = f"{severities.get(name, name)} {severity}"
    return ", ".join(severities.values())


def _find_arrays(root: Path) -> Readers:
    """Find the severities in the arrays of CIFAR-10-C."""
    if not (root / "labels.npy").is_file():
        raise ValueError(f"{root} lacks labels.npy; put the files of CIFAR-10-C there")
    labels = _load(root / "labels.npy").astype(np.int64)
    number, rest = divmod(len(labels), len(SEVERITIES))  # number of images of each severity
    if rest or not number:
        raise ValueError(f"{root}/labels.npy must have labels of 5 severities, got {len(labels)}")

    def read(images: np.ndarray, severity: int) -> tuple[np.ndarray, np.ndarray]:
        rows = slice((severity - 1) * number, severity * number)
        return images[rows], labels[rows]

    readers = {}
    for path in filter(Path.is_file, [root / f"{name}.npy" for name in CORRUPTIONS]):
        images = _load(path)
        if len(images) > len(labels):
            raise ValueError(
                f"{path} must have {len(labels)} images like labels.npy, got {len(images)}"
            )
        for severity in SEVERITIES[: len(images) // number]:
            readers[path.stem, severity] = partial(read, images, severity)
    return readers


def _load(path: Path) -> np.ndarray:
    try:
        return np.load(path, mmap_mode="r")
    except (OSError, EOFError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {one_line(error)}") from error


def _find_pictures(
    root: Path, class_names: Sequence[str], size: int, interpolation: str
) -> Readers:
    """Find ImageNet-C's folders, one for each corruption and severity."""
    counts: dict[Path, int] = {}  # number of pictures in each folder that was read

    def read(folder: Path) -> tuple[LazyArray, np.ndarray]:
        classes = sorted(path.name for path in folder.iterdir() if path.is_dir())
        _check_classes(classes, class_names, folder)
        by_class = [sorted(filter(_is_picture, (folder / name).iterdir())) for name in class_names]
        pictures = list(itertools.chain(*by_class))
        labels = np.repeat(np.arange(len(by_class)), [len(members) for members in by_class])
        counts[folder] = len(pictures)
        first = next(iter(counts))
        if not all(by_class) or len(pictures) != counts[first]:
            raise ValueError(
                f"{folder} must have pictures of every class, and as many as {first} "
                f"({counts[first]}), got {len(pictures)}; extract the set again"
            )

        def decode(indices: np.ndarray) -> Iterator[np.ndarray]:
            return (_decode(pictures[i], size, interpolation) for i in indices)

        return LazyArray(decode, (len(pictures), size, size, 3), files.cpu_count()), labels

    folders = {(name, s): root / name / str(s) for name in CORRUPTIONS for s in SEVERITIES}
    return {key: partial(read, folder) for key, folder in folders.items() if folder.is_dir()}


def _decode(path: Path, size: int, interpolation: str) -> np.ndarray:
    """Read a picture and resize its central square."""
    try:
        picture = decoding.open_picture(path.read_bytes(), 3)
        return decoding.centre(picture, size, 1.0, interpolation)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {one_line(error)}") from error


def _is_picture(path: Path) -> bool:
    return path.suffix.lower() in decoding.SUFFIXES


def _find_prepared(
    root: Path, data: ConfigDict, class_names: Sequence[str], size: int, interpolation: str
) -> Readers:
    """Find a TFDS data set's prepared configurations, one for each corruption and severity."""
    names, split = TFDS[root.name]

    def read(config: str) -> tuple[LazyArray, np.ndarray]:
        keys = {"name": f"{root.name}/{config}", "dir": str(root.parent)}
        unused = {"path": "", "labels": "", "classes": "", "channels": 0}
        opened = source.load(ConfigDict({**data, **keys, **unused}), split)
        labels = opened.labels
        if root.name != "cifar10_corrupted":  # TFDS has no class names of CIFAR-10-C.
            _check_classes(opened.class_names, class_names, root / config)
            labels = np.array([class_names.index(name) for name in opened.class_names])[labels]
        return opened.lazy_images(size, 1.0, interpolation), labels

    configs = {(name, s): f"{theirs}_{s}" for name, theirs in names.items() for s in SEVERITIES}
    prepared = {path.parents[1].name for path in root.glob("*/*/dataset_info.json")}
    return {key: partial(read, config) for key, config in configs.items() if config in prepared}


def _check_classes(theirs: Sequence[str], class_names: Sequence[str], place: Path) -> None:
    """Raise ValueError unless a set at ``place`` has the classes of the test set."""
    if different := sorted(set(theirs) ^ set(class_names)):
        raise ValueError(
            f"{place} must have the {len(class_names)} classes of the test set, got "
            f"{len(theirs)}; {different[0]!r} is in one of them only"
        )
