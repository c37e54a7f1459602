"""Shares of rows on devices, and of data, features and figures in processes, shown by threads."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from process_cases import free_port

from jaxssl import distributed
from jaxssl.data import batches
from jaxssl.data.decoders.decoding import Crop, Crops
from jaxssl.data.splits import PreparedSplit, Source, Splits
from jaxssl.errors import LostProcess, TransientError, UserError
from jaxssl.evaluation.features import extract
from jaxssl.kinds import image
from jaxssl.training import processes
from jaxssl.training.workdir import opening as workdir
from jaxssl.training.workdir import run_record

pytestmark = pytest.mark.fast


def in_processes(monkeypatch, number, function):
    """Return ``function(i)`` of each of ``number`` processes, or the exceptions that they raise."""
    local, arrays = threading.local(), [None] * number
    barrier = threading.Barrier(number, timeout=60)

    def gather(x):
        arrays[local.index] = np.asarray(x)
        barrier.wait()
        stacked = np.stack(arrays)
        barrier.wait()
        return stacked

    def process(index):
        local.index = index
        try:
            return function(index)
        except Exception as error:
            return error

    with monkeypatch.context() as patch, ThreadPoolExecutor(number) as pool:
        patch.setattr(distributed, "process_count", lambda: number)
        patch.setattr(distributed, "process_index", lambda: local.index)
        patch.setattr(distributed, "gather_processes", gather)
        return list(pool.map(process, range(number)))


def test_error_in_one_process_stops_all_processes(monkeypatch):
    def fail(index):
        if index == 1:
            raise KeyError("disk")

    first, second, third = in_processes(
        monkeypatch, 3, lambda i: distributed.raise_together(lambda: fail(i))
    )
    assert isinstance(second, KeyError)
    for error in (first, third):
        assert isinstance(error, LostProcess) and "another process of this run" in str(error)

    assert in_processes(monkeypatch, 2, lambda i: distributed.any_process(i == 1)) == [True, True]
    assert in_processes(monkeypatch, 2, lambda i: distributed.raise_together(lambda: i)) == [0, 1]


@pytest.mark.parametrize(("fault", "status"), [(OSError, 1), (TransientError, 1), (UserError, 2)])
def test_processes_are_retried_together_or_not_at_all(monkeypatch, fault, status):
    def fail(index):
        if index == 1:
            raise fault("disk")

    first, _ = in_processes(monkeypatch, 2, lambda i: distributed.raise_together(lambda: fail(i)))
    assert first.status == status


def test_error_names_the_process_whose_workdir_is_not_the_shared_one(monkeypatch, tmp_path):
    monkeypatch.setattr(workdir, "PATIENCE", 0.1)
    one, two = tmp_path / "one", tmp_path / "two"
    errors = in_processes(monkeypatch, 3, lambda i: workdir.check_shared(two if i == 1 else one))
    for error in errors:
        assert isinstance(error, UserError) and "process 1 does not see the workdir" in str(error)
    one.mkdir()
    assert in_processes(monkeypatch, 2, lambda i: workdir.check_shared(one)) == [None] * 2
    assert list(tmp_path.rglob("*")) == [one]


def test_error_names_the_process_whose_examples_differ(monkeypatch):
    images = np.arange(24, dtype=np.uint8).reshape(6, 2, 2, 1)

    def check(labels):
        train, test = source("train", range(6)), source("test", labels)
        run_record.require_equal_data(Splits(train, train, test))

    def source(split, labels):
        records = [{"image": x, "label": y} for x, y in zip(images, labels, strict=True)]
        parts = ((PreparedSplit(records), np.arange(6)),)
        return Source("made", split, parts, tuple("abcdef"), (2, 2, 1))

    assert in_processes(monkeypatch, 2, lambda i: check(range(6))) == [None] * 2
    orders = list(range(6)), [1, 0, 2, 3, 4, 5]
    for error in in_processes(monkeypatch, 2, lambda i: check(orders[i])):
        assert isinstance(error, UserError)
        assert "process 1 differs from process 0 (test: " in str(error)


def test_error_names_the_process_with_another_number_of_devices(monkeypatch):
    devices = [SimpleNamespace(process_index=process) for process in (0, 0, 1, 1, 2)]
    monkeypatch.setattr(jax, "devices", lambda: devices)
    monkeypatch.setattr(distributed, "process_count", lambda: 2)
    processes.check_devices()
    monkeypatch.setattr(distributed, "process_count", lambda: 3)
    with pytest.raises(UserError, match="process 2 has 1 devices, process 0 has 2"):
        processes.check_devices()


@pytest.mark.parametrize("n", [5, 700, 2100])
@pytest.mark.parametrize(("number", "devices"), [(1, 1), (3, 2)])
def test_every_process_gets_the_features_of_all_images(monkeypatch, n, number, devices):
    images = np.random.default_rng(0).integers(0, 256, (n, 2, 3, 1), np.uint8)
    read = [0] * number

    class Images:
        shape = images.shape

        def __len__(self):
            return n

        def __getitem__(self, indices):
            read[distributed.process_index()] += len(images[indices])
            return images[indices]

    apply = jax.jit(lambda scale, x: scale * x.reshape(len(x), -1).astype(jnp.float32))
    mesh = distributed.make_mesh(jax.devices()[:devices])
    results = in_processes(
        monkeypatch, number, lambda i: extract(Images(), apply, jnp.float32(2), mesh)
    )
    for features in results:
        np.testing.assert_array_equal(features, 2 * images.reshape(n, -1).astype(np.float32))
    assert max(read) <= max(n / number + 512, 1) and sum(read) <= n + number


@pytest.mark.parametrize("crops", [None, Crops((Crop(4, (0.2, 0.6), (1.5, 2.5)),) * 2, (), 4)])
def test_each_process_reads_only_its_rows_of_every_batch(crops):
    images = np.random.default_rng(0).integers(0, 256, (20, 6, 9, 3), np.uint8)
    records = [{"image": image, "label": i % 3} for i, image in enumerate(images)]
    part = PreparedSplit(records)
    source = Source("made", "train", ((part, np.arange(20)),), tuple("abc"), (6, 9, 3))
    order = batches.Order(20, 8, 0)
    reader = image.ReadImages(source, crops, 5)
    whole = reader(3, order(3))
    for rows in (np.arange(2), np.array([2, 3, 6]), np.arange(4, 8)):
        local = batches._read_rows(reader, order, rows, 3)
        np.testing.assert_array_equal(local["index"], order(3)[rows])
        jax.tree.map(np.testing.assert_array_equal, local, jax.tree.map(itemgetter(rows), whole))


def test_host_crops_differ_between_seeds_steps_examples_and_views():
    pixels = np.random.default_rng(0).integers(0, 256, (16, 24, 1), np.uint8)
    part = PreparedSplit([{"image": pixels, "label": 0}] * 3)
    source = Source("made", "train", ((part, np.arange(3)),), ("a",), (16, 24, 1))
    crop = Crop(8, (0.1, 0.6), (1.5, 2.5))
    crops = Crops((crop,) * 2, (crop,) * 2, 8)
    cut = []
    for seed, step in ((0, 0), (0, 1), (1, 0)):
        inputs = image.ReadImages(source, crops, seed)(step, np.arange(3, dtype=np.int32))["input"]
        cut += [*inputs["views"].reshape(6, -1), *inputs["crops"].reshape(6, -1)]
    assert len({one.tobytes() for one in cut}) == 36


def test_subset_of_a_source_of_several_parts_keeps_the_order():
    parts = [
        (PreparedSplit([{"image": np.full((2, 3, 1), v, np.uint8), "label": v} for v in values]), i)
        for values, i in (([5, 6, 7, 8], [3, 1]), ([1, 2, 3], [0, 1, 2]), ([4, 9], [1]))
    ]
    parts = tuple((part, np.array(places)) for part, places in parts)
    source = Source("made", "all", parts, tuple("0123456789"), (2, 3, 1))
    order = [8, 6, 1, 2, 3, 9]
    for source_, expected in (
        (source, order),
        (source.take(np.array([5, 1, 4, 1])), [6, 3, 9]),
        (source.take(np.array([0, 2, 5])).take(np.array([1, 2])), [1, 9]),
    ):
        np.testing.assert_array_equal(source_.labels, expected)
        np.testing.assert_array_equal(source_.images(2)[:, 0, 0, 0], expected)
        read = source_.read(np.arange(len(expected))[::-1])
        assert [example.label for example in read] == expected[::-1]
        assert [np.asarray(example.input)[0, 0] for example in read] == expected[::-1]


def test_round_up_returns_a_multiple_that_is_not_smaller():
    assert [distributed.round_up(n, 8) for n in (0, 1, 8, 9, 16)] == [0, 8, 8, 16, 16]


@pytest.mark.parametrize(
    ("shape", "axis"), [((8, 16), 1), ((24, 16), 0), ((8, 9), 0), ((7, 9), None), ((8,), None)]
)
def test_parameters_are_sharded_along_the_longest_divisible_axis(shape, axis):
    sharding = distributed.split_sharding(shape, distributed.make_mesh())
    expected = tuple(n // 8 if i == axis else n for i, n in enumerate(shape))
    assert sharding.shard_shape(shape) == expected
    alone = distributed.make_mesh(jax.devices()[:1])
    assert distributed.split_sharding(shape, alone).is_fully_replicated


@pytest.mark.parametrize(
    ("host", "addresses", "listen"),
    [
        ("127.0.0.1", None, "127.0.0.1"),
        ("[::1]", None, "[::1]"),
        ("localhost", "127.0.0.1", "127.0.0.1"),
        ("host0", "127.0.1.1", None),  # Debian's /etc/hosts maps the host name to this
        ("192.0.2.1", None, None),  # not an address of this machine, as behind NAT
        ("host0", "192.0.2.1", None),
    ],
)
def test_coordinator_listens_on_the_given_address_if_it_is_local(
    monkeypatch, host, addresses, listen
):
    lookup = socket.getaddrinfo
    if addresses:
        monkeypatch.setattr(socket, "getaddrinfo", lambda _, *args, **kw: lookup(addresses, None))
    monkeypatch.delenv("JAX_COORDINATOR_BIND_ADDRESS", raising=False)
    port = free_port()
    expected = f"{listen}:{port}" if listen else None
    assert processes._listen_address(f"{host}:{port}", 0) == expected
    assert processes._listen_address(f"{host}:{port}", 1) is None
    if listen:
        family = socket.AF_INET6 if "[" in listen else socket.AF_INET
        with socket.create_server((listen.strip("[]"), port), family=family):
            with pytest.raises(UserError, match="cannot listen on the port"):
                processes._listen_address(f"{host}:{port}", 0)
