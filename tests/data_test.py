"""The bundled digits, and batches whose order is a matter of the seed alone."""

import json
import sys

import jax
import numpy as np
import pytest
from sklearn.datasets import load_digits

from jaxssl import parallel
from jaxssl.data import batches as batches_lib
from jaxssl.data import digits
from jaxssl.data.batches import make_batches
from jaxssl.data.source import Source, arrays, load
from jaxssl.errors import UserError

CACHES = ("device", "none")
EXAMPLES, BATCH, PER_EPOCH = 51, 8, 6  # 51 = 6 * 8 + 3
SPLITS = {"train": slice(None, 1297), "test": slice(-500, None)}
each_cache = pytest.mark.parametrize("cache", CACHES)
each_split = pytest.mark.parametrize("split", SPLITS)


@pytest.fixture(scope="module")
def train(data_dir):
    return load("digits", "train", data_dir)


@pytest.fixture(scope="module")
def some(train):
    """Some training digits, decoded once."""
    records = [train.records[i] for i in range(EXAMPLES)]
    return Source(train.name, train.split, records, train.num_classes, train.class_names)


@pytest.fixture(scope="module")
def make(some):
    """Makes batches on the first devices."""

    def batches(cache="device", *, batch_size=BATCH, seed=0, devices=1):
        mesh = parallel.make_mesh(jax.devices()[:devices])
        return make_batches(some, batch_size, seed=seed, cache=cache, mesh=mesh)

    return batches


def take(batches, count):
    return [jax.device_get(batches.next()) for _ in range(count)]


def indices(batches, count):
    return np.stack([batch["index"] for batch in take(batches, count)])


def assert_same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys() == {"image", "label", "index"}
        for name in one:
            np.testing.assert_array_equal(one[name], other[name], name)


@each_split
def test_digits_are_those_of_scikit_learn_in_the_documented_split(data_dir, split):
    source = load("digits", split, data_dir)
    ids = np.array([source.records[i]["id"] for i in range(len(source))])
    expected = np.random.default_rng(0).permutation(1797)[SPLITS[split]]
    np.testing.assert_array_equal(np.sort(ids), np.sort(expected))
    whole, theirs = arrays(source), load_digits()
    pixels = np.round(theirs.images[ids, :, :, None] * 255 / 16)
    np.testing.assert_array_equal(whole["image"], pixels)
    np.testing.assert_array_equal(whole["label"], theirs.target[ids])
    assert (whole["image"].dtype, whole["label"].dtype) == (np.uint8, np.int32)
    assert (source.num_classes, source.class_names) == (10, tuple("0123456789"))


def test_train_and_test_digits_are_disjoint_and_complete(data_dir):
    ids = []
    for split in SPLITS:
        records = load("digits", split, data_dir).records
        ids += [int(records[i]["id"]) for i in range(len(records))]
    assert sorted(ids) == list(range(1797))


def test_preparing_and_reading_digits_leave_tensorflow_alone(train):
    assert train.records[0]["image"].shape == (8, 8, 1)
    assert "tensorflow" not in sys.modules


def test_a_prepared_set_is_not_prepared_again(data_dir, monkeypatch):
    before = {path: path.stat().st_mtime_ns for path in data_dir.rglob("*")}
    assert before
    monkeypatch.setattr(
        digits.Builder, "download_and_prepare", lambda self: pytest.fail("prepared again")
    )
    assert len(load("digits", "train", data_dir)) == 1297
    assert {path: path.stat().st_mtime_ns for path in data_dir.rglob("*")} == before


@pytest.mark.parametrize(
    ("name", "split", "hint"),
    [
        ("digit", "train", "'digit' is unknown; did you mean 'digits'?"),
        ("batches", "train", "'batches' is unknown; valid: digits"),
        ("digits", "tset", "no split 'tset'; did you mean 'test'? valid: test, train"),
    ],
)
def test_an_unknown_set_or_split_is_answered_with_the_valid_ones(data_dir, name, split, hint):
    with pytest.raises(UserError) as error:
        load(name, split, data_dir)
    assert hint in str(error.value)


def test_a_data_directory_that_cannot_be_written_is_named(tmp_path):
    file = tmp_path / "file"
    file.write_text("not a directory")
    with pytest.raises(
        UserError, match=r"cannot prepare 'digits' under .*below.*--config.data.dir"
    ):
        load("digits", "train", file / "below")


