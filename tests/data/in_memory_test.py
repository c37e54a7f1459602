"""Data sets given as Python objects: which split, which labels and which class names they get."""

import io
from types import SimpleNamespace

import numpy as np
import pytest
from file_cases import refused
from PIL import ExifTags, Image

from jaxssl.data import decoding
from jaxssl.data.in_memory import load_images, load_splits

pytestmark = pytest.mark.fast

RNG = np.random.default_rng(0)


def examples(labels):
    """Return random images [n, 2, 3, 1], which all differ, and their labels."""
    images = RNG.integers(0, 256, (len(labels), 2, 3, 1), np.uint8)
    images[:, 0, 0, 0] = np.arange(len(labels))
    return images, np.array(labels)


class HuggingFace:
    """Examples in the form of a Hugging Face data set, whose features name the classes."""

    def __init__(self, data, names, key="label"):
        self.items = [{"image": x, key: int(y)} for x, y in zip(*data, strict=True)]
        self.features = {"image": None, key: SimpleNamespace(names=names)}

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


def test_test_examples_depend_on_the_seed_and_the_fraction_only():
    images, labels = examples([0, 1] * 10)

    def test_images(**settings):
        splits, _ = load_splits((images, labels), **settings)
        train, test = (
            split.images(0)[:, 0, 0, 0].tolist() for split in (splits.train, splits.test)
        )
        assert sorted(train + test) == list(range(20))  # The splits have no example in common.
        assert train == sorted(train) and test == sorted(test)
        for split in (splits.train, splits.test):
            np.testing.assert_array_equal(split.labels, split.images(0)[:, 0, 0, 0] % 2)
        return test

    assert test_images(seed=3) == test_images(seed=3)
    assert len({tuple(test_images(seed=seed)) for seed in range(4)}) == 4
    assert [len(test_images(test_fraction=x)) for x in (0.1, 0.2, 0.5)] == [2, 4, 10]


def test_unlabelled_examples_are_in_both_splits():
    images, _ = examples([0] * 5)
    for data in (images, (images, np.full(5, -1))):
        splits, _ = load_splits(data)
        for split in (splits.train, splits.bank, splits.test):
            np.testing.assert_array_equal(split.images(0), images)
            assert split.class_names == () and split.labels.tolist() == [-1] * 5


@pytest.mark.parametrize("name", ["test", "validation"])
def test_named_test_split_is_evaluated(name):
    train, test = examples([0, 1, 1]), examples([1, 0])
    splits, _ = load_splits({"train": train, name: test})
    expected = ((splits.train, train), (splits.bank, train), (splits.test, test))
    for split, (images, labels) in expected:
        np.testing.assert_array_equal(split.images(0), images)
        np.testing.assert_array_equal(split.labels, labels)
    with_both, _ = load_splits({"train": train, "test": test, "validation": train})
    assert len(with_both.test) == len(test[1])


@pytest.mark.parametrize("key", ["label", "fine_label"])
def test_hugging_face_data_keep_their_class_names(key):
    data = HuggingFace(examples([1, 0, 2, 1, 0]), ["ant", "bee", "cat", "dog"], key)
    splits, _ = load_splits({"train": data, "test": data})
    for split in (splits.train, splits.test):
        assert split.class_names == ("ant", "bee", "cat", "dog")
        assert split.labels.tolist() == [1, 0, 2, 1, 0]
    with refused("the training data has the label 2, but only 2 class names"):
        load_splits({"train": HuggingFace(examples([1, 2]), ["ant", "bee"]), "test": data})


@pytest.mark.parametrize(("train", "test"), [([0, 1], [0, 3]), ([0, 3], [0, 1]), ([2, -1], [3, 0])])
def test_both_splits_have_all_classes_of_the_data_set(train, test):
    splits, _ = load_splits((examples(train), examples(test)))
    assert splits.train.class_names == splits.test.class_names == ("0", "1", "2", "3")
    assert (splits.train.labels.tolist(), splits.test.labels.tolist()) == (train, test)


