"""Images with captions: tables, folders and archives of them, sets of TFDS, and their batches."""

import csv
import hashlib
import io
import tarfile
from contextlib import closing
from dataclasses import replace

import jax
import numpy as np
import pytest
import tensorflow_datasets as tfds
from file_cases import files_of, finished, pack, picture, pictures, pixels_of, refused, unpack
from real_data import real_data
from tensorflow_datasets.core import shuffle

from jaxssl import distributed
from jaxssl.data.batches import make_batches
from jaxssl.data.decoders import tokens
from jaxssl.data.decoders.decoding import Crop, Crops
from jaxssl.data.formats import captions
from jaxssl.data.records import CaptionReader
from jaxssl.kinds.image_text import make_image_text_views

pytestmark = [pytest.mark.fast, pytest.mark.usefixtures("tokenizer")]

CONTEXT, BATCH, MOST = 12, 8, 5
CATS = {"1.png": ["a cat", "two cats"], "2.png": ["a dog"]}


# Reading the table of captions.


@pytest.mark.parametrize(
    "table",
    [
        "image,caption\n1.png,a cat\n1.png,two cats\n2.png,a dog\n",
        "image,caption\r\n1.png,a cat\r\n2.png,a dog\r\n1.png,two cats",
        "image\tcaption\n1.png\ta cat\n1.png\ttwo cats\n2.png\ta dog\n",
        "file,text\n1.png,a cat\n1.png, two cats \n\n2.png,a dog\n\n",
        "Comment , number, FileName\na cat,0,1.png\ntwo cats,1, 1.png\na dog,0,2.png\n",
        "id,image_name,caption\n7,1.png,a cat\n8,1.png,two cats\n9,2.png,a dog\n",
        "text,caption,file,image\nx,a cat,7,1.png\n,two cats,8,1.png\nx,a dog,,2.png\n",
    ],
)
def test_caption_columns_have_alternative_names(table):
    assert captions.parse_captions(table, "PATH") == CATS


def test_quoted_caption_fields_may_contain_separators_quotes_and_newlines():
    table = 'image,caption\n1.png,"a cat, black"\n2.png,"it says ""hi"""\n2.png,"two\nlines"\n'
    expected = {"1.png": ["a cat, black"], "2.png": ['it says "hi"', "two\nlines"]}
    assert captions.parse_captions(table, "PATH") == expected
    tabs = 'image\tcaption\n1.png\ta cat, black\n2.png\t"two\nlines"\n'
    expected = {"1.png": ["a cat, black"], "2.png": ["two\nlines"]}
    assert captions.parse_captions(tabs, "PATH") == expected


def test_quotes_that_open_and_close_in_different_rows_with_tabs_are_plain_text():
    texts = ['"Stop, he said', "a red bus", 'a tv of 32"', "a dog"]
    rows = "".join(f"{i}.png\t{text}\n" for i, text in enumerate(texts))
    expected = {f"{i}.png": [text] for i, text in enumerate(texts)}
    assert captions.parse_captions(f"image\tcaption\n{rows}", "PATH") == expected
    quoted = 'image\tcaption\n1.png\t"a cat\twith\na newline"\n'
    assert captions.parse_captions(quoted, "PATH") == {"1.png": ["a cat\twith\na newline"]}


@pytest.mark.parametrize("text", ['"a cat', '"One" cat', 'a "cat', '"'])
def test_quotes_that_are_not_those_of_csv_are_plain_text_in_a_table_with_tabs(text):
    table = f"image\tcaption\n1.png\t{text}\n2.png\ta dog\n"
    assert captions.parse_captions(table, "PATH") == {"1.png": [text], "2.png": ["a dog"]}


