"""The files of small sets as their authors publish them, prepared without TensorFlow.

Each set is written here byte by byte as its authors describe it, with a few images of noise.
"""

import gzip
import hashlib
import re
import shutil
import struct
import sys
from typing import NamedTuple

import numpy as np
import pytest
import requests
import tensorflow_datasets as tfds
from data_cases import data_config
from file_cases import pack, refused, unpack
from tensorflow_datasets.core import units
from tensorflow_datasets.core.download.checksums import UrlInfo

from jaxssl.data.formats import published
from jaxssl.data.source import load
from jaxssl.errors import UserError

pytestmark = pytest.mark.fast

CIFAR10 = "airplane automobile bird cat deer dog frog horse ship truck".split()
STL10 = "airplane bird car cat deer dog horse monkey ship truck".split()
COARSE, FINE = ([f"{kind}_{i}" for i in range(n)] for kind, n in (("coarse", 20), ("fine", 100)))
MNIST = ("mnist", "fashion_mnist", "kmnist")


class Set(NamedTuple):
    """Images and labels of each split, and the files that hold them, below their usual folder."""

    splits: dict[str, dict[str, np.ndarray]]
    files: dict[str, bytes]
    names: list[str] | None
    inner: str


def split_of(count, shape, seed, **classes):
    """Images [n, h, w, c] of noise, and labels below the number of classes."""
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (count, *shape), np.uint8)
    labels = {key: rng.integers(0, number, count) for key, number in classes.items()}
    return {"image": images, **labels}


def rows(split, *keys, first=0, last=None):
    """CIFAR: labels, then the planes of red, green and blue, each row by row."""
    out = b""
    for i in range(len(split["image"]))[first:last]:
        out += bytes(int(split[key][i]) for key in keys)
        out += b"".join(split["image"][i, y, :, c].tobytes() for c in range(3) for y in range(32))
    return out


def lines(names):
    return "".join(f"{name}\n" for name in names).encode()


def cifar10():
    train, test = (split_of(n, (32, 32, 3), n, label=10) for n in (10, 3))
    files = {"test_batch.bin": rows(test, "label"), "readme.html": b"<html>"}
    for i in range(5):
        files[f"data_batch_{i + 1}.bin"] = rows(train, "label", first=2 * i, last=2 * i + 2)
    files["batches.meta.txt"] = lines(CIFAR10) + b"\n"
    return Set({"train": train, "test": test}, files, CIFAR10, "cifar-10-batches-bin")


def cifar100():
    kinds = {"coarse_label": 20, "label": 100}
    splits = {s: split_of(n, (32, 32, 3), n, **kinds) for s, n in (("train", 6), ("test", 3))}
    files = {f"{name}.bin": rows(split, *kinds) for name, split in splits.items()}
    files |= {"coarse_label_names.txt": lines(COARSE), "fine_label_names.txt": lines(FINE)}
    return Set(splits, files, FINE, "cifar-100-binary")


def idx(values):
    """Two zeros, 8 for unsigned bytes, the number of axes; their lengths; the values."""
    head = struct.pack(">BBBB", 0, 0, 8, values.ndim)
    return head + struct.pack(f">{values.ndim}I", *values.shape) + values.astype(np.uint8).tobytes()


def mnist(name):
    index, files = MNIST.index(name), {}
    train, test = (split_of(n, (28, 28, 1), n + index, label=10) for n in (6, 3))
    for part, split in (("train", train), ("t10k", test)):
        files[f"{part}-images-idx3-ubyte"] = idx(split["image"][..., 0])
        files[f"{part}-labels-idx1-ubyte"] = idx(split["label"])
    return Set({"train": train, "test": test}, files, None, "raw")


def columns(images):
    """STL-10: the planes of red, green and blue, each column by column."""
    return b"".join(
        image[:, x, c].tobytes() for image in images for c in range(3) for x in range(96)
    )


def stl10():
    numbers = {"train": 4, "test": 3, "unlabelled": 5}
    splits = {s: split_of(n, (96, 96, 3), n, label=10) for s, n in numbers.items()}
    splits["unlabelled"]["label"][:] = -1
    parts = zip(("train", "test", "unlabeled"), splits.values(), strict=True)
    files = {"class_names.txt": lines(STL10), "fold_indices.txt": b"0 1\n"}
    for part, split in parts:
        files[f"{part}_X.bin"] = columns(split["image"])
        files[f"{part}_y.bin"] = (split["label"] + 1).astype(np.uint8).tobytes()
    del files["unlabeled_y.bin"]
    return Set(splits, files, STL10, "stl10_binary")


