"""Folders of pictures as data sets: layouts, labels, kinds of pictures, changes."""

import os

import numpy as np
import pytest
from file_cases import (
    CLASSES,
    HEIGHT,
    LABELLED,
    WIDTH,
    encoded,
    files_of,
    nothing_is_prepared,
    pack,
    picture,
    pictures,
    pixels_of,
    refused,
    unpack,
)
from PIL import Image

from jaxssl.data.formats import folder

pytestmark = pytest.mark.fast


def contents(opened):
    """Class and pixels by name."""
    examples = opened.read(np.arange(len(opened)))
    labels = [opened.class_names[e.label] if e.label >= 0 else "" for e in examples]
    np.testing.assert_array_equal(opened.labels, [e.label for e in examples])
    images = [np.asarray(e.input) for e in examples]
    return {n: (c, x) for n, c, x in zip(files_of(opened), labels, images, strict=True)}


def classes_of(opened):
    return {name: c for name, (c, _) in contents(opened).items()}


def arrange(names, path="PATH", **options):
    return folder.arrange(names, path, **options)


# Layouts of folders, given by file names.


@pytest.mark.parametrize("around", ["", "pack/", "pack/images/"])
def test_folder_per_class_gives_labels_and_a_test_split(around):
    names = [f"{around}{name}" for name in LABELLED] + [f"{around}README.md"]
    actual = arrange(names)
    assert actual.classes == CLASSES and list(actual.splits) == ["train", "test"]
    whole = actual.splits["train"] | actual.splits["test"]
    assert whole == {f"{around}{name}": name.split("/")[0] for name in LABELLED}
    assert actual.other == (f"{around}README.md",)


@pytest.mark.parametrize("around", ["", "pack/"])
def test_folders_of_splits_with_folders_of_classes_are_read(around):
    expected = {
        "test": {"test/b/2.png": "b"},
        "train": {"train/a/1.png": "a", "train/b/2.png": "b"},
        "unlabeled": {"unlabeled/some/3.png": "", "unlabeled/4.png": ""},
        "val": {"val/a/5.png": "a"},
    }
    actual = arrange([around + name for of in expected.values() for name in of])
    assert actual.classes == ("a", "b")
    wanted = {s: {around + n: c for n, c in of.items()} for s, of in expected.items()}
    assert actual.splits == wanted and list(actual.splits) == sorted(expected)


@pytest.mark.parametrize("only", ["train", "images", "test"])
def test_single_top_folder_around_the_class_folders_is_skipped(only):
    assert arrange([f"{only}/{name}" for name in LABELLED]).classes == CLASSES


def test_class_folders_may_be_nested():
    actual = arrange(["cat/big/1.png", "cat/small/2.png", "dog/3.png"], test_fraction=0)
    assert actual.classes == ("cat/big", "cat/small", "dog")
    assert actual.splits["train"]["cat/small/2.png"] == "cat/small"


def test_images_outside_class_folders_have_no_labels():
    actual = arrange([f"{i}.png" for i in range(10)])
    sizes = {split: len(of) for split, of in actual.splits.items()}
    assert actual.classes == () and sizes == {"train": 8, "test": 2}
    actual = arrange(["Train/1.png", "TEST/2.png"])
    assert actual.splits == {"TEST": {"TEST/2.png": ""}, "Train": {"Train/1.png": ""}}


def test_folder_of_unlabelled_pictures_beside_class_folders_is_refused():
    with refused("has the folder unlabeled beside class folders; move the classes into a folder"):
        arrange([*LABELLED, "unlabeled/9.png"])


def test_image_suffixes_ignore_case_and_other_files_are_skipped():
    actual = arrange(["a/1.JPG", "b/2.Jpeg", "b/3.txt", "png"], test_fraction=0)
    assert actual.splits["train"] == {"a/1.JPG": "a", "b/2.Jpeg": "b"}
    assert actual.other == ("b/3.txt", "png")