@pytest.mark.parametrize(
    ("table", "parts"),
    [
        ("", ["header names the columns 'image' and 'caption'; its first line is "]),
        ("1.png,a cat\n2.png,a dog\n", ["its first line is 1.png,a cat"]),
        ("image,label\n1.png,a cat\n", ["its first line is image,label"]),
        ("image|caption\n1.png|a cat\n", ["separated by commas or tabs", "is image|caption"]),
        ("image,caption,Caption\n1.png,a,b\n", ["several columns 'caption'", "rename or remove"]),
        ("image,caption,Image\n1.png,a,2.png\n", ["several columns 'image'", "all but one"]),
        ("name,caption\n1.png,a cat\n", ["its first line is name,caption"]),
        ("name,\x1b[31mcaption\n1.png,a cat\n", [r"its first line is 'name,\x1b[31mcaption'"]),
        ("image,caption\n", ["have a header but no rows"]),
        ("image,caption\n1.png,a cat\n2.png,\n", ["line 3 of", "lacks a picture or a caption"]),
        ("image,caption\n1.png,a cat\n2.png\n", ["line 3 of", "lacks a picture or a caption"]),
        ("image,caption\n1.png,a cat\n\n  ,a dog\n", ["line 4 of", "lacks a picture"]),
        ("image,caption\n1.png,a cat, black\n", ["line 2 of", "more columns", "quote captions"]),
        ('image,caption\n1.png,"a cat\n2.png,a dog\n', ["cannot be read", "end of data"]),
        ('image,caption\n1.png,"a cat' + 140_000 * "\n1.png", ["cannot be read", "limit"]),
    ],
)
def test_malformed_caption_table_is_rejected(table, parts):
    with refused("captions of PATH", *parts):
        captions.parse_captions(table, "PATH")


# Folders and archives with captions.

TEXTS = {
    "a/1.png": ["one", "two"],
    "a/10.png": [f"number {i}" for i in range(7)],
    "b/2.png": ["a dog, brown"],
}
CONTENT = pictures(*reversed(TEXTS), "b/9.png")  # the last picture has no caption


def table_of(texts, header=("image", "caption")):
    """A table of captions as its bytes."""
    out = io.StringIO()
    rows = [(name, text) for name, of in texts.items() for text in of]
    csv.writer(out).writerows([header, *rows])
    return out.getvalue().encode()


def mixed(texts=TEXTS):
    """The table with some pictures by their path and some by their bare name."""
    return table_of({name.removeprefix("b/"): of for name, of in texts.items()})


@pytest.fixture(scope="module")
def opened_as(load):
    """Opens a folder or an archive of pictures with captions."""

    def opened(path, split="train", **changes):
        return load(path, split, **({"name": "captions", "context": CONTEXT} | changes))

    return opened


@pytest.fixture(scope="module")
def small(opened_as, tmp_path_factory):
    """Three pictures with captions in a folder."""
    root = tmp_path_factory.mktemp("small")
    return opened_as(unpack(root, {**CONTENT, "captions.csv": mixed()}))


def by_hash(names):
    """The names in the order of a prepared set."""
    return sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())


def expected_texts(texts=TEXTS):
    """[n, 5, CONTEXT]: five captions of each picture; fewer are gone through again."""
    rows = [[texts[x][i % len(texts[x])] for i in range(MOST)] for x in by_hash(texts)]
    return np.stack([tokens.tokenize(row, CONTEXT) for row in rows])


def assert_is_small(found):
    assert files_of(found) == by_hash(TEXTS)
    np.testing.assert_array_equal(found.texts, expected_texts())
    [(part, indices)] = found.parts
    kept = [[x.decode() for x in record["captions"]] for record in part.read_records(indices)]
    assert kept == [TEXTS[name] for name in files_of(found)]
    for example, name in zip(found.read(np.arange(3)), files_of(found), strict=True):
        np.testing.assert_array_equal(np.asarray(example.input), pixels_of(name))


def test_captions_are_matched_to_images(small):
    assert_is_small(small)
    assert small.captioned and not small.labelled and small.labels.tolist() == [-1] * 3
    assert (small.texts.shape, small.texts.dtype) == ((3, MOST, CONTEXT), np.int32)
    indices = np.array([2, 0, 2])
    actual = np.stack([example.text for example in small.read(indices, text=True)])
    np.testing.assert_array_equal(actual, small.texts[indices])
    assert [example.text for example in small.read(indices)] == [None] * 3
    texts = small.texts[by_hash(TEXTS).index("a/1.png")]
    one, two = texts[:2]
    np.testing.assert_array_equal(texts, [one, two, one, two, one])


