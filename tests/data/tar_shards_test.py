"""Pictures in tar shards, read by index."""

import errno
import gzip
import os
import pickle
import tarfile

import numpy as np
import pytest
from data_cases import data_config
from file_cases import encoded, pack, refused

from jaxssl.data.opening import tar_shards
from jaxssl.data.source import load_splits, prepare

pytestmark = pytest.mark.fast
PICTURES = 12  # number of pictures in a shard


def write_shard(path, first, label=lambda index: str(index % 3), side=8, cls="cls", **options):
    """Write a shard as WebDataset does: the files of an example follow each other."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {}
    for index in range(first, first + PICTURES):
        image = encoded(np.full((side, side, 3), index, np.uint8))
        files = {"png": image, cls: label(index).encode("latin-1"), "json": b"{}"}
        content |= {f"./{index:06d}.{suffix}": data for suffix, data in files.items()}
    pack(path, content, **options)


def settings(folder, **keys):
    paths = {"path": str(folder), "dir": str(folder.parent / "sets")}
    return data_config(name="tar_shards", **paths, **keys)


def values(split):
    """Return the first byte of each picture, which is its number."""
    return [int(np.asarray(x.input)[0, 0, 0]) for x in split.read(np.arange(len(split)))]


@pytest.mark.parametrize("cache", ["auto", "none"])
@pytest.mark.parametrize("names", [("train/0.tar", "val/0.tar"), ("a-train-0.tar", "a-test-0.tar")])
def test_tar_shards_give_the_splits_pictures_and_labels_they_hold(tmp_path, names, cache):
    for number, name in enumerate(names):
        write_shard(tmp_path / "shards" / name, number * PICTURES)
    splits = load_splits(settings(tmp_path / "shards", cache=cache, test_split="test[:6]"))
    assert values(splits.train) == list(range(PICTURES))
    assert values(splits.test) == list(range(PICTURES, PICTURES + 6))
    assert splits.train.labels.tolist() == [i % 3 for i in range(PICTURES)]
    assert splits.train.class_names == ("0", "1", "2")
    assert splits.train.streamed == (cache == "none") and splits.train.shape == (8, 8, 3)
    if cache == "none":  # Reader processes get a pickled split.
        assert values(pickle.loads(pickle.dumps(splits.test)))[0] == PICTURES


def test_joined_split_of_tar_shards_with_pictures_of_two_sizes_has_no_one_size(tmp_path):
    for side, name in ((8, "train.tar"), (6, "test.tar")):
        write_shard(tmp_path / "shards" / name, 0, side=side)
    splits = load_splits(settings(tmp_path / "shards", train_split="train+test"))
    assert splits.train.shape == (None, None, 3) and splits.test.shape == (6, 6, 3)
    assert splits.train.images(4).shape == (2 * PICTURES, 4, 4, 3)


def test_minus_one_in_tar_shards_stands_for_no_label(tmp_path):
    write_shard(tmp_path / "shards" / "0.tar", 0, lambda index: "-1" if index % 2 else "1")
    train = load_splits(settings(tmp_path / "shards", cache="none")).train
    assert set(train.labels.tolist()) == {1, -1} and train.num_classes == 2


def test_names_of_labels_in_tar_shards_may_be_in_capitals(tmp_path):
    write_shard(tmp_path / "shards" / "0.tar", 0, cls="CLS")
    splits = load_splits(settings(tmp_path / "shards", cache="none"))
    assert splits.train.num_classes == 3 and splits.labelled


def test_linked_folders_of_tar_shards_are_read_and_hidden_ones_are_not(tmp_path):
    write_shard(tmp_path / "elsewhere" / "1.tar", PICTURES)
    write_shard(tmp_path / "shards" / "0.tar", 0)
    write_shard(tmp_path / "shards" / ".old" / "2.tar", 2 * PICTURES)
    (tmp_path / "shards" / "linked").symlink_to(tmp_path / "elsewhere")
    splits = load_splits(settings(tmp_path / "shards", cache="none"))
    assert sorted(values(splits.train) + values(splits.test)) == list(range(2 * PICTURES))


def test_hidden_files_and_folders_in_tar_shards_are_not_read(tmp_path):
    image = {at: encoded(np.full((8, 8, 3), at, np.uint8)) for at in range(4)}
    hidden = {"./.0.png": image[1], ".thumbnails/0.png": image[1], "__MACOSX/0.png": image[1]}
    shown = {f"a/{at}.png": image[at] for at in range(4)}
    (tmp_path / "shards").mkdir()
    pack(tmp_path / "shards" / "0.tar", {**shown, "a/.b/9.png": image[1], **hidden})
    splits = load_splits(settings(tmp_path / "shards", cache="none"))
    assert values(splits.train) == [0, 1, 2, 3]


NAMES = [("cat", "dog"), ("3000000000", "4000000000"), ("caf\\xe8", "caf\\xe9")]


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT])
def test_labels_in_tar_shards_may_be_names_large_numbers_or_missing(tmp_path, format, names):
    shard = tmp_path / "shards" / "0.tar"
    # The last two names are those of texts in Latin-1.
    texts = [name.replace("\\xe8", "è").replace("\\xe9", "é") for name in (*names, "")]
    write_shard(shard, 0, lambda index: texts[index % 3], format=format)
    splits = load_splits(settings(tmp_path / "shards", cache="none"))
    assert splits.train.class_names == names
    assert set(splits.train.labels.tolist()) == {0, 1, -1}
    assert splits.test.labelled and len(splits.train) + len(splits.test) == PICTURES


def test_tar_shards_with_an_unlabelled_picture_are_evaluated_on_the_labelled_ones(tmp_path):
    for number, name in enumerate(("train.tar", "test.tar")):
        write_shard(
            tmp_path / "shards" / name,
            number * PICTURES,
            lambda index: str(index % 3) * (index % 12 > 0),
        )
    splits = load_splits(settings(tmp_path / "shards", train_split="train+test"))
    assert splits.labelled and not splits.train.labelled
    assert [len(split) for split in splits] == [2 * PICTURES, 2 * PICTURES - 2, PICTURES - 1]
    bank = load_splits(settings(tmp_path / "shards", bank_split="test[:4]")).bank
    assert values(bank) == [PICTURES + 1, PICTURES + 2, PICTURES + 3]


def test_index_of_tar_shards_is_stored_and_rebuilt_after_a_change(tmp_path, monkeypatch):
    scans = []
    scan = tar_shards._scan
    monkeypatch.setattr(tar_shards, "_scan", lambda *a: scans.append(a) or scan(*a))
    shard, data = tmp_path / "shards" / "0.tar", settings(tmp_path / "shards")
    write_shard(shard, 0)
    for _ in range(2):
        load_splits(data)
    assert len(scans) == 1
    (index,) = (tmp_path / "sets" / "tar_shards").iterdir()
    whole = index.read_bytes()
    entry = whole.index(b"PK\x01\x02")  # the first entry of the zip file's directory
    flags = whole[: entry + 8] + b"\x01" + whole[entry + 9 :]  # It counts as encrypted.
    method = whole[: entry + 10] + b"\x63" + whole[entry + 11 :]  # of compression: unknown
    for number, damaged in enumerate((whole[:-99], flags, method), 2):
        index.write_bytes(damaged)
        assert len(load_splits(data).train) == len(load_splits(data).train)
        assert len(scans) == number
    write_shard(shard.with_name("1.tar"), PICTURES)
    splits = load_splits(data)
    assert len(splits.train) + len(splits.test) == 2 * PICTURES and len(scans) == 6


def test_tar_shard_is_not_closed_while_a_thread_reads_it(tmp_path, monkeypatch):
    for number, name in enumerate(("train.tar", "test.tar")):
        write_shard(tmp_path / "shards" / name, number * PICTURES)
    train = load_splits(settings(tmp_path / "shards", cache="none")).train
    read = os.pread

    def evict_and_read(*arguments):
        tar_shards._open.cache_clear()  # as if other threads had opened many more shards
        return read(*arguments)

    monkeypatch.setattr(os, "pread", evict_and_read)
    assert values(train) == list(range(PICTURES))


def cut(path):
    path.write_bytes(path.read_bytes()[: -tarfile.RECORDSIZE - 2000])


def write_sparse(path):
    entry = tarfile.TarInfo("a.png")
    entry.type = tarfile.GNUTYPE_SPARSE
    path.write_bytes(entry.tobuf(tarfile.GNU_FORMAT))


def write_negative_size(path):
    entry = tarfile.TarInfo("a.png")
    entry.size = -512
    path.write_bytes(path.read_bytes()[:512] + bytes(512) + entry.tobuf(tarfile.GNU_FORMAT))


def write_link(path):
    with tarfile.open(path, "a") as archive:
        entry = tarfile.TarInfo("more/9.png")
        entry.type, entry.linkname = tarfile.LNKTYPE, "./000001.png"
        archive.addfile(entry)


BAD = [
    (cut, "0.tar cannot be read: "),
    (write_negative_size, "0.tar cannot be read: a header of -512 bytes"),
    (write_sparse, "0.tar cannot be read: an entry is a sparse file"),
    (lambda shard: shard.write_bytes(b"no tar" * 999), "0.tar cannot be read"),
    (lambda shard: shard.write_bytes(gzip.compress(shard.read_bytes())), "0.tar cannot be read"),
    (lambda shard: shard.rename(shard.with_suffix(".tar.gz")), "holds no .tar files"),
    (lambda shard: write_shard(shard.with_name("train-1.tar"), 0), "some of them no split"),
    (lambda shard: shard.rename(shard.with_name("val.tar")), "name val; expected 'train'"),
    (
        lambda shard: write_shard(shard.parent / "train-val" / "val" / "1.tar", 0),
        "names train and val; rename it",
    ),
    (lambda shard: tarfile.open(shard, "w").close(), "hold no pictures"),
    (write_link, "0.tar: more/9.png is a link; pack files with tar's options --dereference"),
    (
        lambda shard: pack(shard, {"0.jpg": b"", "0.coarse.cls": b"a", "0.fine.cls": b"b"}),
        "0.tar: 0 has several labels; names end at the first dot",
    ),
    (
        lambda shard: pack(shard, {"0.left.png": b"", "0.right.png": b""}),
        "0.tar: the sample 0 has several pictures",
    ),
    (
        lambda shard: write_shard(shard, 0, lambda index: index * "long" * 300),
        "0.tar: the label ./000001.cls has 1200 bytes, and 1024 are allowed",
    ),
]


@pytest.mark.parametrize(("damage", "message"), BAD)
def test_unusable_tar_shards_are_refused_in_one_line(tmp_path, damage, message):
    shard = tmp_path / "shards" / "0.tar"
    write_shard(shard, 0)
    damage(shard)
    with refused(message):
        load_splits(settings(shard.parent))
    assert not (tmp_path / "sets").exists()


def test_error_names_a_tar_shard_that_was_truncated_after_opening(tmp_path):
    shard = tmp_path / "shards" / "0.tar"
    write_shard(shard, 0)
    train = load_splits(settings(shard.parent, cache="none")).train
    shard.write_bytes(shard.read_bytes()[:600])
    with refused("0.tar ends before picture"):
        train.read(np.arange(len(train)))
    with refused("must be the folder"):
        load_splits(settings(shard))
    with refused("nothing to prepare"):
        prepare(settings(shard.parent))


@pytest.mark.parametrize("cache", ["auto", "none"])
def test_error_names_a_tar_shard_that_may_not_be_read(tmp_path, monkeypatch, cache):
    write_shard(tmp_path / "shards" / "0.tar", 0)
    data, opened = settings(tmp_path / "shards", cache=cache), os.open
    load_splits(data)  # The index is stored.

    def refuse(path, *arguments, **options):
        if str(path).endswith(".tar"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return opened(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refuse)
    with refused("0.tar cannot be read: [Errno 13] Permission denied; copy"):
        load_splits(data)
