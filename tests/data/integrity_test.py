"""What stands beside the records of a prepared set is checked before it is believed."""

import json
import sys

import numpy as np
import pytest
import tensorflow_datasets as tfds
from array_record.python.array_record_module import ArrayRecordReader
from data_cases import data_config
from file_cases import LABELLED, refused, unpack

from jaxssl.data import integrity, source
from jaxssl.data.splits import PreparedSplit
from jaxssl.errors import UserError

pytestmark = pytest.mark.fast


@pytest.fixture
def labelled_set(tmp_path):
    """A folder that was prepared: opens it, and where it lies."""
    path = unpack(tmp_path / "pictures", LABELLED)
    settings = data_config(name="folder", path=str(path), dir=str(tmp_path / "prepared"))
    source.load(settings, "train")
    [root] = tmp_path.glob("prepared/folder/*/1.0.0")
    return lambda: source.load(settings, "train"), root


def rewrite(path, change):
    tree = json.loads(path.read_text())
    change(tree)
    path.write_text(json.dumps(tree))


def tamper_with_class(tree):
    tree["featuresDict"]["features"]["file"].update(pythonClassName="hostile.Text")


def tamper_with_other_spelling(tree):
    feature = tree["featuresDict"]["features"]["file"]
    del feature["pythonClassName"]
    feature["python_class_name"] = "hostile.Text"


def tamper_with_old_layout(tree):
    tree.clear()
    tree.update(type="hostile.Text", content={})


def tamper_with_nested_json(tree):
    name = "tensorflow_datasets.core.features.features_dict.FeaturesDict"
    inner = json.dumps({"x": {"type": "hostile.Text", "content": {}}})
    tree.clear()
    tree.update(pythonClassName=name, jsonFeature={"json": inner})


@pytest.mark.parametrize(
    "tamper",
    [
        tamper_with_class,
        tamper_with_other_spelling,
        tamper_with_old_layout,
        tamper_with_nested_json,
    ],
)
def test_tampered_metadata_cannot_import_classes_outside_of_tfds(
    labelled_set, tmp_path, monkeypatch, tamper
):
    load, root = labelled_set
    (tmp_path / "hostile.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    rewrite(root / "features.json", tamper)
    with refused(str(root), "'hostile.Text' is not a feature of TFDS"):
        load()
    assert "hostile" not in sys.modules and not (tmp_path / "mark").exists()


INFO, FEATURES = "dataset_info.json", "features.json"


def label(tree):
    return tree["featuresDict"]["features"]["label"]["classLabel"]


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        (INFO, lambda x: x.pop("splits"), "KeyError: 'splits'"),
        (INFO, lambda x: x["splits"].append(x["splits"][0]), "a split twice"),
        (INFO, lambda x: x["splits"][0].update(shardLengths=["9"]), "records, not 9"),
        (INFO, lambda x: x["splits"][0].update(shardLengths=["-1"]), "impossible"),
        (
            FEATURES,
            lambda x: label(x).update(numClasses="2"),
            "label.labels.txt has 3 class names, but features.json says 2)",
        ),
        (FEATURES, lambda x: label(x).update(numClasses=str(10**9)), "more than 1000000 classes"),
        ("metadata.json", lambda x: x.update(shape=[8, 0, 3]), "images have shape [8, 0, 3]"),
    ],
)
def test_damaged_metadata_of_a_prepared_set_is_rejected(labelled_set, file, change, message):
    load, root = labelled_set
    rewrite(root / file, change)
    with refused(str(root), "is damaged", message):
        load()


def test_more_shards_than_the_limit_are_rejected(labelled_set, monkeypatch):
    load, root = labelled_set
    monkeypatch.setattr(integrity, "MAX_SHARDS", 1)
    lengths = [str(len(load())), "0"]  # all records are in one shard
    rewrite(root / INFO, lambda x: x["splits"][0].update(shardLengths=lengths))
    with refused(str(root), "is damaged", "impossible shard lengths"):
        load()


def test_class_label_without_classes_is_accepted(tmp_path):
    label = tfds.features.ClassLabel(names=[])  # TFDS writes no numClasses for it.
    tfds.features.FeaturesDict({"label": label}).save_config(tmp_path)
    assert (tmp_path / "label.labels.txt").exists()
    integrity.check_files(tmp_path)


@pytest.mark.parametrize("more", [-1, 1])
def test_split_with_another_number_of_records_than_its_metadata_is_rejected(labelled_set, more):
    _, root = labelled_set
    [path] = root.glob("*-train.array_record-*")
    number = ArrayRecordReader(str(path)).num_records()
    (root / path.name.replace("-train.", "-pre-train.")).write_bytes(path.read_bytes())
    integrity.check_num_records(root, "train", number)
    incomplete = path.with_name(f"incomplete.0f.{path.name}")  # of a killed conversion
    incomplete.write_bytes(path.read_bytes())
    integrity.check_num_records(root, "train", number)
    with refused(str(root), f"the split train has {number} records, not {number + more}"):
        integrity.check_num_records(root, "train", number + more)


def test_damaged_records_raise_a_one_line_error(labelled_set):
    load, root = labelled_set
    [path] = root.glob("*train.array_record*")
    data = bytearray(path.read_bytes())
    data[data.index(b"ant/")] ^= 1
    path.write_bytes(data)
    with refused("prepare or copy the set again"):
        load().images(8)


@pytest.mark.parametrize("record", [{"label": np.int64(3)}, {"label": "x"}, {"label": None}, {}])
def test_label_that_is_missing_or_out_of_range_is_rejected(record):
    part = source.PreparedSplit([record], num_classes=3)
    with refused(f"has the label {record.get('label')}, expected a label below 3"):
        part.label_of(part.read_records([0])[0])


def test_set_with_a_feature_called_like_a_number_of_classes_is_opened(tmp_path):
    name = "tensorflow_datasets.core.features.features_dict.FeaturesDict"
    features = {"num_classes": {"pythonClassName": name}, "numClasses": {"pythonClassName": name}}
    tree = {"pythonClassName": name, "featuresDict": {"features": features}}
    (tmp_path / FEATURES).write_text(json.dumps(tree))
    integrity.check_files(tmp_path)


@pytest.mark.parametrize(
    ("fault", "status"), [(OSError(5, "I/O"), 1), (FileNotFoundError(2, "x"), 2)]
)
def test_records_on_a_failing_disk_may_be_read_again_and_damaged_ones_not(fault, status):
    class Records:
        def __getitem__(self, index):
            raise fault

    with pytest.raises(UserError, match="records of a data set cannot be read") as caught:
        PreparedSplit(Records()).read_records([0])
    assert caught.value.status == status