def test_slices_of_captioned_images_mix_the_beginnings_of_their_names(opened_as, tmp_path):
    names = [f"{what}_{i}.png" for what in ("cat", "dog") for i in range(10)]
    table = {"captions.csv": table_of({name: [f"a {name[:3]}"] for name in names})}
    unpack(tmp_path, {**pictures(*names), **table})
    parts = [files_of(opened_as(tmp_path, split)) for split in ("train[:50%]", "train[50%:]")]
    assert sum(parts, []) == by_hash(names)
    assert all({name[:3] for name in part} == {"cat", "dog"} for part in parts)


def test_captioned_set_prepared_in_the_order_of_earlier_rules_is_not_used(opened_as, tmp_path):
    unpack(tmp_path, {**CONTENT, "captions.csv": mixed()})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(captions, "RULES_VERSION", captions.RULES_VERSION - 1)
        patch.setattr(captions, "key_of", sorted(TEXTS).index)
        assert files_of(opened_as(tmp_path)) == sorted(TEXTS)
    assert_is_small(opened_as(tmp_path))


@pytest.mark.parametrize("suffix", [".tar.xz", ".zip"])
@pytest.mark.parametrize("table_first", [True, False])
def test_archive_of_captioned_images_equals_its_folder(opened_as, tmp_path, suffix, table_first):
    table = {"some/captions.txt": mixed()}
    content = {**table, **CONTENT} if table_first else {**CONTENT, **table}
    assert_is_small(opened_as(pack(tmp_path / f"pack{suffix}", content)))


def test_set_larger_than_memory_is_sorted_in_several_buckets(opened_as, tmp_path, monkeypatch):
    monkeypatch.setattr(shuffle, "MAX_MEM_BUFFER_SIZE", 0)
    read, numbers = shuffle._Bucket.read_values, []

    def counted(bucket):
        examples = list(read(bucket))
        numbers.append(len(examples))
        return examples

    monkeypatch.setattr(shuffle._Bucket, "read_values", counted)
    assert_is_small(opened_as(unpack(tmp_path, {**CONTENT, "captions.csv": mixed()})))
    assert max(numbers) == 1


def test_slice_of_a_split_has_matching_captions(opened_as, small):
    ((part, _),) = small.parts
    other = replace(small, parts=((part, np.array([2, 1])),))
    np.testing.assert_array_equal(other.texts, small.texts[[2, 1]])
    np.testing.assert_array_equal(small.take(np.array([1])).texts, small.texts[[1]])


def test_table_named_by_data_labels_replaces_the_caption_table_of_the_folder(opened_as, tmp_path):
    root, table = tmp_path / "pictures", tmp_path / "mine.csv"
    unpack(root, {**CONTENT, "captions.csv": b"image,caption\nb/9.png,the folder's own\n"})
    assert files_of(opened_as(root)) == ["b/9.png"]
    table.write_bytes(b"\xef\xbb\xbf" + mixed())
    assert_is_small(opened_as(root, labels=str(table)))
    table.write_bytes(table_of({"10.png": ["other"]}))
    assert files_of(opened_as(root, labels=str(table))) == ["a/10.png"]