SETS = {"cifar10": cifar10(), "cifar100": cifar100(), "stl10": stl10()}
SETS |= {name: mnist(name) for name in MNIST}
each_set = pytest.mark.parametrize("name", SETS)


def group(name, directory, path=""):
    return data_config(name=name, dir=str(directory), path=str(path))


def gzipped(files):
    return {f"{name}.gz": gzip.compress(data, 1) for name, data in files.items()}


def tarball(one, path):
    return pack(path, {f"{one.inner}/{name}": data for name, data in one.files.items()})


def bring(name, kind, tmp_path):
    """The files of a set as a user may have them."""
    one = SETS[name]
    if kind == "archive":
        return tarball(one, tmp_path / f"{one.inner}.tar.gz")
    files = gzipped(one.files) if kind == "gz" else one.files
    if kind == "idx":  # Some copies of MNIST have "." instead of "-" in file names.
        files = {re.sub("-(idx.)", r".\1", file): data for file, data in files.items()}
    unpack(tmp_path / "mine" / one.inner, files)
    return tmp_path / "mine"


def assert_holds(source, split):
    """The source has the images of the split, in any order, each with its label."""
    pairs = zip(split["image"], split["label"], strict=True)
    expected = {image.tobytes(): int(label) for image, label in pairs}
    images = source.images(0)
    assert images.shape == split["image"].shape
    actual = zip(images, source.labels.tolist(), strict=True)
    assert {image.tobytes(): label for image, label in actual} == expected


KINDS = [(name, kind) for name in SETS for kind in ("folder", "archive")]
KINDS += [("mnist", "gz"), ("mnist", "idx")]


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_published_data_set_files_are_prepared_into_the_expected_examples(tmp_path, name, kind):
    one, path = SETS[name], bring(name, kind, tmp_path)
    for split, examples in one.splits.items():
        source = load(group(name, tmp_path / "data", path), split)
        assert_holds(source, examples)
        assert source.shape == examples["image"].shape[1:]
        assert source.labelled == (split != "unlabelled")
        assert source.num_classes == (100 if name == "cifar100" else 10)
        if one.names:
            assert list(source.class_names) == one.names
    assert "tensorflow" not in sys.modules


@each_set
def test_set_prepared_from_published_files_equals_the_tfds_set(tmp_path, name):
    one = SETS[name]
    load(group(name, tmp_path / "data", bring(name, "folder", tmp_path)), "train")
    theirs = tfds.builder(name, data_dir=tmp_path / "data")
    fresh = tfds.builder(name, data_dir=tmp_path / "none")
    assert type(theirs) is type(fresh) and theirs.name == name
    for fact in ("full_name", "description", "citation", "supervised_keys", "homepage"):
        assert getattr(theirs.info, fact) == getattr(fresh.info, fact), fact
    assert repr(theirs.info.features) == repr(fresh.info.features)
    sizes = {split: len(examples["image"]) for split, examples in one.splits.items()}
    assert {s: i.num_examples for s, i in theirs.info.splits.items()} == sizes
    records = theirs.as_data_source("train", file_format="array_record")
    train = one.splits["train"]
    ids = [int(np.flatnonzero((train["image"] == r["image"]).all((1, 2, 3)))[0]) for r in records]
    assert sorted(ids) == list(range(len(train["image"])))
    for record, i in zip(records, ids, strict=True):
        for key in train:
            np.testing.assert_array_equal(record[key], train[key][i], key)
        if "id" in record:
            assert record["id"] == f"train_{i:05d}".encode()
    if name == "cifar100":
        assert theirs.info.features["coarse_label"].names == COARSE


def test_unlabelled_images_have_the_label_minus_one(tmp_path):
    data = group("stl10", tmp_path / "data", bring("stl10", "folder", tmp_path))
    both = load(data, "train+unlabelled")
    assert (len(both), both.labelled, both.num_classes) == (9, False, 10)
    assert (both.labels[:4] >= 0).all() and (both.labels[4:] == -1).all()
    assert [example.label for example in both.read(np.arange(9))] == both.labels.tolist()
    assert "no labels" in both.describe()