@pytest.mark.parametrize("fraction", [0.1, 0.2, 0.5, 0.99])
def test_test_fraction_is_taken_from_each_class(fraction):
    names = [f"{c}/{i}.png" for c, count in (("a", 2), ("b", 10), ("c", 35)) for i in range(count)]
    splits = arrange(names, test_fraction=fraction).splits
    assert sorted([*splits["train"], *splits["test"]]) == sorted(names)
    assert not set(splits["train"]) & set(splits["test"])
    counts = [sum(of == c for of in splits["test"].values()) for c in "abc"]
    expected = [min(count - 1, max(1, round(fraction * count))) for count in (2, 10, 35)]
    assert counts == expected


def test_choice_of_test_images_depends_only_on_seed_file_names_and_test_fraction():
    def test(names, **options):
        return set(arrange(names, **options).splits["test"])

    names = list(LABELLED)
    first = test(names)
    assert test(names[::-1]) == first
    assert test([*names, "dog/1.png", "dog/2.png"]) - {"dog/1.png", "dog/2.png"} == first
    assert {f"pack/{name}" for name in first} == test([f"pack/{name}" for name in names])
    others = [test(names, split_seed=seed) for seed in range(1, 6)]
    assert len({frozenset(other) for other in (first, *others)}) == 6
    assert len(set.union(first, *others)) > 3 * len(first)
    assert test(names, test_fraction=0.5) > first  # a larger fraction adds test images


def test_class_with_a_single_image_is_in_the_train_split_only():
    actual = arrange(["a/1.png", "b/1.png", "b/2.png"])
    assert "a/1.png" in actual.splits["train"] and len(actual.splits["test"]) == 1
    assert list(arrange(["a/1.png", "b/2.png"]).splits) == ["train"]
    assert list(arrange(list(LABELLED), test_fraction=0).splits) == ["train"]


def test_label_table_replaces_class_folders():
    labels = {"x/1.png": "b", "x/2.png": "a", "3.png": "a"}
    actual = arrange(list(labels), labels=labels, test_fraction=0)
    assert (actual.classes, actual.splits) == (("a", "b"), {"train": labels})
    names = ["train/1.png", "train/2.png", "test/3.png"]
    actual = arrange(names, labels={"train/1.png": "b", "train/2.png": "a"})
    assert actual.splits["test"] == {"test/3.png": ""}
    assert actual.splits["train"] == {"train/1.png": "b", "train/2.png": "a"}


@pytest.mark.parametrize(
    ("names", "parts"),
    [
        ([], ["holds no pictures (0 other files)", ".jpg, .jpeg, .png"]),
        (["a/1.txt", "b/2.csv"], ["holds no pictures (2 other files)"]),
        (["cat/1.png", "cat/2.png"], ["a single class, 'cat'", "folder they lie in: PATH/cat"]),
        (["a/b/1.png", "a/b/2.png"], ["a single class, 'b'", "folder they lie in: PATH/a/b"]),
        (["train/cat/1.png", "test/cat/2.png"], ["a single class, 'cat'"]),
        (["a/1.png", "b/2.png", "3.png"], ["outside of its class folders (3.png); move them"]),
        (
            ["train/a/1.png", "train/b/2.png", "test/3.png", "test/a/4.png"],
            ["the split 'test' has pictures outside of its class folders (test/3.png)"],
        ),
        (
            ["train/a/1.png", "test/a/2.png", "extra/3.png", "4.png"],
            ["the split folders test, train with others (4.png, extra/3.png); move"],
        ),
        (
            ["train/a/1.png", "train/b/2.png", "holdout/a/3.png"],
            ["the split folders train with others (holdout/a/3.png)", "of train, training"],
        ),
    ],
)
def test_unknown_folder_layouts_are_rejected(names, parts):
    with refused("data.path=PATH", *parts):
        arrange(names)


@pytest.mark.parametrize("name", ["b\nc", "b\rc", " ", "b ", "\tb", "\xa0b", "b/c\n"])
def test_class_name_with_a_line_break_or_outer_spaces_is_rejected(name):
    names = [f"{c}/{i}.png" for c in ("a", name, "z") for i in range(2)]
    with refused(f"the class name {name!r} has a line break, or spaces at an end"):
        arrange(names)
    labels = {"0.png": "a", "1.png": name, "2.png": "z"}
    with refused(f"{name!r}", "rename the folder or the label"):
        arrange(list(labels), labels=labels)