def test_captioned_set_is_prepared_again_only_after_a_change(opened_as, tmp_path, monkeypatch):
    unpack(tmp_path, {**CONTENT, "captions.csv": mixed()})
    first = opened_as(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(captions, "parse_captions", lambda *_: pytest.fail("prepared again"))
        assert_is_small(opened_as(tmp_path))
    (tmp_path / "captions.csv").write_bytes(table_of({"b/9.png": ["now it has one"]}))
    assert files_of(opened_as(tmp_path)) == ["b/9.png"] and len(first) == 3


def test_unreadable_captioned_picture_stops_or_is_skipped(opened_as, prepared, tmp_path, caplog):
    texts = {**TEXTS, "a/11.png": ["torn"]}
    unpack(tmp_path, {**CONTENT, "a/11.png": b"no picture", "captions.csv": table_of(texts)})
    before = finished(prepared)
    message = "a/11.png: is not an image", "on_error=skip"
    with refused(*message):
        opened_as(tmp_path)
    assert finished(prepared) == before
    assert_is_small(opened_as(tmp_path, on_error="skip"))
    assert "left out, without a caption: b/9.png" in caplog.text
    assert "are left out: a/11.png: is not an image" in caplog.text
    with refused(*message):
        opened_as(tmp_path)


def test_captioned_set_without_any_readable_image_is_rejected(opened_as, tmp_path):
    unpack(tmp_path, {"1.png": b"", "captions.csv": b"image,caption\n1.png,a cat\n"})
    with refused("none of the 1 pictures of", "can be read (1.png: is empty); repair them"):
        opened_as(tmp_path, on_error="skip")


def test_missing_caption_table_or_column_is_reported(opened_as, tmp_path):
    with refused("needs data.path: a folder or archive of pictures"):
        opened_as("")
    unpack(tmp_path, CONTENT)
    with refused("has no table of captions (captions.csv, captions.txt", "with data.labels"):
        opened_as(tmp_path)
    with refused("none.csv cannot be read as a UTF-8 file: ", "No such file"):
        opened_as(tmp_path, labels=str(tmp_path / "none.csv"))
    (tmp_path / "latin.csv").write_bytes("image,caption\n1.png,été\n".encode("latin-1"))
    with refused("latin.csv cannot be read as a UTF-8 file: ", "can't decode"):
        opened_as(tmp_path, labels=str(tmp_path / "latin.csv"))
    (tmp_path / "captions.csv").write_bytes(b"")
    with refused("header names the columns 'image' and 'caption'"):
        opened_as(tmp_path)
    missing = {f"{name}.png": ["a text"] for name in "edcba"}
    (tmp_path / "captions.csv").write_bytes(table_of(TEXTS | missing))
    with refused("name pictures that", "does not hold: a.png, b.png, c.png and 2 more"):
        opened_as(tmp_path)
    (tmp_path / "captions.csv").write_bytes(table_of({"c/1.png": ["in another folder"]}))
    with refused("name pictures that", "does not hold: c/1.png"):
        opened_as(tmp_path)
    (tmp_path / "a" / "captions.csv").write_bytes(table_of(TEXTS))
    with refused("has several tables of captions (", "name one with data.labels"):
        opened_as(tmp_path)


def test_ambiguous_picture_name_in_captions_is_rejected(opened_as, tmp_path):
    unpack(tmp_path, {**pictures("a/1.png", "b/1.png"), "captions.csv": table_of(CATS)})
    (tmp_path / "captions.csv").write_bytes(table_of({"1.png": ["which?"]}))
    with refused("1.png", "a/1.png, b/1.png", "give its folder too"):
        opened_as(tmp_path)
    whole = {"a/1.png": ["this"], "b/1.png": ["that"]}
    (tmp_path / "captions.csv").write_bytes(table_of(whole))
    np.testing.assert_array_equal(opened_as(tmp_path).texts, expected_texts(whole))


def test_captions_under_the_path_and_under_the_name_of_an_image_are_merged(opened_as, tmp_path):
    names = {"a/1.png": ["by its path"], "1.png": ["by its name"]}
    unpack(tmp_path, {**pictures("a/1.png"), "captions.csv": table_of(names)})
    both = {"a/1.png": ["by its path", "by its name"]}
    np.testing.assert_array_equal(opened_as(tmp_path).texts, expected_texts(both))


def test_captions_of_other_folders_are_not_those_of_pictures_of_the_same_name(opened_as, tmp_path):
    folder, table = tmp_path / "set" / "train", tmp_path / "all.csv"
    unpack(folder, pictures("1.png", "2.png"))
    of_folder = {f"train/{i}.png": [f"text {i}"] for i in (1, 2)}
    table.write_bytes(table_of(of_folder))
    expected = expected_texts({"1.png": ["text 1"], "2.png": ["text 2"]})
    np.testing.assert_array_equal(opened_as(folder, labels=str(table)).texts, expected)
    table.write_bytes(table_of({**of_folder, "val/1.png": ["another picture"]}))
    with refused("name pictures of other folders than data.path=", "train: val/1.png"):
        opened_as(folder, labels=str(table))


@pytest.mark.parametrize("root", ["images/", "/somewhere/else/"])
def test_folders_that_all_rows_of_captions_share_are_omitted(opened_as, tmp_path, root):
    names = ["1.png", "sub/1.png", "sub/2.png"]
    unpack(tmp_path / "pics", pictures(*names))
    table = tmp_path / "all.csv"
    table.write_bytes(table_of({f"{root}{name}": [f"text of {name}"] for name in names}))
    expected = expected_texts({name: [f"text of {name}"] for name in names})
    np.testing.assert_array_equal(opened_as(tmp_path / "pics", labels=str(table)).texts, expected)


# Prepared records of captioned images.


@pytest.mark.parametrize(
    "found",
    [
        [b"a cat", b"a dog"],
        np.array([b"a cat", b"a dog"], object),
        ["a cat", "a dog"],
        {"id": np.arange(2), "text": np.array([b"a cat", b"a dog"], object)},
        b"a cat",
        "a cat",
        [b"a cat"],
    ],
)
def test_captions_of_a_tfds_text_list_or_dict_feature_are_repeated_to_a_fixed_number(found):
    one, two = tokens.tokenize(["a cat", "a dog"], CONTEXT)
    expected = [one, two, one, two, one] if len(found) == 2 else [one] * MOST
    np.testing.assert_array_equal(CaptionReader("captions", CONTEXT)({"captions": found}), expected)


def test_image_without_a_caption_is_rejected():
    with refused("an image of the data set has no caption; remove the image"):
        CaptionReader("captions", CONTEXT)({"captions": np.array([], object)})


def test_caption_that_is_not_utf_8_is_rejected():
    with refused("a caption of the data set is not UTF-8 (", "byte 0xe9"):
        CaptionReader("captions", CONTEXT)({"captions": [b"a cat", b"caf\xe9"]})


@pytest.fixture(scope="module")
def like_coco(prepared):
    """A set with the features of TFDS' coco_captions, prepared as they are."""

    class LikeCoco(tfds.core.GeneratorBasedBuilder):
        """Pictures with captions that have an id."""

        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            of = tfds.features
            box = {"bbox": of.BBoxFeature(), "label": of.ClassLabel(names="ab")}
            features = {
                "captions": of.Sequence({"id": np.int64, "text": of.Text()}),
                "image": of.Image(encoding_format="jpeg"),
                "image/filename": of.Text(),
                "image/id": np.int64,
                "objects": of.Sequence(box),
            }
            return tfds.core.DatasetInfo(builder=self, features=of.FeaturesDict(features))

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples(4), "val": self._generate_examples(2)}

        def _generate_examples(self, number):
            for i in range(number):
                texts = [{"id": 10 * i + j, "text": caption(i, j)} for j in range(5 + i % 2)]
                example = {"image": picture(str(i), (6, 8 + i, 3), "jpeg"), "captions": texts}
                example |= {"image/filename": f"{i}.jpg", "image/id": i, "objects": []}
                yield i, example

    tfds.builder("like_coco", data_dir=prepared).download_and_prepare(file_format="array_record")


