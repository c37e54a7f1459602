"""Sets prepared as TFRecord become readable by index, with the same records in the same order.

TensorFlow is not installed here: the TFRecord files are written byte by byte as its documentation
describes them, https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details.
"""

import errno
import json
import os
import re
import shlex
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds
from array_record.python.array_record_data_source import ArrayRecordDataSource
from data_cases import data_config
from etils import epath

from jaxssl.data.opening import convert
from jaxssl.data.source import load
from jaxssl.errors import UserError

ROOT = Path(__file__).parents[2]
SHARDS = {"train": (7, 5, 8), "test": (6,)}
USUAL = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
FIRST = "digits-train.tfrecord-00000-of-00003"


def crc32c(data):
    """The checksum of Castagnoli's polynomial, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def tfrecord(records):
    """Of each record its length, the length's checksum, its bytes, their checksum."""
    lengths = [struct.pack("<Q", len(record)) for record in records]
    return b"".join(
        length + masked(length) + record + masked(record)
        for length, record in zip(lengths, records, strict=True)
    )


def group(directory):
    return data_config(name="digits", dir=str(directory))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """The digits as ArrayRecord: their folder, and the first records of each split."""
    path = tmp_path_factory.mktemp("digits")
    load(group(path), "train")
    folder = path / "digits" / "1.0.0"
    records = {}
    for split, shards in SHARDS.items():
        source = ArrayRecordDataSource(str(folder / f"digits-{split}.array_record-00000-of-00001"))
        records[split] = list(source.__getitems__(range(sum(shards))))
    return folder, records


@pytest.fixture(scope="module")
def shards(prepared):
    """The bytes of the TFRecord files of each split."""
    out = {}
    for split, lengths in SHARDS.items():
        ends = np.cumsum(lengths)
        out[split] = [tfrecord(prepared[1][split][e - n : e]) for e, n in zip(ends, lengths)]  # noqa: B905
    return out


@pytest.fixture
def old(prepared, shards, tmp_path):
    """Writes the set as TFRecord and returns its folder."""

    def write(template=USUAL, **changes):
        folder = tmp_path / "my data" / "digits" / "1.0.0"
        folder.mkdir(parents=True)
        (folder / "features.json").write_text((prepared[0] / "features.json").read_text())
        info = json.loads((prepared[0] / "dataset_info.json").read_text())
        info |= {"fileFormat": "tfrecord"} | changes
        info = {key: value for key, value in info.items() if value is not None}
        for split in info["splits"]:
            lengths = SHARDS[split["name"]]
            split |= {"shardLengths": [str(n) for n in lengths], "filepathTemplate": template}
            for i, data in enumerate(shards[split["name"]]):
                path = folder / named(template or USUAL, split["name"], i, len(lengths), "tfrecord")
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(data)
        (folder / "dataset_info.json").write_text(json.dumps(info))
        return folder

    return write


def named(template, split, shard, shards, file_format):
    """A file's name by the template; written with other means than in the code under test."""
    index, number = str(shard).zfill(5), str(shards).zfill(5)
    facts = {"DATASET": "digits", "SPLIT": split, "FILEFORMAT": file_format, "SHARD_INDEX": index}
    return template.format(**facts, NUM_SHARDS=number, SHARD_X_OF_Y=f"{index}-of-{number}")