def test_unusual_class_names_keep_the_labels_of_their_images(load, tmp_path):
    classes = sorted(["#a", "a\tb", "b \x1b[31mc", "é\u2028x"])
    files = {f"{c}/{i}.png": picture(f"{c}{i}") for c in classes for i in range(2)}
    opened = load(unpack(tmp_path / "odd", files), test_fraction=0.0)
    assert opened.class_names == tuple(classes)
    expected = [name.partition("/")[0] for name in files_of(opened)]
    assert [classes[label] for label in opened.labels] == expected


def test_label_table_that_does_not_match_the_image_files_is_rejected():
    names = ["1.png", "2.png", "3.png"]
    with refused("names pictures that data.path does not hold: 8, 9", "such as 1.png"):
        arrange(names, labels={"1.png": "a", "2.png": "b", "9": "a", "8": "b"})
    with refused(
        "pictures without a label in data.labels (2.png)", "label all pictures of a split"
    ):
        arrange(names, labels={"1.png": "a", "3.png": "b"})
    with refused("a single class, 'a'"):
        arrange(names, labels=dict.fromkeys(names, "a"))


# Data sets that are prepared from folders.


@pytest.fixture(scope="module")
def train_and_test(load, labelled):
    return load(labelled), load(labelled, "test")


def test_prepared_set_has_the_images_and_labels_of_its_folder(train_and_test, labelled):
    assert [len(opened) for opened in train_and_test] == [24, 6]
    actual = contents(train_and_test[0]) | contents(train_and_test[1])
    assert sorted(actual) == sorted(LABELLED)
    for name, (c, image) in actual.items():
        assert c == name.split("/")[0]
        np.testing.assert_array_equal(image, pixels_of(name))
    for opened in train_and_test:
        assert opened.class_names == CLASSES and opened.labelled
        assert opened.shape == (HEIGHT, WIDTH, 3) and opened.one_size
    splits = folder.arrange(LABELLED, "").splits
    for split, opened in zip(("train", "test"), train_and_test, strict=True):
        assert sorted(files_of(opened)) == sorted(splits[split])
    assert train_and_test[1].describe() == f"{labelled.name}, test: 6 images of 6x8x3, 3 classes"
    assert (np.diff(train_and_test[0].labels) < 0).sum() > 3  # not ordered by class


@pytest.mark.parametrize("suffix", [".zip", ".tar.xz", ".tar.gz"])
def test_archive_gives_the_examples_of_its_folder_in_order(load, train_and_test, tmp_path, suffix):
    mixed = dict(sorted(LABELLED.items(), key=lambda item: item[0][::-1]))
    path = pack(tmp_path / f"pack{suffix}", mixed)
    for opened, split in zip(train_and_test, ("train", "test"), strict=True):
        other = load(path, split)
        assert files_of(other) == files_of(opened)
        np.testing.assert_array_equal(other.labels, opened.labels)
        np.testing.assert_array_equal(other.images(0), opened.images(0))


def test_folder_inside_an_archive_is_read_as_a_data_set(load, tmp_path):
    content = {f"a/{name}": data for name, data in LABELLED.items()} | pictures("b/other.png")
    path = pack(tmp_path / "pack.tar.xz", content)
    assert classes_of(load(f"{path}/a")) == folder.arrange(LABELLED, "").splits["train"]
    with refused(f"data.path={path}/c: the archive {path} has no folder 'c'"):
        load(f"{path}/c")


def test_folder_that_the_message_about_a_single_one_names_is_read_as_a_data_set(load, tmp_path):
    path = pack(tmp_path / "photos.zip", pictures("photos/1.png", "photos/2.png"))
    with refused(f"name the folder they lie in: {path}/photos"):
        load(path)
    assert not load(f"{path}/photos", test_fraction=0.0).class_names


