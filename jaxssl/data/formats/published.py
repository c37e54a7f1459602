"""CIFAR, MNIST and STL-10 from the files that their authors publish, without TensorFlow.

Each builder is TFDS' builder of that name and version, except for reading the files, so it prepares
the same set. The files are downloaded, or read from `data.path`, a folder or an archive.
"""

import io
import itertools
import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, cast

import numpy as np
import requests
import tensorflow_datasets as tfds
from PIL import Image
from tensorflow_datasets.core.download.resource import get_dl_fname
from tensorflow_datasets.datasets.stl10 import stl10_dataset_builder

from jaxssl.data import KeyedExamples
from jaxssl.data.decoders import decompression, files
from jaxssl.errors import UserError, one_line

# Methods of these TFDS builders have no types, or other types than in their base class.
builders: Any = tfds.image_classification
stl10: Any = stl10_dataset_builder
GZIP_MAGIC = b"\x1f\x8b\x08"
CONNECT_SECONDS = 5  # time limit for a connection to each address of a host
MAX_FILE = 2**33  # largest file in bytes (STL-10's unlabelled images have 2.8e9)

# The first training labels of sets with the same file names, to tell the sets apart.
FIRST_LABELS = {
    "mnist": (5, 0, 4, 1, 9, 2, 1, 3, 1, 4),
    "fashion_mnist": (9, 0, 0, 3, 0, 2, 7, 2, 5, 5),
}

FULL = 60_000  # number of training images of these sets

# images [n, h, w, c], and labels [n] by feature name
Split = tuple[np.ndarray, dict[str, np.ndarray]]


class _PublishedBuilder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """TFDS builder for the files that the authors of a data set publish."""

    path = ""  # path of the user's copy of the files, or "" to download them

    @property
    def _features(self) -> Mapping[str, tfds.features.ClassLabel]:
        return cast(Mapping[str, tfds.features.ClassLabel], self.info.features)

    def _read_all(
        self,
        dl_manager: tfds.download.DownloadManager,
        urls: Mapping[str, str],
        names: Sequence[str],
    ) -> dict[str, bytes]:
        """Read the named files of a data set, from `data.path` if it is set, or else downloaded.

        A name has neither folders nor the ending .gz. Compressed files are decompressed.
        """
        if self.path:
            members = files.read_files(*files.locate(self.path), max_bytes=MAX_FILE)
        else:
            if not all(self._is_downloaded(dl_manager, url) for url in urls.values()):
                self._check_network(urls)
            paths = {name: Path(p) for name, p in dl_manager.download(dict(urls)).items()}
            members = itertools.chain.from_iterable(
                files.read_files(path, max_bytes=MAX_FILE)
                if path.name.endswith(files.ARCHIVES)
                else [(name, path.read_bytes)]
                for name, path in paths.items()
            )
        contents, member = {}, self.path
        try:
            for member, read in members:
                name = PurePosixPath(member).name.removesuffix(".gz").replace(".idx", "-idx")
                if name in names:
                    data = read()
                    gzipped = data.startswith(GZIP_MAGIC)
                    content = decompression.gunzip(data, member) if gzipped else data
                    if contents.setdefault(name, content) != content:
                        raise UserError(
                            f"data.path={self.path} holds different files named {name}, such as "
                            f"{member}; name the folder of {self.name}"
                        )
        except (OSError, *files.ARCHIVE_ERRORS) as error:
            raise UserError(f"{member} of {self.name} cannot be read: {error}") from error
        if missing := sorted(set(names) - set(contents)):
            place = f"data.path={self.path}" if self.path else "the download"
            raise UserError(
                f"{place} lacks {', '.join(missing)} of {self.name}; expected the files of "
                f"{' '.join(urls.values())}, in a folder or an archive"
            )
        return contents

    def _is_downloaded(self, dl_manager: tfds.download.DownloadManager, url: str) -> bool:
        """Return True if TFDS has the file from an earlier download, and needs no network."""
        infos: Any = self.url_infos
        name = get_dl_fname(url, infos[url].checksum)
        folders = dl_manager.download_dir, dl_manager.download_dir / self.name
        return any((folder / f"{name}.INFO").exists() for folder in folders)

    def _check_network(self, urls: Mapping[str, str]) -> None:
        """Raise UserError if the host does not answer, because TFDS would retry for minutes."""
        try:
            requests.head(next(iter(urls.values())), timeout=CONNECT_SECONDS)
        except requests.RequestException as error:
            # The innermost of the nested exceptions that the message shows.
            reason = one_line(error, 1000).rpartition("): ")[2].removesuffix('"))')
            raise UserError(
                f"cannot download {self.name!r}: {reason}; on another machine, download "
                f"{' '.join(urls.values())}, and name the archive or the folder of the files with "
                "data.path"
            ) from error

    def _damaged(self, file: str, problem: object) -> UserError:
        return UserError(f"{file} of {self.name} is damaged: {problem}; download it again")

    def _rows(self, data: bytes, shape: tuple[int, ...], file: str) -> np.ndarray:
        """Reshape the bytes of a file to an array [n, *shape]."""
        size = math.prod(shape)
        if not data or len(data) % size:
            raise self._damaged(file, f"it has {len(data)} bytes, expected a multiple of {size}")
        return np.frombuffer(data, np.uint8).reshape(-1, *shape)

    def _check_labels(self, labels: np.ndarray, key: str, number: int, file: str) -> np.ndarray:
        """Return the labels of a file after checking their number and range."""
        classes = len(self._features[key].names)
        if len(labels) != number:
            raise self._damaged(file, f"it has {len(labels)} labels for {number} images")
        if not 0 <= labels.min() <= labels.max() < classes:
            bounds = f"{labels.min()} to {labels.max()}"
            raise self._damaged(file, f"its labels are {bounds}, expected 0 to {classes - 1}")
        return labels

    def _set_class_names(self, key: str, data: bytes, file: str) -> None:
        try:
            self._features[key].names = data.decode().split()
        # The file is not text, or does not have one name for each class.
        except ValueError as error:
            raise self._damaged(file, error) from error

    def _generate_examples(self, split: Split, prefix: str) -> KeyedExamples:
        images, labels = split
        for i, image in enumerate(images):
            png = io.BytesIO()
            Image.fromarray(image.squeeze()).save(png, format="png")
            example: dict[str, object] = {"image": png.getvalue()}
            example |= {name: int(values[i]) for name, values in labels.items()}
            if "id" in self._features:
                example["id"] = f"{prefix}_{i:05d}"
            yield i, example


