"""Unreadable files, what is refused, what an accident leaves, and public data."""

import logging
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow_datasets as tfds
from data_cases import data_config
from file_cases import (
    LABELLED,
    files_of,
    finished,
    nothing_is_prepared,
    pack,
    picture,
    pictures,
    pixels_of,
    refused,
    unpack,
)
from filelock import FileLock
from ml_collections import ConfigDict
from real_data import real_data
from tensorflow_datasets.core import shuffle

from jaxssl.data import source
from jaxssl.data.formats import user_files
from jaxssl.kinds.image import open_images

pytestmark = pytest.mark.fast


BROKEN = {
    "ant/empty.jpg": (b"", "is empty"),
    "bee/cut.jpg": (picture("x", (60, 80, 3), "jpeg")[:-400], "truncated"),
    "bee/text.jpg": (b"a text", "is not an image"),
}


# Sets that do not fit in memory.


def test_split_sorted_on_disk_has_the_order_of_one_sorted_in_memory(load, tmp_path, monkeypatch):
    root = unpack(tmp_path / "pictures", LABELLED)
    expected = files_of(load(root, dir=str(tmp_path / "one")))
    monkeypatch.setattr(shuffle, "MAX_MEM_BUFFER_SIZE", 0)
    assert files_of(load(root, dir=str(tmp_path / "other"))) == expected


