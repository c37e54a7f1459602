"""Untrusted input, damaged in ten thousand ways: a right result or one clear line, never else.

JAXSSL_FUZZ=10000 takes that many inputs in all, and prints how they went.
"""

import io
import json
import tarfile
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
from data_cases import data_config
from file_cases import LABELLED, TARS, encoded, pack, unpack
from fuzz_cases import REFUSED, damaged, everything, fuzzed, outcome, refilled, texts
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from jaxssl.data import source
from jaxssl.data.decoders import decoding, files
from jaxssl.data.formats import folder, user_files
from jaxssl.data.opening import convert
from jaxssl.data.records import PictureReader, PreparedSplit
from jaxssl.data.splits import Source, read_classes

# ---- Damaged image files.


def _make_pictures():
    rng = np.random.default_rng(0)
    colours = Image.fromarray(rng.integers(0, 256, (9, 7, 3), np.uint8))
    deep = Image.fromarray(rng.integers(0, 2**16, (9, 7), np.uint16))
    exif = Image.Exif()
    exif[274] = 6
    modes = {mode: colours.convert(mode) for mode in ("L", "P", "RGBA", "LA", "1", "CMYK")}
    cases = [(colours, x, {}) for x in ("png", "jpeg", "bmp", "gif", "tiff", "webp", "ppm")]
    cases += [(colours, x, {"exif": exif}) for x in ("png", "jpeg", "webp")]
    cases += [(modes[mode], "png", {}) for mode in ("L", "P", "RGBA", "LA", "1")]
    cases += [(modes["P"], "png", {"transparency": bytes(range(200))})]
    cases += [(modes["CMYK"], x, {}) for x in ("jpeg", "tiff")]
    cases += [(deep, x, {}) for x in ("png", "tiff", "ppm")]
    cases += [(colours, "tiff", {"compression": x}) for x in ("tiff_lzw", "jpeg", "tiff_deflate")]
    cases += [(colours, "jpeg", {"progressive": True}), (colours, "webp", {"lossless": True})]
    return [encoded(picture, kind, **options) for picture, kind, options in cases]


PICTURES = _make_pictures()


def _decoded(data, channels):
    part = PreparedSplit([{"image": data, "label": 0}], PictureReader("image", channels, True))
    whole = Source("x", "train", ((part, np.arange(1)),), ("a",), (None, None, channels))
    [example] = whole.read(np.arange(1))
    return decoding.pixels(example.input)


good = st.sampled_from(PICTURES).flatmap(damaged)
pictures_ = good | good | good | st.binary(max_size=200)


@fuzzed(2500)
@given(data=pictures_, channels=st.sampled_from((1, 3)))
def test_damaged_images_are_decoded_or_raise_a_one_line_error(below, data, channels):
    actual = outcome("pictures", lambda: _decoded(data, channels), below)
    size = outcome("sizes of pictures", lambda: user_files.image_size(data), below)
    assert (actual is REFUSED) == isinstance(size, str)
    if actual is not REFUSED:
        assert actual.dtype == np.uint8 and actual.shape == (*size, channels)
        with warnings.catch_warnings(action="ignore"):
            declared = Image.open(io.BytesIO(data)).size
        assert sorted(declared) == sorted(size)
    else:
        assert len(size.splitlines()) == 1


# ---- Damaged and hostile archives and folders.

