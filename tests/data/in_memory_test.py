"""Data sets given as Python objects: which split, which labels and which class names they get."""

import csv
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow
import pytest
from file_cases import encoded, refused
from PIL import ExifTags, Image
from pyarrow import parquet

from jaxssl.data.decoders import decoding
from jaxssl.data.opening import items
from jaxssl.data.opening.in_memory import load_images, load_splits

pytestmark = pytest.mark.fast

RNG = np.random.default_rng(0)


def examples(labels):
    """Return random images [n, 2, 3, 1], which all differ, and their labels."""
    images = RNG.integers(0, 256, (len(labels), 2, 3, 1), np.uint8)
    images[:, 0, 0, 0] = np.arange(len(labels))
    return images, np.array(labels)


class PandasNA:
    """The missing value of pandas, whose comparisons have no truth value."""

    def __eq__(self, other):
        return self

    def __bool__(self):
        raise TypeError("boolean value of NA is ambiguous")


class Items:
    """Examples that are read by index, as from Grain."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


class HuggingFace(Items):
    """Examples in the form of a Hugging Face data set, whose features name the classes."""

    def __init__(self, data, names, key="label"):
        super().__init__([{"image": x, key: int(y)} for x, y in zip(*data, strict=True)])
        self.features = {"image": None, key: SimpleNamespace(names=names)}


PIXELS, LABELS = examples([0, 1, 2, 3, 0, 1])
PAIRS = list(zip(PIXELS, LABELS, strict=True))


@pytest.mark.parametrize(
    "data",
    [
        (PIXELS[..., 0], LABELS.tolist()),
        (PIXELS / np.float32(255), LABELS),
        {"image": PIXELS, "label": LABELS},
        Items(PAIRS),
        ({"image": PIXELS}, LABELS),
        ({"image": PIXELS, "label": LABELS[::-1]}, tuple(LABELS.tolist())),
        (PIXELS, [*map(np.asarray, LABELS)]),
        (PIXELS, Items(LABELS.tolist())),
        [{"img": Image.fromarray(x[..., 0]), "label": int(y)} for x, y in PAIRS],
    ],
    ids=[
        *("grey and a list", "floats", "a dict", "items", "a dict and labels"),
        *("a dict and other labels", "labels of another library", "a column"),
        "dicts of Pillow images",
    ],
)
def test_every_accepted_form_of_data_gives_the_same_splits_as_arrays(data, monkeypatch):
    monkeypatch.setattr(items, "CONVERTED", 4)
    splits, digest = load_splits((data, data))
    expected, expected_digest = load_splits(((PIXELS, LABELS), (PIXELS, LABELS)))
    assert digest == expected_digest and expected.train.labelled and splits.labelled
    for split in (splits.train, splits.test):
        np.testing.assert_array_equal(split.images(0), PIXELS)
        np.testing.assert_array_equal(split.labels, LABELS)
        assert split.class_names == ("0", "1", "2", "3") and split.shape == (2, 3, 1)


def test_in_memory_pictures_of_different_sizes_are_read():
    data = [(np.zeros((8, 6, 3), np.uint8), 0), (np.zeros((5, 9, 3), np.uint8), 1)]
    splits, _ = load_splits((data, data))
    assert splits.train.shape == (None, None, 3)
    assert splits.train.images(4).shape == (2, 4, 4, 3)


def test_choice_of_test_examples_depends_only_on_seed_and_test_fraction():
    images, labels = examples([0, 1] * 10)

    def chosen_for_test(**settings):
        splits, _ = load_splits((images, labels), **settings)
        train, test = (x.images(0)[:, 0, 0, 0].tolist() for x in (splits.train, splits.test))
        assert sorted(train + test) == list(range(20))  # Each example is in exactly one split.
        assert train == sorted(train) and test == sorted(test)
        labels_of = [*splits.train.labels, *splits.test.labels]
        np.testing.assert_array_equal(labels_of, np.array(train + test) % 2)
        return test

    assert chosen_for_test(seed=3) == chosen_for_test(seed=3)
    assert len({tuple(chosen_for_test(seed=seed)) for seed in range(-2, 4)}) == 6
    assert [len(chosen_for_test(test_fraction=x)) for x in (0.1, 0.2, 0.5)] == [2, 4, 10]


def test_test_examples_of_partly_labelled_data_are_labelled_and_the_others_train():
    images, _ = examples([0] * 50)
    labels = np.full(50, -1)
    labels[::5] = np.arange(10) % 2
    splits, _ = load_splits((images, labels))
    train, bank, test = (set(x.images(0)[:, 0, 0, 0].tolist()) for x in splits)
    labelled = set(range(0, 50, 5))
    assert len(test) == 2 and test < labelled and train == set(range(50)) - test
    assert splits.labelled and bank == labelled - test
    # The draw is that of the labelled examples alone.
    alone = load_splits((images[::5], labels[::5]))[0].test.images(0)
    np.testing.assert_array_equal(splits.test.images(0), alone)
    order = np.random.default_rng(0).permutation(10)
    np.testing.assert_array_equal(alone, images[::5][np.sort(order[:2])])


def test_one_of_few_labelled_examples_is_a_test_example():
    images, _ = examples([0] * 50)
    labels = np.full(50, -1)
    labels[[3, 30]] = 0, 1
    splits, _ = load_splits((images, labels))
    assert (len(splits.train), len(splits.bank), len(splits.test)) == (49, 1, 1)


def test_test_fraction_of_zero_uses_labelled_data_whole_with_a_warning(caplog):
    splits, _ = load_splits(examples([0, 1] * 10), test_fraction=0)
    assert len(splits.train) == len(splits.bank) == len(splits.test) == 20
    assert "20 of 20 test examples (test) are also in the bank (train)" in caplog.text


def test_data_without_any_label_is_used_whole_as_train_and_test_split():
    images, _ = examples([0] * 5)
    for data in (images, (images, np.full(5, -1))):
        splits, _ = load_splits(data)
        for split in (splits.train, splits.bank, splits.test):
            np.testing.assert_array_equal(split.images(0), images)
            assert split.class_names == () and split.labels.tolist() == [-1] * 5


@pytest.mark.parametrize("name", ["test", "validation", "val"])
def test_split_called_test_or_validation_is_used_as_test_split(name):
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


def test_separate_labels_do_not_get_the_class_names_of_the_hugging_face_label_column():
    given = HuggingFace(examples([1, 0, 1]), ["dog", "cat"]), ["dog", "cat", "cat"]
    splits, _ = load_splits({"train": given, "test": given})
    assert (splits.train.labels.tolist(), splits.train.class_names) == ([1, 0, 0], ("cat", "dog"))


@pytest.mark.parametrize(("train", "test"), [([0, 1], [0, 3]), ([0, 3], [0, 1]), ([2, -1], [3, 0])])
def test_train_and_test_split_both_have_all_classes_of_the_data_set(train, test):
    splits, _ = load_splits((examples(train), examples(test)))
    assert splits.train.class_names == splits.test.class_names == ("0", "1", "2", "3")
    assert (splits.train.labels.tolist(), splits.test.labels.tolist()) == (train, test)


def test_fingerprint_of_in_memory_data_depends_on_images_labels_and_split():
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
        ([0, 1], "data has 3 images but 2 labels"),
        (np.eye(3), "have the shape [3, 3]; expected one class for each image; for one-hot labels"),
        ([0, 0.5, None], "labels of data are object [3]; expected integers"),
        (["bee", 1, "ant"], "labels of data are object [3]; expected integers"),
    ],
)
def test_labels_that_cannot_be_class_indices_are_refused(labels, message):
    with refused(message):
        load_splits((examples([0, 1, 1])[0], labels))


def test_pixels_that_were_not_scaled_to_bytes_are_reported(caplog):
    for largest in (33, 16):
        load_splits(PIXELS % (largest + 1))
        load_splits(list(PIXELS % (largest + 1)))
    load_images(PIXELS[0] // 16)
    load_images(np.full((2, 8, 8), 4095, np.uint16))  # of a camera of 12 bits
    texts = [r.getMessage() for r in caplog.records if "pixel" in r.getMessage()]
    assert [text.partition(" is ")[2] for text in texts] == ["16 of 255; scale it"] * 3


def test_test_images_that_are_also_training_images_are_reported(caplog):
    images, labels = examples([0, 1, 1, 0])
    load_splits(((images[:2], labels[:2]), (images[2:], labels[2:])))
    assert not any("also training images" in message for message in caplog.messages)
    load_splits(((images[:3], labels[:3]), (images[1:], labels[1:])))
    assert "2 test images are also training images: remove them" in caplog.text


def test_masked_labels_are_missing_and_masked_images_are_refused():
    labels = np.ma.array([5, 1, 1, 0, 1, 0], mask=[1, 0, 0, 0, 0, 0])
    splits, _ = load_splits(((PIXELS, labels), (PIXELS, LABELS)))
    assert splits.train.labels.tolist() == [-1, 1, 1, 0, 1, 0]
    with refused("is a masked array of images; fill the masked pixels"):
        load_splits(np.ma.array(PIXELS, mask=PIXELS > 9))
    with refused("is a masked array of images; fill the masked pixels"):
        load_splits(list(np.ma.array(PIXELS, mask=PIXELS > 9)))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (3, "the training data has type int; expected uint8 images"),
        (np.zeros((4, 2, 8, 8), np.uint8), "shape [4, 2, 8, 8]; expected images [n, h, w, c]"),
        (np.zeros((4, 8, 8, 1)) + 2, "values in [2, 2]; expected floats in [0, 1]"),
        (np.zeros((4, 8, 8, 1)) + 1.0001, "values in [1.0001, 1.0001]; expected floats"),
        (np.zeros((4, 8, 8, 1)) + np.nan, "values in [nan, nan]; expected floats in [0, 1]"),
        (np.zeros((4, 8, 8, 1), np.int64), "dtype int64; expected uint8"),
        ({"picture": 3}, "the training data has the keys picture; expected images under one of"),
        ([{"picture": 3}], "item 0 of the training data has the keys picture"),
        ((PIXELS, np.full(6, -2)), "label -2; expected 0, 1"),
        ([PIXELS, np.arange(6)], "is a list [images, labels]; pass a tuple (images, labels)"),
        ([PIXELS[..., 0], [0, 1] * 3], "is a list [images, labels]; pass a tuple"),
        (np.zeros((0, 8, 8, 1), np.uint8), "data has no examples"),
    ],
)
def test_in_memory_data_of_unsupported_types_shapes_or_ranges_are_refused(data, message):
    with refused(message):
        load_splits({"train": data, "test": data})


@pytest.mark.parametrize(
    ("labels", "expected", "names"),
    [
        ([1.0, 0.0, float("nan")], [1, 0, -1], ("0", "1")),
        (np.array([[1], [0], [1]], np.uint8), [1, 0, 1], ("0", "1")),
        (["bee", "ant", "bee"], [1, 0, 1], ("ant", "bee")),
        (np.array(["bee", "ant", "bee"], np.dtypes.StringDType()), [1, 0, 1], ("ant", "bee")),
        (["bee", None, ""], [0, -1, -1], ("bee",)),
        (["bee", "-1", "ant"], [1, -1, 0], ("ant", "bee")),
        (["bee", float("nan"), -1], [0, -1, -1], ("bee",)),
        ([None] * 3, [-1, -1, -1], ()),
    ],
)
def test_float_string_and_missing_labels_become_class_indices(labels, expected, names):
    images, _ = examples([0, 1, 1])
    splits, _ = load_splits({"train": (images, labels), "test": (images[:1], labels[:1])})
    assert (splits.train.labels.tolist(), splits.train.class_names) == (expected, names)


@pytest.mark.parametrize("form", [tuple, lambda x: {"image": x[0], "label": x[1]}])
def test_pandas_missing_value_counts_as_unlabelled(form):
    data = form((examples([0, 1, 1])[0], [1, PandasNA(), 0]))
    splits, _ = load_splits({"train": data, "test": data})
    assert splits.train.labels.tolist() == [1, -1, 0]


def test_equal_names_of_classes_stay_two_classes():
    """ImageNet has two classes named "crane"."""
    data = HuggingFace(examples([0, 1, 2, 2, 1, 0]), ["crane", "dog", "crane"])
    splits, _ = load_splits((data, data))
    for split in (splits.train, splits.test):
        assert split.labels.tolist() == [0, 1, 2, 2, 1, 0]
        assert split.class_names == ("crane", "dog", "crane")
    with refused("two classes share a name, and the splits list other names; rename one"):
        load_splits((data, (PIXELS, list("abcabc"))))


def test_class_names_of_train_and_test_split_are_merged():
    train, test = ((examples(x)[0], [*x]) for x in ("ca", "bca"))
    splits, _ = load_splits((train, test))
    assert splits.train.class_names == splits.test.class_names == ("a", "b", "c")
    assert (splits.train.labels.tolist(), splits.test.labels.tolist()) == ([2, 0], [1, 2, 0])


def test_warning_names_ignored_keys_of_unlabelled_in_memory_data(caplog):
    images, labels = examples([0, 1, 1])
    items = [{"img": x, "target": y} for x, y in zip(images, labels, strict=True)]
    for data in ({"image": images, "target": labels}, items):
        assert not load_splits(data)[0].train.labelled
        assert "has no labels, and ignores target" in caplog.messages.pop()


@pytest.fixture
def files(tmp_path):
    """Write pictures, and every kind of file that names or holds them with their labels."""
    images = RNG.integers(0, 256, (6, 4, 5, 3), np.uint8)
    names, labels = [f"x/{i},\n.png" for i in range(6)], ["b", "a", "b", "a", "a", "b"]
    (tmp_path / "x").mkdir()
    for name, image in zip(names, images, strict=True):
        Image.fromarray(image).save(tmp_path / name)
    np.save(tmp_path / "all.npy", images)
    np.savez(tmp_path / "all.npz", image=images, label=labels)
    with (tmp_path / "all.csv").open("w", newline="") as file:
        rows = zip(names, labels, range(6), strict=True)
        csv.writer(file).writerows([("file", "label", "row"), *rows])
    parquet.write_table(pyarrow.table({"path": names, "class": labels}), tmp_path / "all.parquet")
    return tmp_path, images, [tmp_path / name for name in names], labels


class Frame(dict):
    """Columns with the interface of a data frame."""

    columns, ndim = property(dict.keys), 2


FORMS = {
    **{f"all.{x}": lambda folder, *_, x=x: folder / f"all.{x}" for x in ("npy", "npz")},
    **{f"all.{x}": lambda folder, *_, x=x: f"{folder}/all.{x}" for x in ("csv", "parquet")},
    "paths": lambda _, paths, labels: [str(path) for path in paths],
    "paths and labels": lambda _, paths, labels: (paths, labels),
    "bytes": lambda _, paths, labels: [*zip(map(Path.read_bytes, paths), labels, strict=True)],
    "a data frame": lambda _, paths, labels: Frame(image_path=paths, y=np.array(labels)),
    "a table of Arrow": lambda _, paths, labels: pyarrow.table(
        {"image_path": [*map(str, paths)], "y": labels}
    ),
    "a file and labels": lambda folder, _, labels: (f"{folder}/all.npy", labels),
    "a data frame and labels": lambda _, paths, labels: (Frame(path=paths), np.array(labels)),
    "arrays": lambda _, paths, labels: (np.array([*map(str, paths)]), np.array(labels)),
    "named arrays": lambda _, paths, labels: {"image": np.array(paths), "label": np.array(labels)},
}


@pytest.mark.parametrize("form", FORMS)
def test_paths_give_the_images_and_labels_of_their_files(files, form):
    folder, images, paths, labels = files
    data = FORMS[form](folder, paths, labels)
    splits, _ = load_splits({"train": data, "test": data})
    for split in (splits.train, splits.test):
        np.testing.assert_array_equal(split.images(0), images)
        expected = [] if form in ("all.npy", "paths") else ["a", "b"]
        assert list(split.class_names) == expected
        assert split.labels.tolist() == [expected.index(x) if expected else -1 for x in labels]


def test_label_column_of_a_table_is_stripped_and_is_no_coordinate(files):
    folder, *_ = files
    rows = [f'"x/{i},\n.png",{i},{7 * i}, {"ab"[i % 2]}\n' for i in range(6)]
    table = "".join(["file,x,y,class\n", *rows])
    (folder / "t.csv").write_text(table)
    assert load_splits(folder / "t.csv")[0].train.class_names == ("a", "b")
    (folder / "t.csv").write_text(table.replace("class", "width"))
    assert not load_splits(folder / "t.csv")[0].train.labelled


def test_pictures_of_a_table_that_are_in_the_test_split_too_are_reported(files, caplog):
    folder, *_ = files
    (folder / "t.csv").write_text("file,label\n" + '"x/0,\n.png",a\n' * 10)
    load_splits(folder / "t.csv")
    assert "1 test images are also training images: remove them" in caplog.text
    caplog.clear()
    load_splits(folder / "all.csv")
    load_splits(folder / "all.npy")  # has no labels
    assert "also training images" not in caplog.text


@pytest.mark.parametrize("form", ["a data frame", "array of paths"])
def test_pair_of_tables_or_arrays_of_paths_is_training_and_test_data(files, form):
    _, images, paths, labels = files

    def part(chosen):
        if form == "a data frame":
            return Frame(path=paths[chosen], label=labels[chosen])
        return np.array([*map(str, paths[chosen])])

    splits, _ = load_splits((part(slice(4)), part(slice(4, 6))))
    np.testing.assert_array_equal(splits.train.images(0), images[:4])
    np.testing.assert_array_equal(splits.test.images(0), images[4:])
    assert splits.train.class_names == (("a", "b") if form == "a data frame" else ())


def test_one_image_may_be_the_bytes_of_its_file(files):
    _, images, paths, _ = files
    source, names = load_images(paths[0].read_bytes())
    np.testing.assert_array_equal(source.images(0), images[:1])
    assert names == ["item 0"]


def test_too_few_examples_for_a_test_split_are_refused():
    with refused("no examples for the split 'test'; pass (train, test), or change"):
        load_splits((np.zeros((2, 4, 4, 3), np.uint8), [0, 1]))


def test_unreadable_picture_files_are_named_or_left_out(files, caplog):
    _, images, paths, labels = files
    paths[2].write_bytes(paths[2].read_bytes()[:-30])
    paths[4] = paths[4].with_name("missing.png")
    with refused("2 of the pictures in data", f"{paths[2]}: ".replace("\n", "\\n"), "No such file"):
        load_splits((paths, labels))
    splits, _ = load_splits({"train": (paths, labels), "test": (paths, labels)}, on_error="skip")
    np.testing.assert_array_equal(splits.train.images(0), images[[0, 1, 3, 5]])
    assert splits.train.labels.tolist() == [1, 0, 0, 1]
    assert "2 unreadable pictures are left out" in caplog.text


def test_error_about_a_file_that_was_spoilt_after_opening_says_to_replace_it(tmp_path):
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(path := tmp_path / "a.png")
    splits, _ = load_splits([path])
    path.write_bytes(path.read_bytes()[:-30])
    with refused("cannot be decoded", "; replace its file"):
        splits.train.read(np.array([0]))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.npy", b"no array", "cannot be read"),
        ("x.parquet", b"no table", "cannot be read"),
        ("x.csv", b"name,label\n", "columns name, label; expected the paths of pictures in one of"),
        ("x.csv", b"file,label\na,b,c\n", "more columns in row 1 than in its header"),
        ("x.txt", b"", "expected a folder, an archive, a picture, or a file ending in .npz"),
        ("x.npz", b"", "cannot be read"),
    ],
)
def test_unreadable_or_unsupported_data_files_are_refused(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with refused(str(tmp_path / name), message):
        load_splits(tmp_path / name)


def saved(picture):
    """Return the bytes of a TIFF or PNG file."""
    format = "tiff" if picture.mode in ("F", "I", "CMYK") else "png"
    return encoded(picture, format, **picture.info)


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
    source, _ = load_images([picture, picture])
    channels = 1 if mode in ("L", "I", "I;16") else 3
    assert source.shape[-1] == channels and picture.tobytes() == before
    expected = decoding.open_picture(saved(picture), channels, upright=True)
    np.testing.assert_array_equal(source.images(0)[1].squeeze(), expected)


def test_channels_decide_on_pillow_images_as_on_files():
    colours = Image.fromarray(RNG.integers(0, 256, (4, 5, 3), np.uint8))
    pictures = [colours, colours.convert("L")]
    with refused("images of 1 and 3 channels; give all of them one number, by data.channels"):
        load_splits((pictures, pictures))
    splits, _ = load_splits((pictures, pictures), channels=3)
    for picture, read in zip(pictures, splits.train.images(0), strict=True):
        np.testing.assert_array_equal(read, picture.convert("RGB"))
    source, _ = load_images(pictures, channels=1)
    np.testing.assert_array_equal(source.images(0)[0][..., 0], colours.convert("L"))


def test_pillow_images_with_an_unknown_value_range_are_refused():
    picture = Image.fromarray(np.ones((4, 5), np.float32))
    with refused("item 1 of images has floating-point pixels"):
        load_images([picture.convert("L"), picture])
    with pytest.raises(OSError, match="has floating-point pixels"):
        decoding.open_picture(saved(picture), 3)


def test_load_images_ignores_labels_and_refuses_an_empty_list():
    images, labels = examples([0, 1, 1])
    for data in (images, (images, labels), (images, labels + 0.5), [*images], {"image": images}):
        source, names = load_images(data)
        assert names is None
        np.testing.assert_array_equal(source.images(0), images)
        assert not source.labelled and source.labels.tolist() == [-1] * 3
    with refused("images is empty; expected at least one image"):
        load_images([])


def test_load_images_takes_one_image(files):
    _, images, paths, _ = files
    for one in (images[0], Image.fromarray(images[0]), str(paths[0])):
        source, names = load_images(one)
        np.testing.assert_array_equal(source.images(0), images[:1])
        assert names == ([str(paths[0])] if isinstance(one, str) else None)
    grey = load_images(images[0, :, :, 0])[0].images(0)[..., 0]
    np.testing.assert_array_equal(grey, images[:1, ..., 0])


@pytest.mark.parametrize("name", ["val", "valid", "dev", "eval"])
def test_split_of_a_mapping_under_any_usual_name_is_the_test_split(name, caplog):
    images = np.arange(48, dtype=np.uint8).reshape(4, 2, 2, 3)
    splits, _ = load_splits({"train": (images, [0, 1, 0, 1]), name: (images[:2] + 48, [0, 1])})
    assert len(splits.train) == 4 and len(splits.test) == 2 and not caplog.text
    load_splits({"train": (images, [0, 1, 0, 1]), "unlabelled": images})
    assert "'unlabelled' is not used; splits are train, test" in caplog.text
    load_splits({"train": (images, [0, 1, 0, 1]), "test": images[:1], name: images})
    assert f"'{name}' is not used" in caplog.text


def test_pair_of_folders_is_refused_with_the_layout_to_use(tmp_path):
    with refused(f"data={tmp_path} is a folder or an archive, which a pair (train, test) cannot"):
        load_splits((tmp_path, tmp_path))


def test_pair_of_objects_without_an_index_is_refused():
    with refused("the training data", "Loader"):
        load_splits((Loader(), Loader()))


class Loader:
    """Examples that can be counted and iterated over only, as those of a DataLoader."""

    def __len__(self):
        return 4

    def __iter__(self):
        return iter([])


def test_item_of_three_parts_is_refused():
    with refused("item 0 of data must be an image or (image, label), got a tuple"):
        load_splits(Items([(x, y, 0) for x, y in PAIRS]))


@pytest.mark.parametrize("shape", [(20, 20, 4), (3, 20, 20), (20, 20, 2)])
def test_one_image_with_channels_that_cannot_be_told_is_refused(shape):
    with refused("may be one image; expected [n, h, w, c], with 3 channels last"):
        load_images(np.zeros(shape, np.uint8), channels=3)