def everything(folder):
    """The contents and times of all files."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def assert_converted(folder, prepared):
    ours, theirs = map(tfds.builder_from_directory, (folder, prepared[0]))
    for split, lengths in SHARDS.items():
        actual = ours.as_data_source(split, file_format="array_record")
        expected = theirs.as_data_source(split, file_format="array_record")
        assert len(actual) == sum(lengths)
        for i in range(len(actual)):
            for key in ("id", "label", "image"):
                np.testing.assert_array_equal(actual[i][key], expected[i][key], key)


def test_masked_crc32c_equals_the_published_value():
    assert crc32c(b"123456789") == 0xE3069283


TEMPLATES = [USUAL, None, "{SPLIT}/data_{FILEFORMAT}-{SHARD_INDEX}-of-{NUM_SHARDS}"]
TEMPLATES += ["{DATASET}-{SPLIT}-{SHARD_X_OF_Y}.{FILEFORMAT}"]
METADATA = [*((template, {}) for template in TEMPLATES), (None, {"fileFormat": None})]


@pytest.mark.parametrize(("template", "changes"), METADATA)
def test_tfrecord_conversion_keeps_records_and_order(old, prepared, template, changes):
    folder = old(template, **changes)
    before = everything(folder)
    assert convert.convert(folder) == 26
    assert_converted(folder, prepared)
    after = everything(folder)
    names = {path.name for path in after} - {path.name for path in before}
    assert len(names) == 4 and all("array_record" in name for name in names)
    assert {path.name for path in before if after[path] != before[path]} == {"dataset_info.json"}
    assert "tensorflow" not in sys.modules


@pytest.mark.parametrize("num_shards", [99_999, 100_000])
def test_shard_numbers_have_as_many_digits_as_in_tfds(num_shards):
    split = {"name": "train", "filepathTemplate": USUAL}
    template = tfds.core.ShardedFileTemplate(
        data_dir=epath.Path(), template=USUAL, dataset_name="digits", split="train",
        filetype_suffix="tfrecord",
    )  # fmt: skip
    for shard in (0, 12_345, num_shards - 1):
        path = template.sharded_filepath(shard_index=shard, num_shards=num_shards)
        file = convert._file_name(split, "digits", shard, num_shards, "tfrecord")
        assert file == path.name


def test_conversion_keeps_citation_and_alternative_formats_in_dataset_info(old):
    folder = old(alternativeFileFormats=["riegeli"], citation="Ours.")
    convert.convert(folder)
    info = json.loads((folder / "dataset_info.json").read_text())
    assert info["fileFormat"] == "tfrecord"
    assert info["alternativeFileFormats"] == ["riegeli", "array_record"]
    assert info["citation"] == "Ours."


def test_error_for_a_tfrecord_set_names_the_convert_command(old, prepared):
    folder = old()
    with pytest.raises(UserError, match="'digits' is prepared as tfrecord.*read by index") as error:
        load(group(folder.parents[1]), "train")
    assert "\n" not in str(error.value)
    line = re.search(r"jaxssl data convert .+$", str(error.value))[0]
    words = shlex.split(line)
    assert words[-1] == str(folder)
    done = subprocess.run([sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{folder}: 26 records converted\n"
    train = load(group(folder.parents[1]), "train")
    original = load(group(prepared[0].parents[1]), "train")
    np.testing.assert_array_equal(train.images(8), original.images(8)[:20])
    np.testing.assert_array_equal(train.labels, original.labels[:20])


def test_second_conversion_changes_nothing(old, run_command):
    folder = old()
    assert run_command("data convert", folder)[0] == 0
    before = everything(folder)
    status, out, err = run_command("data convert", folder)
    assert (status, out, err) == (0, f"{folder}: already converted\n", "")
    assert everything(folder) == before


INFOS = {"no json": "{", "no object": "[]", "no splits": '{"name": "digits"}'}
INFOS |= {"no text": "\0\udcff", "no name": '{"splits": [{"name": "a", "shardLengths": ["1"]}]}'}


@pytest.mark.parametrize("kind", [*INFOS, "no folder", "an empty folder", "the set's folder"])
def test_conversion_of_a_folder_without_a_prepared_set_is_rejected(tmp_path, run_command, kind):
    folder = tmp_path / "none"
    if kind != "no folder":
        folder.mkdir()
    if kind == "the set's folder":
        (folder / "1.0.0").mkdir()
    if kind in INFOS:
        (folder / "dataset_info.json").write_bytes(INFOS[kind].encode(errors="surrogateescape"))
    status, out, err = run_command("data convert", folder)
    assert (status, out) == (2, "")
    assert err.startswith(f"error: {folder} does not hold a prepared set (cannot read ")
    assert "; name the folder of a version, such as ~/" in err and err.count("\n") == 1


def change(at, to):
    return lambda data: data[:at] + to + data[at + len(to) :]


def replace(old, new):
    return lambda data: data.replace(old.encode(), new.encode())


INFO = "dataset_info.json"
CUT = f"{FIRST} is damaged or cut short"
ABOVE, ABSOLUTE = "../{SPLIT}.{FILEFORMAT}", "/{SPLIT}.{FILEFORMAT}"
NO_WORD = "such as train-00000.data, do not contain the word tfrecord"
# A file, how its bytes change, or None if it is missing, and a part of the error.
REFUSED = {
    "cut in the last checksum": (FIRST, lambda d: d[:-1], CUT),
    "cut in a record": (FIRST, lambda d: d[:-40], CUT),
    "cut in a length": (FIRST, lambda d: d + b"\1\0\0", CUT),
    "a record too few": (
        FIRST,
        lambda d: d[: 16 + struct.unpack("<Q", d[:8])[0]],
        "has 1 records, ",
    ),
    "a record too many": (FIRST, lambda d: d + tfrecord([b"more"]), f"{FIRST} has 8 records, "),
    "empty": (FIRST, lambda d: b"", f"{FIRST} has 0 records, "),
    "a huge length": (FIRST, change(7, b"\xff"), CUT),
    "a length too large": (FIRST, change(1, b"\xff"), CUT),
    "a length too small": (FIRST, change(0, b"\1"), CUT),
    "a missing file": (FIRST, None, f"{FIRST}: "),
    "another format": (
        INFO,
        replace('"tfrecord"', '"parquet"'),
        "as parquet; only tfrecord can be",
    ),
    "no format": (INFO, replace(USUAL, "{SPLIT}-{SHARD_INDEX}.data"), NO_WORD),
    "above": (INFO, replace(USUAL, ABOVE), "the file name '../train.tfrecord'"),
    "absolute": (INFO, replace(USUAL, ABSOLUTE), "the file name '/train.tfrecord'"),
    "an unknown placeholder": (INFO, replace("SPLIT", "PART"), "PART"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_conversion_states_the_reason_and_changes_nothing(old, run_command, case):
    (name, change, words), folder = REFUSED[case], old()
    if change is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(change((folder / name).read_bytes()))
    before = everything(folder)
    status, out, err = run_command("data convert", folder)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: ") and str(folder) in err and words in err
    assert everything(folder) == before


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_conversion_succeeds_after_an_interrupted_conversion(old, prepared, monkeypatch, error):
    folder, read = old(), convert.grain.experimental.TFRecordIterDataset

    def stopped(path):
        for i, record in enumerate(read(path)):
            if "00001-of-00003" in path and i == 2:
                raise error
            yield record

    before = everything(folder)
    monkeypatch.setattr(convert.grain.experimental, "TFRecordIterDataset", stopped)
    with pytest.raises(error):
        convert.convert(folder)
    whole = FIRST.replace("tfrecord", "array_record")
    assert [path.name for path in set(everything(folder)) - set(before)] in ([], [whole])
    assert not list(folder.glob("incomplete*"))
    info = folder / "dataset_info.json"
    assert everything(folder)[info] == before[info]
    monkeypatch.setattr(convert.grain.experimental, "TFRecordIterDataset", read)
    assert convert.convert(folder) == 26
    assert_converted(folder, prepared)


def full(path, text):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("name", [FIRST.replace("tfrecord", "array_record"), "dataset_info.json"])
def test_conversion_error_names_a_file_that_cannot_be_written(old, monkeypatch, run_command, name):
    folder = old()
    if name == "dataset_info.json":
        monkeypatch.setattr(type(epath.Path()), "write_text", full)
    else:
        (folder / name).mkdir()
    before = (folder / "dataset_info.json").read_bytes()
    status, _, err = run_command("data convert", folder)
    assert (status, err.count("\n")) == (2, 1) and err.startswith("error: cannot ")
    assert not list(folder.glob("incomplete*"))
    assert (folder / "dataset_info.json").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ((), 2, "jaxssl data convert DIR"),
        (("-h",), 0, "jaxssl data convert DIR"),
        (("a", "b"), 2, "unexpected argument 'b'"),
    ],
)
def test_convert_command_shows_its_usage(run_command, arguments, status, words):
    actual, out, err = run_command("data convert", *arguments)
    assert actual == status and words in out + err