def test_images_of_several_sizes_make_no_array():
    records = [{"image": np.zeros((n, 4, 1), np.uint8), "label": 0} for n in (3, 4)]
    with pytest.raises(UserError, match=r"differ in size: \(3, 4, 1\), \(4, 4, 1\)"):
        arrays(Source("mixed", "train", records, 1, ("a",)))


@each_cache
def test_a_batch_holds_the_examples_that_its_index_names(make, some, cache):
    batches, whole = make(cache), arrays(some)
    assert (batches.per_epoch, batches.num_examples) == (PER_EPOCH, EXAMPLES)
    for batch in take(batches, 3):
        assert batch["image"].shape == (BATCH, 8, 8, 1)
        dtypes = {name: values.dtype for name, values in batch.items()}
        assert dtypes == {"image": np.uint8, "label": np.int32, "index": np.int32}
        np.testing.assert_array_equal(batch["image"], whole["image"][batch["index"]])
        np.testing.assert_array_equal(batch["label"], whole["label"][batch["index"]])


def test_prepared_digits_are_streamed_and_decoded(train):
    mesh = parallel.make_mesh(jax.devices()[:1])
    batch = make_batches(train, 4, seed=0, cache="none", mesh=mesh).next()
    for i, image, label in zip(batch["index"], batch["image"], batch["label"], strict=True):
        record = train.records[int(i)]
        np.testing.assert_array_equal(image, record["image"])
        assert label == record["label"]


def test_both_caches_give_the_same_batches_in_the_same_order(make):
    count = 2 * PER_EPOCH + 3
    assert_same(take(make("device"), count), take(make("none"), count))


def test_an_epoch_sees_no_example_twice_and_the_next_has_another_order(make):
    seen = indices(make(), 3 * PER_EPOCH).reshape(3, -1)
    for epoch in seen:
        assert len(set(epoch.tolist())) == PER_EPOCH * BATCH
    assert not np.array_equal(seen[0], seen[1])
    assert not np.array_equal(seen[1], seen[2])
    # The 3 examples that are left out are others each time.
    assert set(seen[0].tolist()) != set(seen[1].tolist())


@each_cache
def test_the_order_is_a_matter_of_the_seed(make, cache):
    first = indices(make(cache, seed=0), 2)
    np.testing.assert_array_equal(indices(make(cache, seed=0), 2), first)
    assert not np.array_equal(indices(make(cache, seed=1), 2), first)


@pytest.mark.parametrize("resumed", CACHES)
@pytest.mark.parametrize("saved", CACHES)
def test_a_position_continues_exactly_with_either_cache(make, saved, resumed):
    batches = make(saved)
    take(batches, PER_EPOCH + 4)  # in the middle of the second epoch
    state = json.loads(json.dumps(batches.get_state()))
    expected = take(batches, 4)  # into the third
    again = make(resumed)
    take(again, 1)
    again.set_state(state)
    assert_same(take(again, 4), expected)


@each_cache
def test_eight_devices_get_the_global_batches_of_one(make, cache):
    one, eight = make(cache), make(cache, devices=8)
    assert_same(take(eight, PER_EPOCH + 1), take(one, PER_EPOCH + 1))
    image = eight.next()["image"]
    assert {shard.data.shape[0] for shard in image.addressable_shards} == {BATCH // 8}


@pytest.mark.parametrize(("limit", "path"), [(EXAMPLES * 64, "on the device"), (1, "streamed")])
def test_auto_caches_what_fits(make, monkeypatch, limit, path):
    monkeypatch.setattr(batches_lib, "AUTO_CACHE_BYTES", limit)
    batches = make("auto")
    assert batches.cache.startswith(path)
    assert_same(take(batches, 1), take(make("device"), 1))


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"batch_size": 52}, ["batch_size=52", "between 1 and the 51"]),
        ({"batch_size": 0}, ["batch_size=0", "between 1 and the 51"]),
        ({"batch_size": 46, "devices": 8}, ["batch_size=46", "by the 8 devices", "try 40"]),
        ({"batch_size": 3, "devices": 8}, ["batch_size=3", "by the 8 devices", "try 8"]),
        ({"cache": "devise"}, ["data.cache='devise'", "did you mean 'device'"]),
    ],
)
def test_batches_that_cannot_be_made_are_refused_with_the_numbers(make, settings, parts):
    with pytest.raises(UserError) as error:
        make(**settings)
    for part in parts:
        assert part in str(error.value)