def caption(i, j):
    return f"caption {j} of picture {i}"


def test_tfds_set_yields_images_with_their_captions(like_coco, opened_as):
    for split, number in (("train", 4), ("val", 2)):
        actual = opened_as("", split, name="like_coco")
        assert len(actual) == number and actual.captioned and not actual.labelled
        [(part, indices)] = actual.parts
        ids = [int(record["image/id"]) for record in part.read_records(indices)]
        texts = [tokens.tokenize([caption(i, j) for j in range(MOST)], CONTEXT) for i in ids]
        np.testing.assert_array_equal(actual.texts, texts)
        assert [example.input.width for example in actual.read(indices)] == [8 + i for i in ids]


# Batches of captioned images.

ONE_VIEW = Crops((Crop(4, (0.2, 1.0), (3 / 4, 4 / 3)),), (), 4)


def first_batch(opened, examples="image_text"):
    mesh = distributed.make_mesh(jax.devices()[:1])
    settings = {"seed": 3, "mesh": mesh, "crops": ONE_VIEW, "examples": examples}
    with closing(make_batches(opened, BATCH, **settings)) as batches:
        return jax.device_get(batches.next())


def test_captioned_images_of_different_sizes_are_cropped_on_the_host(opened_as, tmp_path):
    names = [f"{i}.png" for i in range(BATCH)]
    content = {name: picture(name, (8, 9 + i, 3)) for i, name in enumerate(names)}
    content["captions.csv"] = table_of({name: [f"a {name}", "one more"] for name in names})
    opened = opened_as(unpack(tmp_path, content))
    assert not opened.one_size
    batch, plain = first_batch(opened), first_batch(opened, examples="image")
    assert batch["input"]["image"]["views"].shape == (BATCH, 1, 4, 4, 3)
    np.testing.assert_array_equal(batch["input"]["text"], opened.texts[batch["index"]])
    np.testing.assert_array_equal(batch["input"]["image"]["views"], plain["input"]["views"])

    augment = jax.jit(make_image_text_views([lambda key, image: image]))
    views = augment(jax.random.key(0), batch["input"], batch["index"])
    expected = batch["input"]["image"]["views"][:, 0].astype(np.float32) / 127.5 - 1
    np.testing.assert_allclose(views["views"], expected[None], atol=1e-6)
    assert views["texts"].shape == (1, BATCH, CONTEXT)
    for text, own in zip(views["texts"][0], batch["input"]["text"], strict=True):
        assert (np.asarray(text) == own).all(axis=1).any()