class Cifar10(_PublishedBuilder, builders.Cifar10, skip_registration=True):
    """TFDS builder of CIFAR-10 from the binary version, and base class of Cifar100."""

    name = "cifar10"
    url_infos = builders.Cifar10.url_infos

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, object]:
        info = self._cifar_info
        names = (*info.train_files, *info.test_files, *info.label_files)
        contents = self._read_all(dl_manager, {self.name: info.url}, names)
        for key, name in zip(info.label_keys, info.label_files, strict=True):
            self._set_class_names(key, contents[name], name)
        return {
            split: self._generate_examples(self._parse({x: contents[x] for x in batches}), split)
            for split, batches in (("train", info.train_files), ("test", info.test_files))
        }

    def _parse(self, batches: Mapping[str, bytes]) -> Split:
        """Parse CIFAR's binary rows: label bytes, then the red, green and blue planes."""
        keys, arrays = self._cifar_info.label_keys, []
        for file, data in batches.items():
            array = self._rows(data, (len(keys) + 3072,), file)
            for i, key in enumerate(keys):
                self._check_labels(array[:, i], key, len(array), file)
            arrays.append(array)
        rows = np.concatenate(arrays)
        images = rows[:, len(keys) :].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        return np.ascontiguousarray(images), {key: rows[:, i] for i, key in enumerate(keys)}


class Cifar100(Cifar10, builders.Cifar100, skip_registration=True):
    """TFDS builder of CIFAR-100 from the binary version. "label" is the fine label."""

    name = "cifar100"
    url_infos = builders.Cifar100.url_infos