def test_fingerprint_depends_on_the_images_the_labels_and_the_split():
    (images, labels), (others, _) = examples([0, 1, 1]), examples([0, 1, 1])
    data = [
        (images, labels),
        (images[::-1], labels),
        (images, labels[::-1]),
        ((images, labels), (others, labels)),
        ((others, labels), (images, labels)),
        ((images, labels), (images, labels[::-1])),
    ]
    assert len({load_splits(one)[1] for one in data}) == len(data)
    assert load_splits(data[3])[1] == load_splits(data[3])[1]


def test_examples_without_a_label_are_not_evaluated(caplog):
    images, _ = examples([0] * 20)
    labels = [None if i == 3 else i % 2 for i in range(20)]
    items = [{"image": x, "label": y} for x, y in zip(images, labels, strict=True)]
    for data in ((images, labels), (images, np.array(labels)), items):
        with caplog.at_level("INFO", "jaxssl"):
            splits, _ = load_splits(data)
        assert "1 examples of 'train' have no label" in caplog.records.pop().message
        assert len(splits.train) == 16 and sorted(splits.train.labels)[:2] == [-1, 0]
        assert not splits.train.labelled and splits.labelled
        first = splits.bank.images(0)[:, 0, 0, 0]
        np.testing.assert_array_equal(splits.bank.labels, first % 2)
        assert len(first) == 15 and 3 not in first


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.array([0, 1, 2**32]), "has the label 4294967296; expected 0, 1, ... below 1000000"),
        (np.array([0, 1, 2**64 - 1], np.uint64), "has the label 18446744073709551615"),
        ([0, 1, 200_000_000], "has the label 200000000"),
        ([0, None, -2], "has the label -2; expected 0, 1, ..."),
        ([0, 1], "labels of data are int64 [2]; expected 3 integers"),
        ([0, 0.5, None], "labels of data are float64 [3]; expected 3 integers"),
    ],
)
def test_labels_that_are_no_class_indices_are_refused(labels, message):
    with refused(message):
        load_splits((examples([0, 1, 1])[0], labels))


def saved(picture):
    """Return the bytes of a TIFF or PNG file."""
    out = io.BytesIO()
    format = "tiff" if picture.mode in ("F", "I", "CMYK") else "png"
    picture.save(out, format, **picture.info)
    return out.getvalue()


@pytest.mark.parametrize("mode", ["P", "RGBA", "L", "LA", "1", "I;16", "I", "CMYK", "turned"])
def test_pillow_images_have_the_pixels_of_their_files(mode):
    picture = Image.fromarray(RNG.integers(0, 256, (4, 5, 3), np.uint8))
    if mode == "turned":
        exif = Image.Exif()
        exif[ExifTags.Base.Orientation] = 6
        picture.info["exif"] = exif.tobytes()
    elif mode in ("I;16", "I"):
        dtype = np.uint16 if mode == "I;16" else np.int32
        picture = Image.fromarray(RNG.integers(0, 2**16, (4, 5)).astype(dtype))
    else:
        picture = picture.quantize(8) if mode == "P" else picture.convert(mode)
    before = picture.tobytes()
    source = load_images([picture, picture])
    channels = 1 if mode in ("L", "I", "I;16") else 3
    assert source.shape[-1] == channels and picture.tobytes() == before
    expected = decoding.open_picture(saved(picture), channels, upright=True)
    np.testing.assert_array_equal(source.images(0)[1].squeeze(), expected)


def test_pictures_of_an_unknown_range_are_refused():
    picture = Image.fromarray(np.ones((4, 5), np.float32))
    with refused("item 1 of images has floating-point pixels"):
        load_images([picture.convert("L"), picture])
    with pytest.raises(OSError, match="has floating-point pixels"):
        decoding.open_picture(saved(picture), 3)


def test_load_images_ignores_labels_and_refuses_an_empty_list():
    images, labels = examples([0, 1, 1])
    for data in (images, (images, labels), [*images], {"image": images}):
        source = load_images(data)
        np.testing.assert_array_equal(source.images(0), images)
        assert not source.labelled and source.labels.tolist() == [-1] * 3
    with refused("images is empty; expected at least one image"):
        load_images([])
