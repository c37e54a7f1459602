"""The bundled digits, and batches whose order is a matter of the seed alone."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from data_cases import data_config
from file_cases import refused
from jax.sharding import PartitionSpec as P
from PIL import Image
from sklearn.datasets import load_digits

from jaxssl import distributed
from jaxssl.data import batches as batches_lib
from jaxssl.data import splits as splits_lib
from jaxssl.data.batches import make_batches, make_plan
from jaxssl.data.decoders import decoding, files
from jaxssl.data.decoders.arrays import LazyArray
from jaxssl.data.decoders.decoding import Crops
from jaxssl.data.opening.in_memory import load_splits
from jaxssl.data.records import PictureReader, PreparedSplit
from jaxssl.data.source import load
from jaxssl.data.splits import Source
from jaxssl.data.toy import digits
from jaxssl.errors import UserError

CACHES = ("device", "none")
EXAMPLES, BATCH, PER_EPOCH = 51, 8, 6  # 51 = 6 * 8 + 3
SPLITS = {"train": slice(None, 1297), "test": slice(-500, None)}
NO_CROPS = Crops((), (), 8)
TWO_VIEWS = Crops((decoding.Crop(4, (0.2, 1.0), (3 / 4, 4 / 3)),) * 2, (), 4)
MULTI_CROP = TWO_VIEWS._replace(crops=(decoding.Crop(2, (0.1, 0.3), (1.0, 1.0)),) * 3)
each_cache = pytest.mark.parametrize("cache", CACHES)
each_split = pytest.mark.parametrize("split", SPLITS)


def digits_in(data_dir, split):
    return load(data_config(dir=str(data_dir)), split)


def of_records(records, shape=(8, 8, 1)):
    part = PreparedSplit(records, PictureReader(channels=shape[2]))
    return Source("made", "train", ((part, np.arange(len(records))),), tuple("0123456789"), shape)


FIVE = of_records([{"image": np.zeros((8, 8, 1), np.uint8), "label": 0}] * 5)


@pytest.fixture(scope="module")
def train(data_dir):
    return digits_in(data_dir, "train")


@pytest.fixture(scope="module")
def some(train):
    """Some training digits, in memory."""
    images, labels = train.images(8)[:EXAMPLES], train.labels
    return of_records([{"image": x, "label": y} for x, y in zip(images, labels, strict=False)])


@pytest.fixture(scope="module")
def photographs():
    """Smooth random pictures of many sizes."""
    rng = np.random.default_rng(0)
    records = []
    for i in range(EXAMPLES):
        coarse = Image.fromarray(rng.integers(0, 256, (3, 3, 3), np.uint8))
        size = tuple(int(side) for side in rng.integers(9, 20, 2))
        records.append({"image": np.asarray(coarse.resize(size)), "label": i % 10})
    return of_records(records, (None, None, 3))


@pytest.fixture(scope="module")
def make(some):
    """Makes batches on the first devices."""

    def batches(cache="device", *, source=some, batch_size=BATCH, devices=1, **settings):
        mesh = distributed.make_mesh(jax.devices()[:devices])
        settings = {"seed": 0, "crops": NO_CROPS} | settings
        return make_batches(source, batch_size, cache=cache, mesh=mesh, **settings)

    return batches


def take(batches, count):
    return [jax.device_get(batches.next()) for _ in range(count)]


def indices(batches, count):
    return np.stack([batch["index"] for batch in take(batches, count)])


def assert_same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys() == {"input", "label", "index"}
        jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.parametrize("devices", [1, 8])
def test_take_returns_data_on_the_device_and_the_indices_of_the_next_batches(make, devices):
    batches, expected = make(devices=devices), indices(make(), 5)
    batches.next()
    data, index = batches.take(2, 3)
    np.testing.assert_array_equal(index, expected[[1, 2, 2]])
    assert index.sharding.spec == P(None, distributed.DATA_AXIS)
    assert_same([jax.device_get({k: x[index[1]] for k, x in data.items()})], take(make(), 3)[2:])
    assert batches.get_state()["next_index"] == 3
    np.testing.assert_array_equal(indices(batches, 2), expected[3:])
    assert not make("none").plan.cached


def ids_in(data_dir, split):
    ((part, _),) = digits_in(data_dir, split).parts
    return np.array([int(record["id"]) for record in part.read_records(range(len(part.records)))])


@each_split
def test_digits_data_set_equals_that_of_scikit_learn(data_dir, split):
    source, ids, theirs = digits_in(data_dir, split), ids_in(data_dir, split), load_digits()
    expected = np.random.default_rng(0).permutation(1797)[SPLITS[split]]
    np.testing.assert_array_equal(np.sort(ids), np.sort(expected))
    images = source.images(8)
    np.testing.assert_array_equal(images, np.round(theirs.images[ids, :, :, None] * 255 / 16))
    np.testing.assert_array_equal(source.labels, theirs.target[ids])
    assert (images.dtype, source.labels.dtype) == (np.uint8, np.int32)
    assert (source.num_classes, source.class_names) == (10, tuple("0123456789"))


def test_prepared_digits_are_not_prepared_again(data_dir, monkeypatch):
    digits_in(data_dir, "train").images(8)
    before = {path: path.stat().st_mtime_ns for path in data_dir.rglob("*")}
    assert before
    monkeypatch.setattr(digits.Builder, "download_and_prepare", None)
    assert len(digits_in(data_dir, "train").images(8)) == 1297
    assert {path: path.stat().st_mtime_ns for path in data_dir.rglob("*")} == before


@each_cache
def test_rows_of_a_batch_are_the_examples_with_the_indices_of_the_batch(make, some, cache):
    batches, images = make(cache), some.images(8)
    for batch in take(batches, 3):
        assert batch["input"].shape == (BATCH, 8, 8, 1)
        dtypes = {name: values.dtype for name, values in batch.items()}
        assert dtypes == {"input": np.uint8, "label": np.int32, "index": np.int32}
        np.testing.assert_array_equal(batch["input"], images[batch["index"]])
        np.testing.assert_array_equal(batch["label"], some.labels[batch["index"]])


def test_epoch_has_no_example_twice_and_the_next_epoch_is_shuffled_differently(make):
    seen = indices(make(), 3 * PER_EPOCH).reshape(3, -1)
    for epoch in seen:
        assert len(set(epoch.tolist())) == PER_EPOCH * BATCH
    assert not np.array_equal(seen[0], seen[1])
    assert not np.array_equal(seen[1], seen[2])
    # The 3 examples that do not fill a batch differ between epochs.
    assert set(seen[0].tolist()) != set(seen[1].tolist())


@each_cache
def test_example_order_depends_on_the_seed(make, cache):
    first = indices(make(cache, seed=0), 2)
    np.testing.assert_array_equal(indices(make(cache, seed=0), 2), first)
    assert not np.array_equal(indices(make(cache, seed=1), 2), first)


@pytest.mark.parametrize("resumed", CACHES)
@pytest.mark.parametrize("saved", CACHES)
def test_batches_continue_from_a_position_saved_with_any_cache_setting(make, saved, resumed):
    batches = make(saved)
    take(batches, PER_EPOCH + 4)  # stop in the middle of the second epoch
    state = json.loads(json.dumps(batches.get_state()))
    expected = take(batches, 4)  # These batches reach into the third epoch.
    again = make(resumed)
    take(again, 1)
    again.set_state(state)
    assert_same(take(again, 4), expected)


@each_cache
def test_batches_of_all_devices_are_equal_on_one_and_eight_devices(make, cache):
    one, eight = make(cache), make(cache, devices=8)
    assert_same(take(eight, PER_EPOCH + 1), take(one, PER_EPOCH + 1))
    image = eight.next()["input"]
    assert {shard.data.shape[0] for shard in image.addressable_shards} == {BATCH // 8}


@pytest.mark.parametrize(
    ("limit", "way"),
    [
        (EXAMPLES * 64, "kept on the device (0.0 MiB, the limit is 0 MiB)"),
        (1, "streamed by threads (0.0 MiB, the limit is 0 MiB), cropped on the device"),
    ],
)
def test_cache_auto_keeps_data_sets_below_the_limit_on_the_device(make, monkeypatch, limit, way):
    monkeypatch.setattr(batches_lib, "CACHE_BYTES", limit)
    batches = make("auto", workers=0)
    assert batches.plan.why.startswith(way)
    assert_same(take(batches, 1), take(make("device"), 1))


def test_cache_limit_grows_with_device_memory(some, monkeypatch):
    class Device:
        def memory_stats(self):
            return {"bytes_limit": 2**40}

    monkeypatch.setattr(batches_lib.jax, "local_devices", lambda: [Device()])
    why = f"kept on the device (0.0 MiB, the limit is {2**17} MiB)"
    assert make_plan(some, NO_CROPS).why.startswith(why)


def test_worker_processes_read_prepared_sets_and_not_copies_of_arrays(train, monkeypatch):
    monkeypatch.setattr(files, "cpu_count", lambda: 16)
    arrays = load_splits((np.zeros((4, 8, 8, 1), np.uint8), [0, 1, 0, 1]))[0].train
    plans = [make_plan(one, NO_CROPS, cache="none") for one in (train, arrays)]
    assert [plan.workers for plan in plans] == [8, 0]


def test_lazily_decoded_image_of_another_size_is_refused():
    array = LazyArray(lambda indices: (np.zeros((1, 1, 3)) for _ in indices), (4, 8, 8, 3))
    with pytest.raises(UserError, match=r"example 2 has the shape \[1, 1, 3\], .* \[8, 8, 3\]"):
        array[2]


def test_streamed_batches_refuse_images_that_have_changed_their_size(make):
    records = [{"image": np.zeros((6, 6, 1), np.uint8), "label": 0}] * BATCH
    with pytest.raises(UserError, match=r"example \d has the shape \[6, 6, 1\], .* \[8, 8, 1\]"):
        make("none", source=of_records(records, (8, 8, 1))).next()


def test_lazily_decoded_images_can_be_cached_on_the_device(make, some, monkeypatch):
    monkeypatch.setattr(splits_lib, "MAX_DECODED", 0)
    assert isinstance(some.images(8), LazyArray)
    assert_same(take(make("device"), 2), take(make("none"), 2))


@pytest.mark.parametrize("crops", [TWO_VIEWS, MULTI_CROP], ids=["views", "multi-crop"])
def test_images_of_different_sizes_get_a_host_crop_per_view(make, photographs, crops):
    batches = make("auto", source=photographs, crops=crops)
    assert batches.plan.crops and "many sizes" in batches.plan.why
    batch = jax.device_get(batches.next())
    shapes = {name: images.shape for name, images in batch["input"].items()}
    expected = {"views": (BATCH, 2, 4, 4, 3)}
    expected |= {"crops": (BATCH, 3, 2, 2, 3)} if crops.crops else {}
    assert shapes == expected
    views = batch["input"]["views"].astype(int)
    # The two views are different crops.
    assert (views[:, 0] != views[:, 1]).any(axis=(1, 2, 3)).all()
    batches.set_state({"next_index": 5})
    later = jax.device_get(batches.next())
    for i, place in enumerate(later["index"]):
        rng = np.random.default_rng((0, 5, int(place)))
        picture = photographs.read(np.array([place]))[0].input
        cut = decoding.random_crops(picture, crops.views, rng)
        np.testing.assert_array_equal(later["input"]["views"][i], cut)


def test_images_of_different_sizes_are_centre_cropped_without_random_crops(make, photographs):
    batch = jax.device_get(make("auto", source=photographs, crops=NO_CROPS).next())
    np.testing.assert_array_equal(batch["input"], photographs.images(8)[batch["index"]])


def test_streamed_images_larger_than_a_view_are_cropped_on_the_host(make, some):
    assert make("none", crops=TWO_VIEWS).plan.crops
    assert not make("device", crops=TWO_VIEWS).plan.crops
    assert not make("none", crops=TWO_VIEWS._replace(size=8)).plan.crops
    assert not make("none", crops=NO_CROPS._replace(size=4)).plan.crops  # no crops are configured


@pytest.mark.parametrize(
    ("shape", "host"), [((5, 9, 1), True), ((4, 9, 1), False), ((9, 4, 1), False)]
)
def test_host_crops_streamed_images_only_if_both_sides_are_larger_than_a_view(some, shape, host):
    assert TWO_VIEWS.size == 4
    plan = make_plan(splits_lib.replace(some, shape=shape), TWO_VIEWS, cache="none")
    assert plan.crops == (TWO_VIEWS if host else None)


def test_host_crops_do_not_depend_on_device_count_or_restarts(make, photographs):
    settings = {"source": photographs, "crops": MULTI_CROP}
    one, eight, again = (make("auto", devices=n, **settings) for n in (1, 8, 1))
    expected = take(one, PER_EPOCH + 2)
    assert_same(take(eight, PER_EPOCH + 2), expected)
    again.set_state({"next_index": PER_EPOCH})
    assert_same(take(again, 2), expected[PER_EPOCH:])


@pytest.mark.long
def test_worker_processes_give_the_batches_that_the_main_process_reads(make, photographs):
    settings = {"source": photographs, "crops": TWO_VIEWS}
    expected = take(make("auto", workers=0, **settings), PER_EPOCH + 1)
    workers = make("auto", workers=2, **settings)
    try:
        assert_same(take(workers, 2), expected[:2])
        workers.set_state({"next_index": PER_EPOCH})
        assert_same(take(workers, 1), expected[PER_EPOCH:])
    finally:
        workers.close()


def test_reader_process_ignores_sigint_and_sigterm_and_its_death_is_reported(make, some):
    before = set(multiprocessing.active_children())
    expected, workers = take(make("none"), 8), make("none", workers=1)
    try:
        actual = take(workers, 1)
        [process] = set(multiprocessing.active_children()) - before
        # A terminal or scheduler sends these signals to all processes of a run.
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(process.pid, number)
        assert_same(actual + take(workers, 7), expected)
        process.kill()  # The kernel kills like this when memory runs out.
        with pytest.raises(UserError, match="a process that reads examples was killed"):
            take(workers, 20)
    finally:
        workers.close()


def abandon():
    """Be killed while a worker waits for its next batch to be wanted."""
    source = of_records([{"image": np.zeros((8, 8, 1), np.uint8), "label": 0}] * BATCH)
    mesh = distributed.make_mesh(jax.devices()[:1])
    settings = {"seed": 0, "crops": NO_CROPS, "mesh": mesh, "cache": "none", "workers": 1}
    make_batches(source, BATCH, **settings).next()
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.long
def test_worker_processes_exit_when_the_run_is_killed():
    """Their standard output is open as long as they live."""
    command = [sys.executable, "-c", "import batches_test; batches_test.abandon()"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = {"cwd": Path(__file__).parent, "stderr": subprocess.DEVNULL, "env": environment}
    ended = subprocess.run(command, stdout=subprocess.PIPE, timeout=50, check=False, **run)
    assert ended.returncode == -signal.SIGKILL


def test_resuming_logs_a_warning_if_images_are_no_longer_cropped_on_the_host(make, some, caplog):
    streamed, cached = (make(cache, crops=TWO_VIEWS) for cache in ("none", "device"))
    logger = batches_lib.log
    logger.addHandler(caplog.handler)
    try:
        cached.set_state(cached.get_state())
        cached.set_state({"next_index": 3})  # a position as older versions of jaxssl stored it
        assert not caplog.records
        cached.set_state(streamed.get_state())
    finally:
        logger.removeHandler(caplog.handler)
    assert "images were cropped on the host before: views differ from here on" in caplog.text


def test_resuming_with_another_number_of_training_images_is_rejected(make, some):
    state = make().get_state()
    fewer = make(source=of_records(list(some.parts[0][0].records[:40])))
    with pytest.raises(UserError, match="a run on 51 examples, but the training split has 40 now"):
        fewer.set_state(state)


def test_undecodable_image_raises_an_error_with_its_index(make):
    broken = of_records([{"image": b"no picture", "label": 0}] * BATCH)
    with pytest.raises(UserError, match=r"image 0 of 'made' cannot be decoded \(is not an image"):
        make("none", source=broken)


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"batch_size": 52}, ["between 1 and the 51", "got 52"]),
        ({"batch_size": 0}, ["between 1 and the 51", "got 0"]),
        ({"batch_size": 46, "devices": 8}, ["size=46", "divisible by the 8 devices", "try 40"]),
        ({"batch_size": 3, "devices": 8}, ["size=3", "divisible by the 8 devices", "try 8"]),
        ({"batch_size": 3, "devices": 8, "source": FIVE}, ["the 8 devices; use fewer devices"]),
        ({"workers": -2}, ["data.workers must be -1 (automatic) or between 0", "got -2"]),
        ({"workers": 10**6}, ["data.workers must be", "got 1000000"]),
    ],
)
def test_error_about_impossible_batch_settings_states_given_and_valid_values(make, settings, parts):
    with refused(*parts):
        make(**settings)


def test_images_of_different_sizes_are_not_cached_on_the_device(make, photographs):
    with pytest.raises(UserError, match="'made' have many sizes.*leave it at 'auto'"):
        make("device", source=photographs)