def test_folders_of_the_same_name_in_an_archive_are_separate_sets(load, tmp_path):
    path = pack(tmp_path / "pack.zip", pictures("a/all/1.png", "b/all/2.png"))
    assert files_of(load(f"{path}/a/all")) == ["1.png"]
    assert files_of(load(f"{path}/b/all")) == ["2.png"]


def test_split_without_class_folders_beside_labelled_splits_is_unlabelled(load, tmp_path):
    unpack(tmp_path, pictures("train/a/1.png", "train/b/2.png", "test/a/3.png", "unlabelled/4.png"))
    opened = load(tmp_path, "unlabelled")
    assert opened.labels.tolist() == [-1] and not opened.labelled
    assert classes_of(load(tmp_path)) == {"train/a/1.png": "a", "train/b/2.png": "b"}
    assert classes_of(load(tmp_path, "test")) == {"test/a/3.png": "a"}
    both = load(tmp_path, "train+unlabelled")
    assert len(both) == 3 and sorted(both.labels) == [-1, 0, 1]


def test_label_table_gives_the_labels_of_images(load, tmp_path):
    root, table = tmp_path / "pictures", tmp_path / "labels.csv"
    unpack(root, pictures("1.png", "2.png", "x/3.png", "x/4.png"))
    options = {"labels": str(table), "test_fraction": 0.0}
    lines = ["\ufefffile,label,note", '1.png,"b, c",x', "2.png, a ,", "x/3.png,a,", "x/4.png,d,"]
    table.write_text("\r\n".join(lines))
    expected = {"1.png": "b, c", "2.png": "a", "x/3.png": "a", "x/4.png": "d"}
    assert classes_of(load(root, **options)) == expected
    table.write_text("\n".join([*lines[:4], "x/4.png,a,"]))  # x/4.png gets another label
    assert classes_of(load(root, **options)) == expected | {"x/4.png": "a"}
    table.write_text("\n".join(lines[:4]))
    with refused("without a label in data.labels (x/4.png)"):
        load(root, **options)


@pytest.mark.parametrize(
    ("table", "parts"),
    [
        (None, ["cannot be read", "No such file"]),
        (b"\xff\xfe\x00", ["cannot be read", "utf-8"]),
        (b"", ["header 'file,label'; its first line is ''"]),
        (b"name,class\n1.png,a\n", ["header 'file,label'; its first line is 'name,class'"]),
        (b"1.png,a\n2.png,b\n", ["header 'file,label'; its first line is '1.png,a'"]),
        (b"file,label,label\n1.png,a,b\n", ["has several columns 'label'; rename or remove all"]),
        (b"\r\n\nname,class\n1.png,a\n", ["first line is 'name,class', and 1 rows follow"]),
        (b"file,label\n", ["first line is 'file,label', and 0 rows follow"]),
        (b"file,label\n1.png,a\n2.png\n", ["lacks the file or the label in row 2"]),
        (b"file,label\n1.png,a\n2.png,-1\n", ["has the label -1 in row 2, which means no label"]),
        (b"file,label\n1.png,a\n2.png,b,c\n", ["more columns in row 2 than in its header"]),
        (b"file,label\n1.png,a\n2.png,b\n1.png,b\n", ["names files twice: 1.png"]),
        (b"file,label\n1.png,a\n3.png,b\n", ["pictures that data.path does not hold: 3.png"]),
    ],
)
def test_malformed_label_table_is_rejected(load, tmp_path, table, parts):
    unpack(tmp_path / "pictures", pictures("1.png", "2.png"))
    path = tmp_path / "labels.csv"
    if table is not None:
        path.write_bytes(table)
    with refused("data.labels", *parts):
        load(tmp_path / "pictures", labels=str(path))