@pytest.mark.parametrize(
    ("soft", "hard", "expected"),
    [(1024, 524_288, 10_240), (1024, 4096, 4096), (256, -1, 10_240), (20_000, 20_000, 20_000)],
)
def test_limit_of_open_files_is_raised_before_a_set_is_opened(
    load, labelled, monkeypatch, soft, hard, expected
):
    """TFDS keeps every shard open, and the files by which it sorts."""
    resource = pytest.importorskip("resource")
    limits = [(soft, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: limits.append(new))
    load(labelled)
    assert limits[-1] == (expected, hard)


def test_processes_wait_for_the_one_that_prepares_a_set(load, labelled, tmp_path, monkeypatch):
    expected = files_of(load(labelled, dir=str(tmp_path / "first")))
    [path] = tmp_path.glob("first/folder/*/1.0.0")
    lock = tmp_path / "sets" / path.relative_to(tmp_path / "first")
    lock.parent.mkdir(parents=True)
    said = []
    monkeypatch.setattr(source.log, "info", lambda text, *_: said.append(text))
    with ThreadPoolExecutor(1) as pool:
        with FileLock(f"{lock}.lock"):
            other = pool.submit(load, labelled, dir=str(tmp_path / "sets"))
            end = time.monotonic() + 60
            while not said and time.monotonic() < end:
                time.sleep(0.01)
            assert "waiting for another process that prepares" in said[0] and not lock.exists()
            path.rename(lock)  # as the other process does
        assert files_of(other.result()) == expected


# Unreadable files in a folder that is prepared.


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """A folder with three unreadable files, in both of its splits."""
    content = {f"{s}/{name}": x for name, x in LABELLED.items() for s in ("train", "test")}
    for name, (data, _) in BROKEN.items():
        content[f"{'train' if name.startswith('ant') else 'test'}/{name}"] = data
    return unpack(tmp_path_factory.mktemp("broken"), content)


def test_on_error_stop_rejects_a_folder_with_unreadable_images(load, broken, prepared):
    before = finished(prepared)
    for _ in range(2):
        with refused(
            f"3 of the pictures in {broken} cannot be read",
            *(f"{name}: " for name in BROKEN),
            *(reason for _, reason in BROKEN.values()),
            "on_error=skip",
        ):
            load(broken)
        assert finished(prepared) == before


@pytest.fixture
def said(caplog):
    """The lines of our logger."""
    caplog.set_level(logging.WARNING, "jaxssl")

    def lines():
        actual = [record.getMessage() for record in caplog.records if record.name == "jaxssl"]
        caplog.clear()
        return actual

    return lines


def test_on_error_skip_leaves_out_unreadable_images_with_a_warning(load, broken, said, monkeypatch):
    for _ in range(2):
        opened = load(broken, on_error="skip")
        [line] = said()
        assert "3 unreadable images are left out" in line
        assert all(name in line for name in BROKEN)
        nothing_is_prepared(monkeypatch)
    assert sorted(files_of(opened)) == sorted(f"train/{name}" for name in LABELLED)
    assert len(load(broken, "test", on_error="skip")) == len(LABELLED)
    with refused(f"3 of the images in {broken} cannot be read", "ant/empty.jpg: is empty"):
        load(broken)


def test_damaged_zip_entry_counts_as_an_unreadable_image(load, tmp_path, said):
    path = pack(tmp_path / "pack.zip", LABELLED)
    whole = path.read_bytes()
    path.write_bytes(whole.replace(LABELLED["bee/3.png"], bytes(len(LABELLED["bee/3.png"]))))
    with refused("1 of the pictures", "bee/3.png: Bad CRC"):
        load(path)
    opened = load(path, on_error="skip", test_fraction=0.0)
    assert sorted(files_of(opened)) == sorted(set(LABELLED) - {"bee/3.png"})
    assert "1 unreadable images are left out: bee/3.png" in said()[0]


@pytest.mark.parametrize("on_error", ["stop", "skip"])
def test_split_with_only_unreadable_files_is_rejected(load, tmp_path, on_error):
    content = {f"test/{name}": data for name, (data, _) in BROKEN.items()}
    unpack(tmp_path, content | pictures("train/ant/1.png", "train/bee/2.png"))
    for _ in range(2):
        with refused("none of the 3 pictures of 'test'", str(tmp_path), "ant/empty.jpg: is empty"):
            load(tmp_path, on_error=on_error)


# Refused settings, and interrupted preparations.


def test_preparation_rejects_invalid_settings(load, labelled):
    for fraction in (-0.1, 1.0, 2.0):
        with refused(f"data.test_fraction must be in [0, 1), got {fraction}"):
            load(labelled, test_fraction=fraction)
    with refused("data.name='folder' needs data.path: a folder or an archive"):
        load("")
    with refused("data.name='digits' does not read data.path", "captions, folder, tu"):
        load(labelled, name="digits")


@pytest.mark.parametrize("name", ["tar_shards", "mine.py:data"])
def test_data_that_are_read_where_they_are_need_no_preparation(name, tmp_path):
    with refused(f"data.name='{name}' is read where it is; there is nothing to prepare"):
        source.prepare(ConfigDict(data_config(name=name, dir=str(tmp_path))))


@pytest.mark.parametrize("below", ["", "below"])
def test_unwritable_data_dir_raises_a_one_line_error(load, labelled, tmp_path, below):
    directory = tmp_path / "file" / below
    (tmp_path / "file").write_text("no directory")
    with refused(f"cannot prepare 'folder' under {directory}", "--config.data.dir"):
        load(labelled, dir=str(directory))


def interrupted(error):
    """Reading that goes wrong after a few pictures."""
    checked = user_files.read_checked

    def read(wanted, *_):
        for place, item in enumerate(checked(wanted)):
            if place == 5:
                raise error
            yield item

    return read


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        RuntimeError("write() failed: No space left on device"),  # the message of ArrayRecord
        PermissionError(13, "Permission denied"),
    ],
)
def test_full_disk_leaves_no_prepared_set(load, labelled, tmp_path, monkeypatch, error):
    with monkeypatch.context() as patch:
        patch.setattr(user_files, "read_checked", interrupted(error))
        for _ in range(2):
            with refused(
                f"under {tmp_path}", error.args[-1], "enough space with --config.data.dir"
            ):
                load(labelled, dir=str(tmp_path))
            assert not finished(tmp_path)
    assert len(load(labelled, dir=str(tmp_path))) == 24


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_partial_files_of_a_preparation_are_ignored(load, labelled, tmp_path, monkeypatch, error):
    with monkeypatch.context() as patch:
        patch.setattr(user_files, "read_checked", interrupted(error))
        with pytest.raises(error):
            load(labelled, dir=str(tmp_path))
    [state] = (tmp_path / "folder").iterdir()
    unpack(state / "incomplete.AAAAAA_1.0.0", {"folder-train.array_record-00000-of-00001": b"x"})
    assert not finished(tmp_path)
    assert len(load(labelled, dir=str(tmp_path))) == 24


@pytest.fixture
def offline(monkeypatch):
    """Whoever looks for the network fails."""

    def touched(*_, **__):
        pytest.fail("the network was touched")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, touched)
    monkeypatch.setattr(socket, "getaddrinfo", touched)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("cifar1", ["is no data set; the closest of ", "valid ones are cifar10, "]),
        ("Folder", ["is no data set; the closest of ", "valid ones are folder"]),
        ("no such/set", ["a path must exist"]),
        ("pictures/", ["a path must exist"]),
        ("", []),
        ("a/b/c", []),
        ("food101:9.9.9", ["only: "]),  # The error lists the existing versions.
        ("food101/small", ["BuilderConfig small not found"]),
    ],
)
def test_unknown_data_set_name_gives_a_short_error(load, tmp_path, offline, name, parts):
    with refused(f"data.name={name!r}", *parts) as message:
        load("", name=name, dir=str(tmp_path))
    assert len(message[0].replace(str(tmp_path), "")) < 300


