"""Data sets that are read by index while training goes on, because they exceed the memory."""

import logging
import threading
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from file_cases import picture, refused

from jaxssl.data import batches
from jaxssl.data.decoders import decoding
from jaxssl.data.decoders.decoding import Crops
from jaxssl.data.fingerprint import fingerprint
from jaxssl.data.opening import items as items_of
from jaxssl.data.opening.in_memory import load_images, load_splits
from jaxssl.kinds import image

pytestmark = pytest.mark.fast

NUMBER = 10**6


class Items:
    """Generated items that count how often they are read."""

    def __init__(self, number=NUMBER, side=32, item=lambda image, index: image):
        self.number, self.side, self.item = number, side, item
        self.read, self.lock = 0, threading.Lock()

    def __len__(self):
        return self.number

    def __getitem__(self, index):
        with self.lock:
            self.read += 1
        shape = (self.side, self.side, 3)
        return self.item(np.full(shape, index % 251, np.uint8), index)


def test_opening_and_fingerprinting_a_huge_user_sequence_reads_few_items(monkeypatch):
    monkeypatch.setattr(items_of, "is_missing", lambda _: pytest.fail("tests each label in Python"))
    items = Items()
    splits, digest = load_splits(items)
    assert items.read <= items_of.PROBED + 2
    assert len(splits.train) == NUMBER and splits.train.shape == (32, 32, 3)
    assert not splits.labelled and splits.train.streamed
    read = items.read
    fingerprint(splits.train)
    assert items.read - read <= 1025
    example = splits.train.read(np.array([123_456]))[0]
    assert np.unique(np.asarray(example.input)).tolist() == [123_456 % 251]
    changed = Items(item=lambda image, index: image + np.uint8(index == NUMBER - 1))
    assert load_splits(changed)[1] != digest == load_splits(Items())[1]
    assert load_splits(Items(NUMBER - 1))[1] != digest


def test_separate_labels_of_a_sequence_are_used_and_labels_in_items_are_reported(caplog):
    labels = np.arange(NUMBER) % 7
    items = Items()
    splits, _ = load_splits((items, labels))
    assert splits.labelled and splits.train.num_classes == 7
    np.testing.assert_array_equal(splits.train.labels, labels[splits.train.parts[0][1]])
    assert splits.train.read(np.array([9]))[0].label == splits.train.labels[9]
    assert items.read < 100
    with caplog.at_level(logging.INFO, "jaxssl"):
        splits, _ = load_splits(Items(item=lambda image, index: (image, index % 3)))
    assert not splits.labelled and "pass (data, labels) to use them" in caplog.text


def test_label_column_of_a_hugging_face_data_set_is_used():
    class HuggingFace(Items):
        features = {"label": SimpleNamespace(names=["a", "b"])}

        def __getitem__(self, index):
            if index == "label":
                return [i % 2 for i in range(len(self))]
            return {"image": super().__getitem__(index), "label": index % 2}

    data = HuggingFace()
    splits, _ = load_splits(data)
    assert splits.labelled and splits.test.class_names == ("a", "b") and data.read < 100


@pytest.mark.parametrize(
    ("cache", "side", "streamed"),
    [("auto", 32, True), ("auto", 2, False), ("none", 2, True), ("device", 32, False)],
)
def test_small_or_cached_sequences_are_read_into_memory(cache, side, streamed, monkeypatch):
    monkeypatch.setattr(items_of, "IN_ADVANCE", 1000 * 32 * 32)
    splits, _ = load_splits(Items(500, side), cache=cache)
    assert splits.train.streamed == streamed
    images = splits.train.images(0)
    assert isinstance(images, np.ndarray) != streamed
    assert images[:][:, 0, 0, 0].tolist() == [i % 251 for i in range(500)]
    assert load_images(Items(500, side))[0].streamed == (side == 32)


@pytest.mark.parametrize("damaged", [0, 5])
def test_damaged_picture_of_a_stream_is_named_when_it_is_read(damaged):
    def item(image, index):
        return b"damaged" if index == damaged else picture(str(index), (8, 8))

    with refused(f"item {damaged} cannot be decoded (is not an image in a supported format)"):
        load_splits(Items(8, item=item), cache="none")[0].train.read(np.array([5]))
    splits, _ = load_splits(Items(8, item=item), cache="auto", on_error="skip")
    assert len(splits.train) == 7 and not splits.train.streamed


def test_sequences_with_unequal_shapes_or_channels_or_too_many_items_are_refused():
    splits, _ = load_splits(Items(item=lambda image, index: image[int(index == 5) :]))
    with refused("item 5 of data has the shape [31, 32, 3], but the first 64 items"):
        splits.train.read(np.array([5]))
    data = Items(item=lambda image, index: image[: 20 + index % 9, :, : 3 - 2 * (index == 5)])
    splits, _ = load_splits(data)
    assert splits.train.shape == (None, None, 3) and len(splits.train.read(np.array([4]))) == 1
    with refused("[25, 32, 1], but the first 64 items", "give all of them one number of channels"):
        splits.train.read(np.array([5]))
    with refused("data has 2147483648 items; expected at most 2147483647"):
        load_splits(Items(2**31))


def test_large_array_that_lies_on_disk_is_streamed_and_one_in_memory_is_not(monkeypatch):
    """h5py's and zarr's arrays have the attributes of an array, and read what is indexed."""
    monkeypatch.setattr(items_of, "IN_ADVANCE", 100 * 8 * 8)
    images = np.random.default_rng(0).integers(0, 256, (50, 8, 8, 3), np.uint8)

    class OnDisk:
        shape, dtype = images.shape, images.dtype

        def __len__(self):
            return len(images)

        def __getitem__(self, index):
            return images[index]

        def __array__(self, *args, **kwargs):
            pytest.fail("the whole array is read")

    train = load_splits((OnDisk(), np.arange(50) % 2))[0].train
    assert train.streamed and not load_splits((images, np.arange(50) % 2))[0].train.streamed
    examples = train.read(np.arange(len(train)))
    rows = train.parts[0][1]
    np.testing.assert_array_equal([decoding.pixels(x.input) for x in examples], images[rows])


class Holding:
    """Black images, and an object that processes may need to get."""

    def __init__(self, held):
        self.held = held

    def __len__(self):
        return 100

    def __getitem__(self, index):
        return np.zeros((8, 8, 3), np.uint8)


def test_data_that_cannot_be_sent_to_processes_are_read_by_threads(monkeypatch):
    monkeypatch.setattr(image.files, "cpu_count", lambda: 8)
    monkeypatch.setattr(batches, "SENT_BYTES", 2**20)
    cases = (None, ""), (threading.Lock(), "cannot pickle"), (bytes(2**21), "more than 1 MiB")
    for held, reason in cases:
        train = load_splits((Holding(held), np.zeros(100, int)), cache="none")[0].train
        plan = partial(image.plan, train, Crops((), (), 8), "none")
        assert plan(-1).workers == (0 if reason else 4)
        if "pickle" in reason:
            with refused("data.workers=2: the data cannot be sent to reading processes", reason):
                plan(2)
        else:
            assert plan(2).workers == 2