def test_files_of_several_sets_with_the_same_names_are_refused(tmp_path):
    path = bring("mnist", "folder", tmp_path)
    load(group("mnist", tmp_path / "data", path), "train")
    (path / "other").mkdir()
    [file] = path.rglob("train-labels*")
    name, content = file.name, file.read_bytes()
    (path / "other" / name).write_bytes(content)
    load(group("mnist", tmp_path / "again", path), "train")
    (path / "other" / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with refused("holds different files named train-labels", "name the folder of mnist"):
        load(group("mnist", tmp_path / "third", path), "train")


@pytest.mark.parametrize(("name", "holds"), [("mnist", "fashion_mnist"), ("kmnist", "mnist")])
def test_files_of_another_set_with_the_same_names_are_refused(tmp_path, name, holds, monkeypatch):
    first = published.FIRST_LABELS[holds]
    labels = {
        "train-images-idx3-ubyte": idx(np.zeros((len(first), 28, 28))),
        "train-labels-idx1-ubyte": idx(np.array(first)),
    }
    path = unpack(tmp_path / "mine", SETS[name].files | labels)
    load(group(holds, tmp_path / "right", path), "train")
    with refused(f"holds {holds}, whose files have the same names", f"use data.name={holds}"):
        load(group(name, tmp_path / "data", path), "train")
    unknown = labels | {"train-labels-idx1-ubyte": idx(np.arange(len(first)))}
    path = unpack(tmp_path / "unknown", SETS[name].files | unknown)
    monkeypatch.setattr(published, "FULL", len(first))
    with refused(f"does not hold {holds}, whose first labels are"):
        load(group(holds, tmp_path / "third", path), "train")


def test_prepared_set_does_not_need_the_original_files(tmp_path, caplog):
    path = bring("mnist", "archive", tmp_path)
    before = load(group("mnist", tmp_path / "data", path), "train").images(0)
    path.unlink()
    again = load(group("mnist", tmp_path / "data"), "train").images(0)
    np.testing.assert_array_equal(again, before)
    assert "data.path is not read" not in caplog.text
    load(group("mnist", tmp_path / "data", path), "train")
    assert f"data.path is not read: {tmp_path / 'data'}" in caplog.text


def change(at, to):
    return lambda data: data[:at] + to + data[at + len(to) :]


IMAGES, LABELS = "train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"
DAMAGE = [
    ("cifar10", "data_batch_2.bin", lambda d: d[:-1], "6145 bytes, expected a multiple of 3073"),
    ("cifar10", "data_batch_2.bin", lambda d: b"", "it has 0 bytes"),
    ("cifar10", "data_batch_5.bin", change(0, b"\xff"), "to 255, expected 0 to 9"),
    ("cifar10", "batches.meta.txt", lambda d: b"cat\ndog\n", "2 names"),
    ("cifar10", "batches.meta.txt", lambda d: b"\xff\xfe", "can't decode"),
    ("cifar100", "test.bin", lambda d: d[:-7], "expected a multiple of 3074"),
    ("cifar100", "train.bin", change(0, b"\x14"), "to 20, expected 0 to 19"),
    ("stl10", "unlabeled_X.bin", lambda d: d[:-1], "expected a multiple of 27648"),
    ("stl10", "train_y.bin", lambda d: d[1:], "3 labels for 4 images"),
    ("stl10", "test_y.bin", change(0, b"\0"), "labels are -1 to"),
    ("mnist", IMAGES, change(2, b"\x0d"), "does not begin with 00 00 08 03"),
    ("mnist", IMAGES, change(3, b"\1"), "does not begin with"),
    ("mnist", IMAGES, lambda d: b"<!DOCTYPE html>", "does not begin with"),
    ("mnist", IMAGES, lambda d: d[:9], "does not begin with"),
    ("mnist", IMAGES, lambda d: d[:-1], "header says 6x28x28 bytes, but it has 4703"),
    ("mnist", IMAGES, change(7, b"\5"), "header says 5x28x28 bytes, but it has 4704"),
    ("mnist", IMAGES, change(8, struct.pack(">2I", 14, 56)), "header says 6x14x56, expected"),
    ("mnist", LABELS, lambda d: d + b"\0", "header says 3 bytes, but it has 4"),
    ("mnist", LABELS, lambda d: idx(np.zeros(4)), "4 labels for 3 images"),
    ("mnist", LABELS, change(8, b"\x0a"), "to 10, expected 0 to 9"),
]


@pytest.mark.parametrize(("name", "file", "damage", "reason"), DAMAGE)
def test_damaged_published_file_is_named_in_one_line(tmp_path, name, file, damage, reason):
    files = SETS[name].files
    path = unpack(tmp_path / "mine", files | {file: damage(files[file])})
    with refused(f"{file} of {name} is damaged: ", reason, "; download it again"):
        load(group(name, tmp_path / "data", path), "train")
    assert not list((tmp_path / "data").rglob("*array_record*"))


@pytest.mark.parametrize("cut", [lambda d: d[:-9], change(60, b"abcdefgh")])
def test_damaged_gz_file_raises_an_error_naming_it(tmp_path, cut):
    files = gzipped(SETS["mnist"].files)
    name = f"{IMAGES}.gz"
    path = unpack(tmp_path / "mine", files | {name: cut(files[name])})
    with refused(f"{name} of mnist cannot be read: "):
        load(group("mnist", tmp_path / "data", path), "train")


def test_truncated_published_archive_raises_a_one_line_error(tmp_path):
    path = bring("cifar10", "archive", tmp_path)
    path.write_bytes(path.read_bytes()[:20_000])
    with pytest.raises(UserError, match="cannot be read|is damaged") as error:
        load(group("cifar10", tmp_path / "data", path), "train")
    assert "\n" not in str(error.value)


@each_set
def test_missing_published_files_error_names_files_and_download_address(tmp_path, name):
    gone = sorted(file for file in SETS[name].files if "test" in file or "t10k" in file)
    files = {file: data for file, data in SETS[name].files.items() if file not in gone}
    path = unpack(tmp_path / "mine", files)
    message = f"data.path={path} lacks {', '.join(gone)} of {name};"
    with refused(message, "http", "in a folder or an archive"):
        load(group(name, tmp_path / "data", path), "train")


def serve(monkeypatch, answers, status=200):
    """Answers tfds' downloads with bytes by their address, or an exception."""

    class Response:
        status_code, headers = status, {}

        def __init__(self, url):
            self.url = url

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def iter_content(self, chunk_size):
            yield answers[self.url]

    def get(session, url, **kwargs):
        if isinstance(answers, Exception):
            raise answers
        return Response(url)

    monkeypatch.setattr(requests.Session, "get", get)
    monkeypatch.setattr(requests, "head", lambda url, timeout: get(None, url))


@pytest.mark.parametrize("name", ["cifar10", "fashion_mnist"])
def test_published_files_are_downloaded_and_checked_without_data_path(tmp_path, monkeypatch, name):
    one, builder = SETS[name], published.BUILDERS[name]
    urls = list(builder.url_infos)
    if name == "cifar10":
        answers = {urls[0]: tarball(one, tmp_path / "whole.tar.gz").read_bytes()}
    else:
        zipped = gzipped(one.files)
        answers = {url: zipped[url.rpartition("/")[2]] for url in urls}
    serve(monkeypatch, answers)
    infos = {
        url: UrlInfo(units.Size(len(data)), hashlib.sha256(data).hexdigest(), url.split("/")[-1])
        for url, data in answers.items()
    }
    monkeypatch.setattr(builder, "url_infos", infos)
    for split, examples in one.splits.items():
        assert_holds(load(group(name, tmp_path / "data"), split), examples)
    # The files that TFDS keeps are prepared again without a network.
    shutil.rmtree(tmp_path / "data" / name)
    serve(monkeypatch, requests.ConnectionError("no route to host"))
    assert_holds(load(group(name, tmp_path / "data"), "test"), one.splits["test"])


def test_download_error_without_a_network_suggests_data_path(tmp_path, monkeypatch):
    serve(monkeypatch, requests.ConnectionError("no route to host"))
    # Fail if TFDS requests the file again after the first error.
    monkeypatch.setattr(requests.Session, "get", lambda *_, **__: pytest.fail("asked again"))
    message = "cannot download 'cifar10': no route.*/cifar-10-binary.tar.gz, and name the archive"
    with pytest.raises(UserError, match=f"{message} or .* data.path") as error:
        load(group("cifar10", tmp_path / "data"), "train")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("status", "reason"), [(404, "Failed to get url http.*HTTP code: 404"), (200, "wrong checksum")]
)
def test_failed_download_is_reported_in_one_line(tmp_path, monkeypatch, status, reason):
    serve(monkeypatch, dict.fromkeys(published.Cifar10.url_infos, b"<html>"), status)
    with pytest.raises(UserError, match=f"cannot download 'cifar10': .*{reason}; without") as error:
        load(group("cifar10", tmp_path / "data"), "train")
    assert "\n" not in str(error.value) and "data.path" in str(error.value)
    assert [path.suffix for path in (tmp_path / "data" / "cifar10").iterdir()] == [".lock"]
