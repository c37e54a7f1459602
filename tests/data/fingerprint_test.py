"""The fingerprint of a split changes with its examples, their order and their classes."""

import os
import shutil
from dataclasses import replace

import numpy as np
import pytest
from data_cases import data_config
from file_cases import encoded, refused
from graph_cases import random_graphs
from PIL import ExifTags, Image

from jaxssl.data import fingerprint as fingerprint_lib
from jaxssl.data import source as source_lib
from jaxssl.data.fingerprint import fingerprint
from jaxssl.data.records import PictureReader, PreparedSplit
from jaxssl.data.splits import Source

PICTURES = np.random.default_rng(0).integers(0, 256, (10, 4, 4, 3), np.uint8)


def turned(orientation):
    """Photographs whose EXIF data say how to turn them."""
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    return [encoded(image, exif=exif) for image in PICTURES]


def quantized(palette):
    """Palette pictures, which have equal indices and the given colours."""
    out = []
    for index in range(10):
        picture = Image.new("P", (4, 4), index)
        picture.putpalette(palette.tobytes())
        out.append(encoded(picture))
    return out


def source(images=PICTURES, labels=None, indices=None, classes=("a", "b"), **settings):
    images, indices = list(images), np.arange(10) if indices is None else indices
    labels = [i % 2 for i in range(10)] if labels is None else labels
    records = [{"image": x, "label": y} for x, y in zip(images, labels, strict=True)]
    part = PreparedSplit(records, **settings)
    return Source("made", "train", ((part, indices),), classes, (4, 4, 3))


def test_splits_with_equal_decoded_pixels_have_equal_fingerprints():
    assert fingerprint(source()) == fingerprint(source(PICTURES.copy()))
    for level in (1, 9):  # PNG files are compared by their pixels
        packed = source([encoded(x, compress_level=level) for x in PICTURES])
        assert fingerprint(packed) == fingerprint(source())


def test_fingerprint_includes_palette_and_exif_orientation_of_images():
    palette = np.arange(768, dtype=np.uint8).reshape(256, 3)
    both = [
        [source(quantized(colours)) for colours in (palette, 255 - palette)],
        [source(turned(orientation), decode=PictureReader(upright=True)) for orientation in (1, 3)],
    ]
    for first, second in both:
        pixels = [[np.asarray(x.input) for x in s.read(np.arange(10))] for s in (first, second)]
        assert np.not_equal(*pixels).any()
        assert fingerprint(first) == fingerprint(source(pixels[0])) != fingerprint(second)


def test_fingerprint_changes_with_pixels_labels_indices_or_class_names():
    one_pixel = PICTURES.copy()
    one_pixel[7, 3, 3, 2] ^= 1
    changed = [
        source(),
        source(one_pixel),
        source([b"\xff" + x.tobytes() for x in PICTURES]),
        source(labels=[1, 0] * 5),
        source(indices=np.arange(10)[::-1].copy()),
        source(indices=np.arange(9)),
        source(classes=("b", "a")),
        replace(source(), relabel=np.array([1, 0])),
    ]
    assert len(set(map(fingerprint, changed))) == len(changed)


def test_unchanged_files_are_hashed_once_for_each_split(data_dir, tmp_path, monkeypatch):
    shutil.copytree(data_dir / "digits", tmp_path / "digits")
    config = data_config(dir=str(tmp_path))
    train, test = (source_lib.load(config, f"{split}[:50]") for split in ("train", "test"))
    first, other = fingerprint(train), fingerprint(test)
    assert first != other
    hashed, compute = [], fingerprint_lib._hash
    monkeypatch.setattr(
        fingerprint_lib, "_hash", lambda *args: hashed.append(args) or compute(*args)
    )
    assert fingerprint(train) == first and not hashed
    for path in tmp_path.rglob("*.array_record*"):
        os.utime(path, ns=(1, 1))
    assert fingerprint(train) == first and len(hashed) == 1


def test_fingerprint_of_a_split_with_a_damaged_picture_is_refused():
    with refused("cannot be decoded", "chunk b'IDAT'", "copy the set again"):
        fingerprint(source([encoded(x)[:-20] + bytes(20) for x in PICTURES]))


def test_fingerprint_of_text_in_object_arrays_depends_on_the_text_alone():
    """TFDS returns such arrays for nested sequences of text."""

    def captioned(texts):
        captions = np.array([text.encode() for text in texts], object)
        records = [{"image": PICTURES[0], "label": 0, "captions": captions}]
        return Source("made", "train", ((PreparedSplit(records), np.arange(1)),), (), (4, 4, 3))

    first, same, other = (captioned([f"a {x}", "a dog"]) for x in ("cat", "cat", "cow"))
    assert fingerprint(first) == fingerprint(same) != fingerprint(other)


def test_graph_data_sets_have_a_fingerprint():
    graphs = random_graphs(10)
    records = [{"graph": graph, "label": 0} for graph in graphs]
    several = [
        Source("made", "train", ((PreparedSplit(order), np.arange(10)),), (), (3,), kind="graph")
        for order in (records, records[::-1], list(records))
    ]
    first, reverse, again = map(fingerprint, several)
    assert first == again != reverse


@pytest.mark.parametrize(("most", "expected"), [(4, 4), (100, 10)])
def test_fingerprint_reads_at_most_the_given_number_of_records(monkeypatch, most, expected):
    monkeypatch.setattr(fingerprint_lib, "MOST", most)
    read, used = PreparedSplit.read_records, []

    def count(part, indices):
        used.extend(indices)
        return read(part, indices)

    monkeypatch.setattr(PreparedSplit, "read_records", count)
    fingerprint(source())
    # One record is read once more, for its size.
    assert len(used) == expected + 1 and {0, 9} <= set(used)