CONTENT = {"a/1.png": b"one" * 40, "a/deep/2.bin": bytes(range(256)), "ä b.txt": b"", "c.png": b"c"}
KINDS = (".zip", *TARS)
# Formats with checksums of their content.
CHECKED = (".zip", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    root = tmp_path_factory.mktemp("archives")
    return {kind: pack(root / f"a{kind}", CONTENT).read_bytes() for kind in KINDS}


def _all(path):
    """Of each file its bytes, or why it cannot be read."""
    actual = {}
    for name, read in files.read_files(path):
        try:
            actual[name] = read()
        except OSError as error:
            assert len(str(error).splitlines()) == 1
            actual[name] = None
    return actual


@fuzzed(1000)
@given(data=st.data(), kind=st.sampled_from(KINDS))
def test_damaged_archives_are_read_or_raise_a_one_line_error(below, archives, data, kind):
    path = below / f"a{kind}"
    path.write_bytes(data.draw(damaged(archives[kind])))
    actual = outcome("archives", lambda: _all(path), below / "nowhere")
    if actual is not REFUSED and kind in CHECKED:
        for name, content in actual.items():
            assert content in (None, CONTENT.get(name))


parts = st.sampled_from(
    ("a", "..", ".", "", "C:", "b.png", "/etc", "\\", "x" * 300, "\n", "\ud800")
)
entries = st.tuples(
    st.lists(parts, max_size=4).map("/".join) | st.text(max_size=8),
    st.sampled_from((*b"0123456789gxLKSDJ", 0, 255)),
    st.binary(max_size=20),
    st.sampled_from((None, 0, 5, 600, 2**62)),
)


def _tar(listed):
    out = io.BytesIO()
    for name, kind, content, size in listed:
        entry = tarfile.TarInfo(name)
        entry.type, entry.linkname, entry.size = bytes([kind]), "../../x", len(content)
        if size is not None:
            entry.size = size
        out.write(entry.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogatepass"))
        out.write(content.ljust(512, b"\0"))
    return out.getvalue() + bytes(1024)


def _zip(listed):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, kind, content, _ in listed:
            entry = zipfile.ZipInfo("x")
            entry.filename = name.encode("utf-8", "replace").decode()
            entry.external_attr = kind % 16 << 28  # A file type of 10 is a symbolic link.
            archive.writestr(entry, content)
    return out.getvalue()


@fuzzed(600)
@given(listed=st.lists(entries, max_size=4), kind=st.sampled_from((".zip", ".tar")))
def test_hostile_archive_entries_are_read_or_raise_a_one_line_error(below, listed, kind):
    path = below / f"b{kind}"
    try:
        path.write_bytes((_zip if kind == ".zip" else _tar)(listed))
    except (ValueError, UserWarning):
        return  # Python refuses to write an archive of these entries
    before = everything(below)
    actual = outcome("entries of archives", lambda: _all(path), below / "nowhere")
    assert everything(below) == before
    if actual is not REFUSED:
        for name in actual:
            assert ".." not in name.split("/") and not name.startswith("/")
        layout = outcome("layouts", lambda: folder.arrange(actual, "x"), below / "nowhere")
        assert layout is REFUSED or sum(map(len, layout.splits.values())) <= len(actual)


# ---- Damaged metadata of prepared data sets.

CSV = "file,label\n" + "".join(f"{name},{name[0]}\n" for name in LABELLED)
named = st.sampled_from(("train", "test", "val", "a", "..", "\n", "\x1b[2J", "x" * 300))
layouts = st.lists(st.lists(named, max_size=4))


@fuzzed(300)
@given(data=damaged(CSV.encode()) | st.binary(max_size=99), listed=layouts)
def test_damaged_label_tables_and_class_lists_are_read_or_refused(below, data, listed):
    path = below / "labels.csv"
    path.write_bytes(data)
    actual = outcome("tables of labels", lambda: folder.read_labels(str(path)), below)
    assert actual is REFUSED or all(k and v for k, v in actual.items())
    classes = outcome("lists of classes", lambda: read_classes(path), below)
    assert classes is REFUSED or len(set(classes)) == len(classes) > 0
    listed = ["/".join(item) + ".png" for item in listed]
    of = None if actual is REFUSED else actual
    outcome("layouts", lambda: folder.arrange([*LABELLED, *listed], "x", labels=of), below)


@pytest.fixture(scope="module")
def prepared_set(below):
    """A prepared folder: its settings, its files, what replaces them, and its images."""
    path, where = unpack(below / "pictures", LABELLED), below / "prepared"
    settings = data_config(name="folder", path=str(path), dir=str(where))
    images = source.load(settings, "train").images(8)
    [root] = where.glob("folder/*/1.0.0")
    for kept in root.glob("decoded-*"):
        kept.unlink()
    content = {p.name: p.read_bytes() for p in root.iterdir()}
    bad = {
        name: texts(json.loads(good)) if name.endswith(".json") else damaged(good)
        for name, good in content.items()
    }
    return settings, root, content, bad, images


@fuzzed(600)
@given(data=st.data())
def test_damaged_prepared_sets_are_read_or_raise_a_one_line_error(below, prepared_set, data):
    settings, root, content, bad, images = prepared_set
    name = data.draw(st.sampled_from(sorted(content)))
    refilled(root, content, **{name: data.draw(bad[name])})

    def read():
        actual = source.load(settings, "train")
        return actual.images(8), actual.labels

    actual = outcome(f"prepared: {name.partition('.')[0]}", read, below)
    if actual is not REFUSED and "array_record" in name:
        np.testing.assert_array_equal(actual[0], images)


SET = {"name": "mine", "fileFormat": "tfrecord", "splits": [{"name": "train"}]}
SET["splits"][0] |= {"shardLengths": ["1"], "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}"}


@fuzzed(300)
@given(info=texts(SET), records=st.just(b"") | damaged(b"\x03" + bytes(11) + b"abc" + bytes(4)))
def test_converting_damaged_sets_succeeds_or_raises_a_one_line_error(below, info, records):
    """A hostile template of file names leads nowhere else."""
    inside = below / "converted"
    inside.mkdir(exist_ok=True)
    good = b"\x03" + bytes(11) + b"abc" + bytes(4)
    refilled(inside, {"dataset_info.json": info, "mine-train.tfrecord": records or good})
    before = everything(below)
    actual = outcome("conversion", lambda: convert.convert(inside), inside)
    changed_ = {k for k, v in everything(below).items() if before.get(k) != v}
    assert all(Path(path).is_relative_to(inside) for path in changed_)
    assert actual is REFUSED or 0 <= actual < 5