def test_images_of_all_formats_are_decoded_upright_in_rgb(load, tmp_path):
    exif = Image.Exif()
    exif[274] = 6
    deep = pixels_of("deep", (HEIGHT, WIDTH)).astype(np.uint16) * 257
    content = {
        "turned.png": picture("turned", (WIDTH, HEIGHT, 3), exif=exif),
        "deep.png": encoded(deep),
        "lossless.webp": picture("lossless", format="webp", lossless=True),
        "grey.BMP": picture("grey", (HEIGHT, WIDTH), "bmp"),
        "alpha.png": picture("alpha", (HEIGHT, WIDTH, 4)),
    }
    expected = {
        "turned.png": np.rot90(pixels_of("turned", (WIDTH, HEIGHT, 3)), -1),
        "deep.png": np.repeat(deep[:, :, None] // 257, 3, 2),
        "lossless.webp": pixels_of("lossless"),
        "grey.BMP": np.repeat(pixels_of("grey", (HEIGHT, WIDTH))[:, :, None], 3, 2),
        "alpha.png": pixels_of("alpha", (HEIGHT, WIDTH, 4))[:, :, :3],
    }
    opened = load(unpack(tmp_path, content), test_fraction=0.0)
    assert opened.shape == (HEIGHT, WIDTH, 3)  # all turned upright
    actual = contents(opened)
    assert actual.keys() == expected.keys()
    for name, image in expected.items():
        np.testing.assert_array_equal(actual[name][1], image, name)


# A folder is prepared once, and again when it changes.


def test_prepared_folder_set_is_not_prepared_again(load, labelled, train_and_test, monkeypatch):
    nothing_is_prepared(monkeypatch)
    assert files_of(load(labelled)) == files_of(train_and_test[0])
    assert load(labelled).class_names == CLASSES and load(labelled).shape == (HEIGHT, WIDTH, 3)


def test_changed_folder_is_prepared_again(load, tmp_path):
    unpack(tmp_path, pictures("a/1.png", "b/2.png"))
    whole = {"test_fraction": 0.0}
    assert len(load(tmp_path, **whole)) == 2
    unpack(tmp_path, pictures("b/3.png"))
    assert len(load(tmp_path, **whole)) == 3
    (tmp_path / "b").rename(tmp_path / "c")
    assert load(tmp_path, **whole).class_names == ("a", "c")
    (tmp_path / "c/2.png").write_bytes(picture("another picture"))
    os.utime(tmp_path / "c/2.png", ns=(0, 10**18))
    _, image = contents(load(tmp_path, **whole))["c/2.png"]
    np.testing.assert_array_equal(image, pixels_of("another picture"))
    (tmp_path / "c/2.png").unlink()
    assert sorted(files_of(load(tmp_path, **whole))) == ["a/1.png", "c/3.png"]


def test_folders_of_equal_name_size_and_time_at_two_paths_are_prepared_separately(load, tmp_path):
    first, second = tmp_path / "x" / "set", tmp_path / "y" / "set"
    named = ((first, "one"), (second, "two"))
    for root, name in named:
        for file in ("a/1.png", "b/2.png"):
            unpack(root, {file: picture(name).ljust(400, b"\0")})  # all files have 400 bytes
            os.utime(root / file, ns=(0, 10**18))
    for root, name in named:
        for _, image in contents(load(root, test_fraction=0.0)).values():
            np.testing.assert_array_equal(image, pixels_of(name))


def test_files_whose_names_or_classes_contain_line_breaks_keep_their_labels(load, tmp_path):
    names = ("1\n.png", "2\r.png", "3\u2028.png")
    root, table, listed = unpack(tmp_path / "p", pictures(*names)), tmp_path / "t", tmp_path / "c"
    rows = [f'\n"{name}","a\u2028{name[0]}"' for name in names]
    table.write_bytes("".join(["file,label", *rows]).encode())
    expected = {name: f"a\u2028{name[0]}" for name in names}
    assert classes_of(load(root, labels=str(table), test_fraction=0.0)) == expected
    listed.write_text("a\u20283\na\u20281\n")
    options = {"labels": str(table), "test_fraction": 0.0, "classes": str(listed)}
    assert load(root, **options).class_names == ("a\u20283", "a\u20281")


def test_changing_test_fraction_or_split_seed_prepares_another_set(load, labelled, train_and_test):
    other = load(labelled, "test", split_seed=1)
    assert len(other) == 6 and set(files_of(other)) != set(files_of(train_and_test[1]))
    assert len(load(labelled, "test", test_fraction=0.5)) == 15