class Mnist(_PublishedBuilder, builders.MNIST, skip_registration=True):
    """TFDS builder of MNIST from four idx files, and base class of FashionMnist and Kmnist."""

    name = "mnist"
    url_infos = builders.MNIST.url_infos

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, object]:
        parts = {"train": "train", "test": "t10k"}
        kinds = ("images-idx3-ubyte", "labels-idx1-ubyte")
        names = [f"{part}-{kind}" for part in parts.values() for kind in kinds]
        urls = {name: f"{self.URL}{name}.gz" for name in names}
        contents = self._read_all(dl_manager, urls, names)
        splits = {}
        for split, part in parts.items():
            image, label = (f"{part}-{kind}" for kind in kinds)
            images = self._idx(contents[image], (28, 28), image)
            labels = self._idx(contents[label], (), label)
            labels = self._check_labels(labels, "label", len(images), label)
            if split == "train":
                self._refuse_labels_of_another_set(labels)
            splits[split] = self._generate_examples((images, {"label": labels}), split)
        return splits

    def _refuse_labels_of_another_set(self, labels: np.ndarray) -> None:
        """Raise UserError if the training labels belong to another set with such files."""
        ours = FIRST_LABELS.get(self.name)
        if len(labels) == FULL and ours and tuple(labels[: len(ours)]) != ours:
            raise UserError(
                f"data.path={self.path} does not hold {self.name}, whose first labels are "
                f"{' '.join(map(str, ours))}; name the folder of {self.name}"
            )
        for name, first in FIRST_LABELS.items():
            if name != self.name and tuple(labels[: len(first)]) == first:
                raise UserError(
                    f"data.path={self.path} holds {name}, whose files have the same names as those "
                    f"of {self.name}; use data.name={name}, or name the folder of {self.name}"
                )

    def _idx(self, data: bytes, shape: tuple[int, ...], file: str) -> np.ndarray:
        """Parse an idx file: two zeros, type 8 (bytes), number of axes, lengths, data."""
        axes = 1 + len(shape)
        magic, start = bytes((0, 0, 8, axes)), 4 + 4 * axes
        if not data.startswith(magic) or len(data) < start:
            raise self._damaged(file, f"it does not begin with {magic.hex(' ')} as idx files do")
        lengths = struct.unpack_from(f">{axes}I", data, 4)
        size = "x".join(map(str, lengths))
        if lengths[1:] != shape:
            expected = "x".join(map(str, shape))
            raise self._damaged(file, f"its header says {size}, expected images of {expected}")
        if math.prod(lengths) != len(data) - start:
            raise self._damaged(
                file, f"its header says {size} bytes, but it has {len(data) - start}"
            )
        return self._rows(data[start:], shape, file)


class FashionMnist(Mnist, builders.FashionMNIST, skip_registration=True):
    """TFDS builder of Fashion-MNIST. Its files have the names and format of MNIST's."""

    name = "fashion_mnist"
    url_infos = builders.FashionMNIST.url_infos


class Kmnist(Mnist, builders.KMNIST, skip_registration=True):
    """TFDS builder of Kuzushiji-MNIST. Its files have the names and format of MNIST's."""

    name = "kmnist"
    url_infos = builders.KMNIST.url_infos


class Stl10(_PublishedBuilder, stl10.Builder, skip_registration=True):
    """TFDS builder of STL-10 from the binary version. In "unlabelled" all labels are -1."""

    name = "stl10"
    url_infos = stl10.Builder.url_infos

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, object]:
        parts = {"train": ["train_X.bin", "train_y.bin"], "test": ["test_X.bin", "test_y.bin"]}
        parts["unlabelled"] = ["unlabeled_X.bin"]
        names = [name for part in parts.values() for name in part] + ["class_names.txt"]
        contents = self._read_all(dl_manager, {self.name: stl10.URL}, names)
        self._set_class_names("label", contents["class_names.txt"], "class_names.txt")
        splits = {}
        for split, (image, *label) in parts.items():
            # The file of STL-10 stores images column by column.
            planes = self._rows(contents[image], (3, 96, 96), image)
            labels = np.full(len(planes), -1)
            for file in label:
                labels = self._rows(contents[file], (), file).astype(int) - 1
                self._check_labels(labels, "label", len(planes), file)
            images = planes.transpose(0, 3, 2, 1)
            splits[split] = self._generate_examples((images, {"label": labels}), split)
        return splits


BUILDERS: dict[str, type[_PublishedBuilder]] = {
    b.name: b for b in (Cifar10, Cifar100, Mnist, FashionMnist, Kmnist, Stl10)
}
