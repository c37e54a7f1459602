"""Small sets from the files their authors publish, prepared without TensorFlow.

Each builder is TFDS' own of that name and version but for reading the files, so what it prepares is
the same set. The files are downloaded, or taken from `data.path`: a folder or an archive of them.
"""

import gzip
import io
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image
from tensorflow_datasets.datasets.stl10 import stl10_dataset_builder

from jaxssl.data import files
from jaxssl.errors import UserError

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
        found, names = {}, set(names)
        for name, read in members:
            name = PurePosixPath(name).name.removesuffix(".gz").replace(".idx", "-idx")
            if name in names:
                data = read()
                found[name] = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        missing = sorted(names - set(found))
        if missing:
            raise UserError(
                f"data.path={self.path} lacks {', '.join(missing)} of {self.name}; expected the "
                f"files of {' '.join(urls.values())}, in a folder or an archive"
            )
        return found

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
            self.info.features[key].names = found[name].decode().split()
        parts = {"train": info.train_files, "test": info.test_files}
        return {
            split: self._generate_examples(self._parse([found[n] for n in names]), split)
            for split, names in parts.items()
        }

    def _parse(self, parts: Sequence[bytes]) -> Split:
        """Each row holds the labels, a byte each, and the red, green and blue plane."""
        keys = self._cifar_info.label_keys
        rows = _shaped(b"".join(parts), (-1, len(keys) + 3072), self.name)
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
            images = _shaped(found[f"{part}-{kinds[0]}"][16:], (-1, 28, 28, 1), self.name)
            labels = _shaped(found[f"{part}-{kinds[1]}"][8:], (len(images),), self.name)
            splits[split] = self._generate_examples((images, {"label": labels}), split)
        return splits


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
        self.info.features["label"].names = found["class_names.txt"].decode().split()
        splits = {}
        for split, (image, *label) in parts.items():
            planes = _shaped(found[image], (-1, 3, 96, 96), self.name)
            labels = np.full(len(planes), -1)
            if label:
                labels = _shaped(found[label[0]], (len(planes),), self.name).astype(int) - 1
            images = planes.transpose(0, 3, 2, 1)
            splits[split] = self._generate_examples((images, {"label": labels}), split)
        return splits


BUILDERS = {b.name: b for b in (Cifar10, Cifar100, Mnist, FashionMnist, Kmnist, Stl10)}


def _shaped(data: bytes, shape: tuple[int, ...], name: str) -> np.ndarray:
    try:
        return np.frombuffer(data, np.uint8).reshape(shape)
    except ValueError as error:
        raise UserError(f"the files of {name} are damaged: {error}; get them again") from error
