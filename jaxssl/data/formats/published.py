"""Small sets from the files their authors publish, prepared without TensorFlow.

Each builder is TFDS' own of that name and version but for reading the files, so what it prepares is
the same set. The files are downloaded, or taken from `data.path`: a folder or an archive of them.
"""

import gzip
import io
import itertools
import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image
from tensorflow_datasets.datasets.stl10 import stl10_dataset_builder

from jaxssl.data import files
from jaxssl.errors import UserError

GZIP = b"\x1f\x8b\x08"
LARGEST = 2**33  # bytes of a file; STL-10's unlabelled images have 2.8e9

Split = tuple[np.ndarray, dict[str, np.ndarray]]  # images [n, h, w, c], and labels [n] by name


class _Raw:
    """What the builders have in common: files in, examples out."""

    path = ""  # the user's copy of the files

    def _files(
        self, dl_manager: Any, urls: Mapping[str, str], names: Iterable[str]
    ) -> dict[str, bytes]:
        """The named files, from the user's copy or downloaded, unpacked."""
        if self.path:
            members = files.read_all(*files.locate(self.path), largest=LARGEST)
        else:
            paths = {name: Path(p) for name, p in dl_manager.download(dict(urls)).items()}
            members = itertools.chain.from_iterable(
                files.read_all(path, largest=LARGEST) if path.name.endswith(files.ARCHIVES)
                else [(name, path.read_bytes)] for name, path in paths.items()
            )  # fmt: skip
        found, names, where = {}, set(names), self.path
        try:
            for where, read in members:
                name = PurePosixPath(where).name.removesuffix(".gz").replace(".idx", "-idx")
                if name in names:
                    data = read()
                    found[name] = gzip.decompress(data) if data[:3] == GZIP else data
        except (OSError, *files.DAMAGED) as error:
            raise UserError(f"{where} of {self.name} cannot be read: {error}") from error
        missing = sorted(names - set(found))
        if missing:
            place = f"data.path={self.path}" if self.path else "the download"
            raise UserError(
                f"{place} lacks {', '.join(missing)} of {self.name}; expected the files of "
                f"{' '.join(urls.values())}, in a folder or an archive"
            )
        return found

    def _damaged(self, file: str, what: Any) -> UserError:
        return UserError(f"{file} of {self.name} is damaged: {what}; get it again")

    def _rows(self, data: bytes, shape: tuple[int, ...], file: str) -> np.ndarray:
        """The bytes of a file as [n, *shape]."""
        size = math.prod(shape)
        if not data or len(data) % size:
            raise self._damaged(file, f"it has {len(data)} bytes, expected a multiple of {size}")
        return np.frombuffer(data, np.uint8).reshape(-1, *shape)

    def _labels(self, labels: np.ndarray, key: str, number: int, file: str) -> np.ndarray:
        """The labels, if they are as many as the images and name classes."""
        classes = self.info.features[key].num_classes
        if len(labels) != number:
            raise self._damaged(file, f"it has {len(labels)} labels for {number} images")
        if not 0 <= labels.min() <= labels.max() < classes:
            found = f"{labels.min()} to {labels.max()}"
            raise self._damaged(file, f"its classes are {found}, expected 0 to {classes - 1}")
        return labels

    def _set_names(self, key: str, data: bytes, file: str) -> None:
        try:
            self.info.features[key].names = data.decode().split()
        except ValueError as error:  # no text, or other than as many as there are classes
            raise self._damaged(file, error) from error

    def _generate_examples(self, split: Split, prefix: str) -> Iterator[tuple[int, dict[str, Any]]]:
        images, labels = split
        for i, image in enumerate(images):
            png = io.BytesIO()
            Image.fromarray(image.squeeze()).save(png, format="png")
            example = {"image": png.getvalue()}
            example |= {name: int(values[i]) for name, values in labels.items()}
            if "id" in self.info.features:
                example["id"] = f"{prefix}_{i:05d}"
            yield i, example