def test_path_in_place_of_a_data_set_name_is_refused_before_its_files_are_read(load, tmp_path):
    unpack(tmp_path / "pictures", {"x/1.0.0/dataset_info.json": b"{"})
    for name in (f"{tmp_path}/pictures", "../pictures"):
        with refused(f"data.name={name!r}: not the name of a data set; a path must exist"):
            load("", name=name, dir=str(tmp_path / "prepared"))


@pytest.mark.parametrize("name", ["food101", "imagenet2012", "imagenet100", "coco/2017"])
def test_missing_tensorflow_error_says_what_to_install(load, tmp_path, offline, monkeypatch, name):
    monkeypatch.setattr("importlib.util.find_spec", lambda *_: None)
    with refused("Preparing it needs TensorFlow", "pip install 'jaxssl[tf]'", "data.dir"):
        load("", name=name, dir=str(tmp_path))
    assert not finished(tmp_path)


def test_prepared_set_is_read_without_its_builder_code(load, labelled, tmp_path, offline):
    load(labelled, dir=str(tmp_path))
    [made] = finished(tmp_path)
    (tmp_path / "coco/2017").mkdir(parents=True)
    made.rename(tmp_path / "coco/2017/1.1.0")
    assert len(load("", name="coco/2017", dir=str(tmp_path))) == 24


# Published data sets whose splits, classes and images are known.


def test_dtd_has_the_published_splits_and_classes(load):
    path = real_data("dtd10_128.tar.xz")
    train, test = load(path), load(path, "test")
    assert (len(train), len(test), train.num_classes) == (960, 240, 10)
    assert train.class_names == tuple(sorted(train.class_names)) and not train.one_size
    assert np.bincount(train.labels).tolist() == [96] * 10
    assert np.bincount(test.labels).tolist() == [24] * 10
    assert min(train.read(np.array([7]))[0].input.size) == 128


def test_omniglot_has_136_classes_of_20_binary_images(load):
    path = f"{real_data('omniglot_small.tar.xz')}/small1"
    opened = load(path)
    assert opened.num_classes == 136 and opened.shape == (105, 105, 3)
    assert len(opened) + len(load(path, "test")) == 136 * 20
    assert set(np.unique(opened.images(0)[:50])) == {0, 255}


def test_flickr_photographs_are_read_as_unlabelled_images(load):
    path = f"{real_data('flickr8k_1k.tar.xz')}/images"
    opened = load(path)
    assert len(opened) == 800 and len(load(path, "test")) == 200
    assert not opened.labelled and opened.num_classes == 0 and not opened.one_size


# Images as other TFDS builders may store them.


class Transparent(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """Two pictures with an alpha channel."""

    name = "transparent"
    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = tfds.features.FeaturesDict({"image": tfds.features.Image(shape=(2, 3, 4))})
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        for i in range(2):
            yield i, {"image": picture(str(i), (2, 3, 4))}


def test_prepared_images_have_no_alpha_channel(load, monkeypatch):
    monkeypatch.setitem(source.PUBLISHED, "transparent", Transparent)
    opened = load("", name="transparent")
    assert opened.shape == (2, 3, 3)
    images = {image.tobytes() for image in opened.images(8)}
    assert images == {pixels_of(str(i), (2, 3, 4))[:, :, :3].tobytes() for i in range(2)}


def test_float_images_of_a_prepared_set_are_refused(tmp_path):
    """TFDS stores the four bytes of a float as the channels of a picture."""
    depth = tfds.features.Image(shape=(2, 3, 1), dtype=np.float32)
    features = tfds.features.FeaturesDict({"depth": depth})
    with refused("'made' has float images; expected images of 8 or 16 bits"):
        open_images(tmp_path, features, {}, ConfigDict({"name": "made", "context": 0}))


def test_preparing_a_folder_logs_one_line_with_the_copied_size(tmp_path, caplog, capsys):
    path = unpack(tmp_path / "pictures", LABELLED)
    with caplog.at_level("INFO", "jaxssl"):
        source.prepare(data_config(name="folder", path=str(path), dir=str(tmp_path / "prepared")))
    [line] = [line for line in caplog.messages if "copied" in line]
    assert line.startswith(f"data       copied {path} to {tmp_path}/prepared/folder/pictures-")
    assert line.endswith("KiB)") and "Downloading" not in capsys.readouterr().out