@pytest.mark.parametrize(
    "stored", [[0, 0, 0, 0, 0], [0, 1, 0, 1, 0], [0, 1, 2, 0, 1], [0, 1, 2, 3, 0], [0, 0, 1, 2, 3]]
)
def test_each_caption_of_an_image_is_drawn_equally_often(stored):
    """An image with fewer than five captions repeats them. One may also be there twice itself."""
    number = 4000
    texts = np.broadcast_to(np.array(stored, np.int32)[:, None], (number, 5, 3))
    batch = {"image": np.zeros((number, 1, 1, 1), np.uint8), "text": texts}
    augment = jax.jit(make_image_text_views([lambda key, image: image]))
    drawn = augment(jax.random.key(0), batch, np.arange(number, dtype=np.int32))["texts"][0, :, 0]
    twice = stored == [0, 0, 1, 2, 3]
    shares = [0.4, 0.2, 0.2, 0.2] if twice else [1 / len(set(stored))] * len(set(stored))
    np.testing.assert_allclose(np.bincount(drawn) / number, shares, atol=0.03)


def test_image_text_recipe_refuses_images_without_captions(load, labelled):
    plain = load(labelled)
    assert not plain.captioned and plain.read(np.arange(1))[0].text is None
    with refused(f"augment.name needs captions, but the images of {labelled.name!r} have none"):
        first_batch(plain)


@pytest.mark.long
def test_flickr8k_slice_has_1000_images_with_their_five_captions(opened_as):
    path = real_data("flickr8k_1k.tar.xz")
    opened = opened_as(path)
    with tarfile.open(path) as archive:
        file = archive.extractfile("captions.csv")
        table = file.read().decode() if file else ""
    rows = list(csv.reader(io.StringIO(table)))[1:]
    assert len(opened) == 1000 and not opened.one_size and len(rows) == 5000
    names = [name.removeprefix("images/") for name in files_of(opened)]
    assert names == [x.removeprefix("images/") for x in by_hash(files_of(opened))]
    assert sorted(names) == sorted({name for name, _ in rows})
    [(part, indices)] = opened.parts
    actual = [[*map(bytes.decode, r["captions"])] for r in part.read_records(indices[::50])]
    assert actual == [[t.strip() for n, t in rows if n == name] for name in names[::50]]
    assert opened.texts.shape == (1000, MOST, CONTEXT)