class Cifar10(_Raw, tfds.image_classification.Cifar10, skip_registration=True):
    """CIFAR-10 and, derived from it, CIFAR-100, from their binary versions."""

    name = "cifar10"
    url_infos = tfds.image_classification.Cifar10.url_infos

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        info = self._cifar_info
        names = (*info.train_files, *info.test_files, *info.label_files)
        found = self._files(dl_manager, {self.name: info.url}, names)
        for key, name in zip(info.label_keys, info.label_files, strict=True):
            self._set_names(key, found[name], name)
        return {
            split: self._generate_examples(self._parse({n: found[n] for n in names}), split)
            for split, names in (("train", info.train_files), ("test", info.test_files))
        }

    def _parse(self, parts: Mapping[str, bytes]) -> Split:
        """Each row holds the labels, a byte each, and the red, green and blue plane."""
        keys, found = self._cifar_info.label_keys, []
        for file, data in parts.items():
            found.append(self._rows(data, (len(keys) + 3072,), file))
            for i, key in enumerate(keys):
                self._labels(found[-1][:, i], key, len(found[-1]), file)
        rows = np.concatenate(found)
        images = rows[:, len(keys) :].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        return np.ascontiguousarray(images), {key: rows[:, i] for i, key in enumerate(keys)}


class Cifar100(Cifar10, tfds.image_classification.Cifar100, skip_registration=True):
    """Of the two labels, "label" is the fine one."""

    name = "cifar100"
    url_infos = tfds.image_classification.Cifar100.url_infos


class Mnist(_Raw, tfds.image_classification.MNIST, skip_registration=True):
    """The MNIST family, from its four idx files."""

    name = "mnist"
    url_infos = tfds.image_classification.MNIST.url_infos

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        parts = {"train": "train", "test": "t10k"}
        kinds = ("images-idx3-ubyte", "labels-idx1-ubyte")
        names = [f"{part}-{kind}" for part in parts.values() for kind in kinds]
        found = self._files(dl_manager, {name: f"{self.URL}{name}.gz" for name in names}, names)
        splits = {}
        for split, part in parts.items():
            image, label = (f"{part}-{kind}" for kind in kinds)
            images = self._idx(found[image], (28, 28), image)
            labels = self._idx(found[label], (), label)
            labels = self._labels(labels, "label", len(images), label)
            splits[split] = self._generate_examples((images, {"label": labels}), split)
        return splits

    def _idx(self, data: bytes, shape: tuple[int, ...], file: str) -> np.ndarray:
        """Two zeros, 8 for bytes, the number of axes, their lengths, then [n, *shape]."""
        axes = 1 + len(shape)
        magic, start = bytes((0, 0, 8, axes)), 4 + 4 * axes
        if not data.startswith(magic) or len(data) < start:
            raise self._damaged(file, f"it does not begin as an idx file, {magic.hex(' ')}")
        lengths = struct.unpack_from(f">{axes}I", data, 4)
        if lengths[1:] != shape or math.prod(lengths) != len(data) - start:
            size = "x".join(map(str, lengths))
            raise self._damaged(file, f"it announces {size} bytes and has {len(data) - start}")
        return self._rows(data[start:], shape, file)


class FashionMnist(Mnist, tfds.image_classification.FashionMNIST, skip_registration=True):
    """The same files with clothes."""

    name = "fashion_mnist"
    url_infos = tfds.image_classification.FashionMNIST.url_infos


class Kmnist(Mnist, tfds.image_classification.KMNIST, skip_registration=True):
    """The same files with Japanese characters."""

    name = "kmnist"
    url_infos = tfds.image_classification.KMNIST.url_infos


class Stl10(_Raw, stl10_dataset_builder.Builder, skip_registration=True):
    """STL-10, from its binary version; the split "unlabelled" has the label -1."""

    name = "stl10"
    url_infos = stl10_dataset_builder.Builder.url_infos

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        parts = {"train": ("train_X.bin", "train_y.bin"), "test": ("test_X.bin", "test_y.bin")}
        parts["unlabelled"] = ("unlabeled_X.bin",)
        names = [name for part in parts.values() for name in part] + ["class_names.txt"]
        found = self._files(dl_manager, {self.name: stl10_dataset_builder.URL}, names)
        self._set_names("label", found["class_names.txt"], "class_names.txt")
        splits = {}
        for split, (image, *label) in parts.items():
            planes = self._rows(found[image], (3, 96, 96), image)  # of columns
            labels = np.full(len(planes), -1)
            for file in label:
                labels = self._rows(found[file], (), file).astype(int) - 1
                self._labels(labels, "label", len(planes), file)
            images = planes.transpose(0, 3, 2, 1)
            splits[split] = self._generate_examples((images, {"label": labels}), split)
        return splits


BUILDERS = {b.name: b for b in (Cifar10, Cifar100, Mnist, FashionMnist, Kmnist, Stl10)}
