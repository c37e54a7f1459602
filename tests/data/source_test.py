"""Splits, classes and images of prepared sets: what is asked for, in that order, nothing else."""

import logging
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds
from data_cases import data_config
from etils import epath
from file_cases import files_of, refused
from PIL import Image

from jaxssl.data import splits as splits_lib
from jaxssl.data.decoders import arrays, files
from jaxssl.data.decoders.arrays import LazyArray
from jaxssl.data.records import CaptionReader, PreparedSplit
from jaxssl.data.source import load, load_splits
from jaxssl.data.splits import Source, Splits, read_classes

pytestmark = pytest.mark.fast

TRAIN, TEST = 1297, 500
# (width, height) of each picture.
SIZES = [(90, 70), (64, 100), (120, 120), (71, 200), (99, 98), (80, 81), (150, 66)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("data")
    load(group(path), "train")
    return path


@pytest.fixture(scope="module")
def digits(directory):
    """Every digit by split, as TFDS reads them: images, labels and ids."""
    builder = tfds.builder_from_directory(directory / "digits" / "1.0.0")
    out = {}
    for split in ("train", "test"):
        records = list(builder.as_data_source(split, file_format="array_record"))
        out[split] = {key: np.array([r[key] for r in records]) for key in ("image", "label", "id")}
    return out


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Pictures of many sizes in a folder without classes, and what they hold."""
    path, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for i, (width, height) in enumerate(SIZES):
        image = rng.integers(0, 256, (height, width, 3), np.uint8)
        Image.fromarray(image).save(path / f"{i}.png")
    return path


def group(directory, **changes):
    return data_config(name="digits", dir=str(directory)) | changes


def of(folder, directory):
    return group(directory, name="folder", path=str(folder), test_fraction=0.0)


def forget(directory):
    """Remove the arrays that were kept."""
    for path in directory.rglob("decoded-*"):
        path.unlink()


WHOLE, LAST = slice(None), ("train", slice(-10, None))
SPECS = {
    "train": [("train", WHOLE)],
    "test": [("test", WHOLE)],
    "train[:90%]": [("train", slice(0, 1167))],  # 0.9 * 1297 = 1167.3
    "train[90%:]": [("train", slice(1167, None))],
    "train[10:20]": [("train", slice(10, 20))],
    "train[-3:]": [("train", slice(-3, None))],
    "train+test": [("train", WHOLE), ("test", WHOLE)],
    "test+train": [("test", WHOLE), ("train", WHOLE)],
    "train[:10]+train[-10:]": [("train", slice(10)), LAST],
    "train[-10:]+test[:1]+train[:10]": [LAST, ("test", slice(1)), ("train", slice(10))],
    "train[:2]+train[1:3]": [("train", slice(2)), ("train", slice(1, 3))],
    "test[7:8]": [("test", slice(7, 8))],
}


@pytest.mark.parametrize("split", SPECS)
def test_split_spec_selects_the_expected_examples_in_order(directory, digits, split):
    source = load(group(directory), split)
    images = np.concatenate([digits[s]["image"][part] for s, part in SPECS[split]])
    labels = np.concatenate([digits[s]["label"][part] for s, part in SPECS[split]])
    assert (len(source), source.shape, source.num_classes) == (len(labels), (8, 8, 1), 10)
    assert source.labelled and source.one_size and source.split == split
    assert source.describe() == f"digits, {split}: {len(labels)} images of 8x8x1, 10 classes"
    actual = source.images(99)  # Images of one size are not resized to 99.
    assert (actual.dtype, source.labels.dtype) == (np.uint8, np.int32)
    np.testing.assert_array_equal(actual, images)
    np.testing.assert_array_equal(source.labels, labels)
    indices = np.random.default_rng(0).integers(len(labels), size=30)  # with repeated indices
    examples = source.read(indices)
    assert [example.label for example in examples] == labels[indices].tolist()
    pixels = np.stack([np.asarray(example.input) for example in examples])
    np.testing.assert_array_equal(pixels[..., None], images[indices])


def test_load_splits_opens_the_train_bank_and_test_split_of_the_config(directory):
    splits = load_splits(group(directory, train_split="train[:30]", test_split="test[:7]"))
    assert (len(splits.train), len(splits.bank), len(splits.test)) == (30, 30, 7)
    assert splits.bank is splits.train and splits.labelled
    splits = load_splits(group(directory, train_split="train+test", bank_split="train[5:10]"))
    assert (len(splits.train), len(splits.bank), len(splits.test)) == (TRAIN + TEST, 5, TEST)
    with refused("'digits' has no split 'bank'"):
        load_splits(group(directory, bank_split="bank"))


BAD_SPLITS = {
    "trian": "'digits' has no split 'trian'; did you mean 'train'? valid: test, train",
    "unlabelled": "'unlabelled'; valid: test, train; choose them by data.train_split, data.bank",
    "train+tset": "Unknown split 'tset'",
    "train[:2000]": "Requested slice [:2000] incompatible with 1297 examples; expected",
    "train[5:2]": "has no examples",
    "all[:90%]": "'all[:90%]' of 'digits'",
    "train[5:5]": "has no examples",
}
MALFORMED = ("", "train[", "train[:10%", "train[0]", "train[::2]", "train[:110%]", "train[a:b]")
MALFORMED += ("train+", "train,test", "train test")


@pytest.mark.parametrize(
    ("bank", "test", "number"),
    [
        ("", "test", 0),
        ("train[:20]", "train[20:]", 0),
        ("train[:20]", "train[15:30]+test", 5),
    ],
)
def test_warning_counts_the_test_examples_that_are_also_in_the_bank(
    directory, bank, test, number, caplog
):
    splits = load_splits(group(directory, bank_split=bank, test_split=test))
    counts = [record.args[0] for record in caplog.records if "are also in the bank" in record.msg]
    assert counts == [number] * bool(number)
    assert splits_lib.in_both(splits.bank, splits.test).sum() == number
    assert splits_lib.in_both(splits.test, splits.test).all()


def test_copy_of_a_prepared_set_without_its_metadata_is_named(directory, tmp_path):
    copy = Path(shutil.copytree(directory, tmp_path / "sets"))
    [info] = copy.glob("digits/**/dataset_info.json")
    info.unlink()
    with refused(f"{info.parent} lacks dataset_info.json; copy all files"):
        load_splits(group(copy))


@pytest.mark.parametrize("split", BAD_SPLITS)
def test_unknown_or_empty_split_is_rejected_in_one_line(directory, split):
    with refused(BAD_SPLITS[split], repr(split)):
        load(group(directory), split)


@pytest.mark.parametrize("split", MALFORMED)
def test_malformed_split_error_shows_examples_and_valid_names(directory, split):
    reason = f"split {split!r} of 'digits': Error parsing split {split!r}; "
    with refused(reason, "'train[:90%]' or 'train+test', from the splits test, train"):
        load(group(directory), split)


def listed(tmp_path, text):
    path = tmp_path / "classes.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize("split", ["train", "train[:100]+test[-50:]"])
def test_class_list_selects_classes_and_orders_labels(directory, digits, tmp_path, split):
    text = "# some digits\n7\tseven, as in 8\n\n  3 \n0\t\n# 5\n"
    data = group(directory, classes=str(listed(tmp_path, text)))
    source, whole = load(data, split), load(group(directory), split)
    assert source.class_names == ("seven, as in 8", "3", "0") and source.num_classes == 3
    members = np.flatnonzero(np.isin(whole.labels, [7, 3, 0]))
    labels = np.array([{7: 0, 3: 1, 0: 2}[label] for label in whole.labels[members].tolist()])
    assert len(source) == len(members) and source.labelled
    np.testing.assert_array_equal(source.labels, labels)
    np.testing.assert_array_equal(source.images(8), whole.images(8)[members])
    examples = source.read(np.arange(len(members)))
    assert [example.label for example in examples] == labels.tolist()
    np.testing.assert_array_equal(
        [np.asarray(example.input) for example in examples], source.images(8)[..., 0]
    )


@pytest.mark.parametrize("text", ["1\r\n2\r\n", b"\xef\xbb\xbf1\n2", "2\n1"])
def test_class_list_may_have_crlf_line_ends_or_a_bom(directory, tmp_path, text):
    source = load(group(directory, classes=str(listed(tmp_path, text))), "train")
    assert set(source.class_names) == {"1", "2"} and set(source.labels.tolist()) == {0, 1}


BAD_CLASSES = {
    "": "names no class; expected one class a line, each once",
    "# none\n\n": "names no class;",
    "1\n2\n1\n": "names '1' twice; expected one class a line, each once",
    "1\nelf\nten\n": "'digits' has no class 'elf' (2 of 3 are unknown); valid: 0, 1, 2,",
    b"\xff\xfe1": "cannot be read: 'utf-8' codec",
}


@pytest.mark.parametrize("text", BAD_CLASSES)
def test_invalid_class_list_raises_a_one_line_error(directory, tmp_path, text):
    path = listed(tmp_path, text)
    with refused(f"data.classes={path}", BAD_CLASSES[text]):
        load(group(directory, classes=str(path)), "train")


def test_missing_class_list_is_reported(directory, tmp_path):
    for path in (tmp_path / "none.txt", tmp_path):
        with refused(f"data.classes={path} cannot be read: "):
            load(group(directory, classes=str(path)), "train")


def test_unknown_class_error_suggests_similar_names():
    names = tuple(tfds.builder("imagenet2012").info.features["label"].names)
    one = splits_lib.Source("imagenet2012", "train", (), names, (None, None, 3))
    reason = "has no class 'n01440765' (1 of 1 are unknown); the closest of "
    with refused(reason, "of 1000 valid ones are n01440764"):
        splits_lib._select_classes(one, {"n01440765": "tench"}, "mine.txt")


def test_imagenet100_class_list_has_100_imagenet_classes():
    names = read_classes(Path(splits_lib.__file__).with_name("imagenet100.txt"))
    assert len(names) == len(set(names)) == 100
    assert set(names) <= set(tfds.builder("imagenet2012").info.features["label"].names)


def test_data_set_without_labels_has_no_labels_and_classes(directory, folder, tmp_path):
    source = load(of(folder, directory), "train")
    assert (source.class_names, source.num_classes, source.labelled) == ((), 0, False)
    assert source.describe().endswith("7 images of many sizes, no labels")
    np.testing.assert_array_equal(source.labels, np.full(7, -1, np.int32))
    assert source.labels.dtype == np.int32
    assert {example.label for example in source.read(np.arange(7))} == {-1}
    data = of(folder, directory) | {"classes": str(listed(tmp_path, "cat"))}
    with refused(" has no labels, leave it empty"):
        load(data, "train")


def test_split_of_the_current_folder_has_the_name_of_that_folder(directory, folder, monkeypatch):
    monkeypatch.chdir(folder)
    for path in (".", f"../{folder.name}", f"{folder}/../{folder.name}/."):
        assert load(of(path, directory), "train").name == folder.name


def middle(path, size):
    """The image with a short side of 8/7 of the size, of which Pillow cuts out the centre."""
    with Image.open(path) as image:
        whole = [int(int(size / 0.875) * side / min(image.size)) for side in image.size]
        left, top = (round((side - size) / 2) for side in whole)
        image = image.resize(whole, Image.Resampling.BILINEAR)
        return np.asarray(image.crop((left, top, left + size, top + size)))


@pytest.mark.parametrize("size", [8, 80])
def test_images_of_different_sizes_are_cropped_to_one_size(directory, folder, size):
    source = load(of(folder, directory), "train")
    assert source.shape == (None, None, 3) and not source.one_size
    images = source.images(size)
    assert (images.shape, images.dtype) == ((7, size, size, 3), np.uint8)
    for image, name in zip(images, files_of(source), strict=True):
        expected = middle(folder / name, size).astype(np.int32)
        np.testing.assert_allclose(image, expected, rtol=0, atol=2)
    sizes = [example.input.size for example in source.read(np.arange(7))]
    assert sizes == [SIZES[int(name[0])] for name in files_of(source)]


def test_images_of_different_sizes_are_resized_whole_without_a_crop(directory, folder):
    source = load(of(folder, directory), "train")
    source.images(8, None, "bilinear")  # It is cached, which must not be taken for the next.
    whole = source.images(8, 0.0, "bilinear")
    for image, name in zip(whole, files_of(source), strict=True):
        with Image.open(folder / name) as picture:
            expected = np.asarray(picture.resize((8, 8), Image.Resampling.BILINEAR), np.int32)
        np.testing.assert_allclose(image, expected, rtol=0, atol=2)


KEYS = {
    "whole": WHOLE,
    "slice": slice(2, 9),
    "steps backwards": slice(9, 1, -3),
    "empty slice": slice(3, 3),
    "one": 4,
    "the last": -1,
    "places": np.array([5, 0, 5, -2]),
    "a list": [1, 2],
    "no places": np.array([], int),
    "a table of places": np.arange(12).reshape(3, 4)[::-1],
    "a mask": np.arange(15) % 4 == 1,
}


@pytest.fixture(scope="module")
def lazy(directory, folder):
    """Stand-ins that decode on demand, and the arrays they stand for."""
    grey = load(group(directory), "train[:9]+test[-6:]")
    colour = load(of(folder, directory), "train")
    twice = splits_lib.replace(colour, parts=colour.parts * 3)
    large = [twice.images(size)[:15] for size in (16, 72)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(splits_lib, "MAX_DECODED", 0)
        one_more = colour.parts[0][0], np.array([0])
        fifteen = splits_lib.replace(colour, parts=(*colour.parts * 2, one_more))
        actual = [grey.images(8), fifteen.images(16), fifteen.images(72)]
    return list(zip(actual, [grey.images(8), *large], strict=True))


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("which", range(3), ids=["one size", "many sizes", "threads"])
def test_lazily_decoded_arrays_equal_the_decoded_array(lazy, monkeypatch, which, key):
    actual, array = lazy[which]
    monkeypatch.setattr(arrays, "BLOCK", 4)
    assert isinstance(actual, LazyArray) and not isinstance(array, LazyArray)
    assert (actual.shape, len(actual)) == (array.shape, len(array)) and len(array) == 15
    part = actual[KEYS[key]]
    assert part.dtype == np.uint8
    np.testing.assert_array_equal(part, array[KEYS[key]])


def test_lazily_decoded_arrays_raise_index_error_out_of_range(lazy):
    with pytest.raises(IndexError):
        lazy[0][0][15]


def test_small_slice_of_a_large_set_is_decoded_without_a_cache(directory, digits, monkeypatch):
    forget(directory)
    monkeypatch.setattr(splits_lib, "MAX_DECODED", 20 * 64)
    images = load(group(directory), "train[5:25]").images(8)
    assert isinstance(images, np.ndarray)
    np.testing.assert_array_equal(images, digits["train"]["image"][5:25])
    assert not list(directory.rglob("decoded-*"))
    assert isinstance(load(group(directory), "train[5:26]").images(8), LazyArray)


def kept(directory):
    return {path.name: path.stat().st_mtime_ns for path in directory.rglob("decoded-*")}


def test_default_crop_and_its_number_share_a_decoded_array(directory, folder):
    forget(directory)
    colour = load(of(folder, directory), "train")
    images = colour.images(16, None, "bilinear")
    before = kept(directory)
    np.testing.assert_array_equal(colour.images(16, 0.875, "bilinear"), images)
    assert len(before) == 1 and kept(directory) == before
    assert not np.array_equal(colour.images(16, 1.0, "bilinear"), images)


def test_decoded_array_cache_is_written_once_and_reused(directory, digits, monkeypatch):
    forget(directory)
    first = load(group(directory), "train+test[:5]")
    first.images(8), first.labels
    before = kept(directory)
    names = {f"decoded-{split}-{what}.npy" for split in digits for what in ("8x8", "labels")}
    assert before.keys() == names
    monkeypatch.setattr(PreparedSplit, "read_records", lambda *_: pytest.fail("read again"))
    second = load(group(directory), "train+test[:5]")
    np.testing.assert_array_equal(second.images(8)[:TRAIN], digits["train"]["image"])
    np.testing.assert_array_equal(second.labels[:TRAIN], digits["train"]["label"])
    np.testing.assert_array_equal(second.images(8)[TRAIN:], digits["test"]["image"][:5])
    assert kept(directory) == before


@pytest.mark.parametrize("place", ["start", "middle", "end"])
@pytest.mark.parametrize("blocks", [1, 20])
def test_cached_array_is_renewed_if_records_of_equal_size_and_mtime_replace_the_old_ones(
    blocks, place, tmp_path, monkeypatch
):
    monkeypatch.setattr(arrays, "SAMPLES", 5)
    record = tmp_path / "x-train.array_record-00000-of-00001"
    content = np.zeros(blocks * files.BLOCK, np.uint8)
    cached = lambda value: arrays.load_or_compute(  # noqa: E731
        tmp_path / "decoded-train-labels.npy", (3,), np.int32, lambda: np.full(3, value, np.int32)
    )
    record.write_bytes(content.tobytes())
    status = record.stat()
    assert cached(1).tolist() == cached(2).tolist() == [1, 1, 1]
    content[{"start": 0, "middle": len(content) // 2, "end": -1}[place]] = 1
    record.write_bytes(content.tobytes())
    os.utime(record, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert cached(3).tolist() == [3, 3, 3]


SPOILT = {
    "cut": lambda data: data[:-10],
    "cut in the head": lambda data: data[:50],
    "empty": lambda data: b"",
    "no array": lambda data: b"decoded" * 99,
    "an archive": lambda data: b"PK\3\4" + data[4:],
    "of another set": lambda data: data.replace(str(TRAIN).encode(), b"1296", 1),
    "of another type": lambda data: data.replace(b"<i4", b"<f4").replace(b"|u1", b"|i1"),
    "a changed byte": lambda data: data[:140] + bytes([data[140] ^ 1]) + data[141:],
}


@pytest.mark.parametrize("kind", SPOILT)
@pytest.mark.parametrize("what", ["8x8", "labels"])
def test_damaged_cached_array_is_decoded_again(directory, digits, caplog, what, kind):
    source = load(group(directory), "train")
    source.images(8), source.labels
    path = next((directory / "digits").rglob(f"decoded-train-{what}.npy"))
    good = path.read_bytes()
    path.write_bytes(SPOILT[kind](good))
    assert path.read_bytes() != good
    again = load(group(directory), "train")
    caplog.clear()
    with caplog.at_level(logging.INFO, "jaxssl"):
        np.testing.assert_array_equal(again.images(8), digits["train"]["image"])
        np.testing.assert_array_equal(again.labels, digits["train"]["label"])
    # Decoding labels is not logged.
    assert ("decoding the images" in caplog.text) == (what == "8x8")
    assert path.read_bytes() == good


@pytest.mark.parametrize("reason", ["read-only", "full"])
def test_unwritable_cache_of_decoded_images_only_logs_a_warning(
    directory, digits, monkeypatch, caplog, reason
):
    forget(directory)
    path_type = type(epath.Path())
    path_open = path_type.open

    def refuse(*arguments, **_):
        raise OSError(30, "Read-only file system")

    def only_reading(path, mode="r", **keywords):
        return refuse() if "w" in mode else path_open(path, mode, **keywords)

    if reason == "full":
        monkeypatch.setattr(splits_lib.np, "save", refuse)
    else:
        monkeypatch.setattr(path_type, "open", only_reading)
        monkeypatch.setattr(path_type, "unlink", refuse)
    with caplog.at_level(logging.WARNING, "jaxssl"):
        images = load(group(directory), "train[:9]").images(8)
    np.testing.assert_array_equal(images, digits["train"]["image"][:9])
    lines = [record.getMessage() for record in caplog.records if record.name == "jaxssl"]
    assert len(lines) == 1 and "cannot cache " in lines[0]
    monkeypatch.undo()
    assert not kept(directory)


@pytest.mark.parametrize("first", [0, 1])
def test_combined_split_is_labelled_and_captioned_only_if_all_parts_are(first):
    records = [{"image": np.zeros((2, 2, 1), np.uint8), "label": label} for label in (3, -1)]
    parts = [
        (PreparedSplit(records[:1], captions=CaptionReader("captions", 8)), np.arange(1)),
        (PreparedSplit(records[1:]), np.arange(1)),
    ]
    both = Source("made", "all", (parts[first], parts[1 - first]), tuple("0123"), (2, 2, 1))
    assert not both.labelled and not both.captioned
    whole = splits_lib.replace(both, parts=(parts[0],) * 2)
    assert whole.labelled and whole.captioned


def test_slice_of_a_lazy_array_does_not_list_all_indices():
    array = LazyArray(lambda indices: (np.array([i % 256], np.uint8) for i in indices), (2**40, 1))
    np.testing.assert_array_equal(array[2**39 + 5 : 2**39 + 8], [[5], [6], [7]])


def test_examples_are_decoded_one_by_one(directory):
    split = load(group(directory), "train[:4]")
    ((part, members),) = split.parts
    decoded = []
    counted = replace(part, decode=lambda record: decoded.append(record) or part.decode(record))
    examples = replace(split, parts=((counted, members),)).decode(np.arange(4))
    next(examples)
    assert len(decoded) == 1


@pytest.mark.parametrize(("labels", "all_labelled"), [([0, 1], True), ([0, -1], False)])
def test_prepared_split_with_one_unlabelled_example_is_not_labelled_throughout(
    labels, all_labelled, tmp_path
):
    """Only the label of the first example tells cheaply whether a set has labels."""
    records = [{"label": label} for label in labels]
    part = PreparedSplit(records, path=tmp_path / "x", labels=np.array(labels, np.int32))
    split = Source("made", "train", ((part, np.arange(2)),), ("a", "b"), (1, 1, 1))
    assert split.labelled and split.all_labelled == all_labelled
    evaluated = Splits(split, split, split).labelled_part()
    assert evaluated.bank.labels.tolist() == [x for x in labels if x >= 0]
    assert evaluated.test.all_labelled and evaluated.train is split
