"""Tests of queues and per-example buffers, on one device and on several."""

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from jax.sharding import PartitionSpec as P
from marks import long_except

from jaxssl import distributed
from jaxssl.losses.memory import (
    empty_queue,
    enqueue,
    log_average,
    mean_log,
    read_examples,
    write_examples,
)
from jaxssl.losses.pairs import pair_views


def rows(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def test_queue_starts_with_different_unit_vectors():
    queue = empty_queue(jax.random.key(1), 50, 3)
    np.testing.assert_allclose(np.linalg.norm(queue["rows"], axis=1), 1, rtol=1e-5)
    assert len(np.unique(queue["rows"], axis=0)) == 50 and queue["next"] == 0
    assert np.abs(queue["rows"].mean(0)).max() < 0.3
    assert (queue["rows"] != empty_queue(jax.random.key(2), 50, 3)["rows"]).any()


@pytest.mark.parametrize("devices", long_except([4], [1, 4]))
@pytest.mark.parametrize("size", long_except([3, 20], [3, 8, 20, 37]))
def test_queue_holds_the_latest_rows_of_all_devices(size, devices):
    """Two views of eight examples are added at a time, view by view."""
    mesh = distributed.make_mesh(jax.devices()[:devices])
    local = lambda queue, z: enqueue(queue, z, "data")  # noqa: E731
    add = jax.jit(distributed.spmd(local, mesh, (P(), P(None, "data")), P()))
    queue = empty_queue(jax.random.key(0), size, 3)
    expected, place = np.array(queue["rows"]), 0
    for step in range(4):
        z = rows(2, 8, 3, seed=step)
        queue = add(queue, z)
        for row in unit(z).reshape(16, 3)[-size:]:
            expected[place] = row
            place = (place + 1) % size
        np.testing.assert_allclose(queue["rows"], expected, rtol=1e-5, atol=1e-6)
        assert queue["next"] == place


@pytest.mark.parametrize("logs", [False, True])
@pytest.mark.parametrize("devices", [1, 4])
def test_per_example_buffer_is_read_and_written_by_example_index(devices, logs):
    """Each of four devices holds five rows. The batch has their first and last rows."""
    index = np.array([0, 19, 4, 5, 9, 10, 14, 7], np.int32)
    mesh = distributed.make_mesh(jax.devices()[:devices])
    buffer, value = rows(20), rows(2, 8, seed=1)

    def local(buffer, z, index, value):
        pairs = pair_views(z, index, axis_name="data")
        entries = read_examples(buffer, pairs).reshape(2, -1)
        return entries, write_examples(buffer, pairs, value.reshape(-1), logs=logs)

    by_view = P(None, "data")
    specs = (P("data"), by_view, P("data"), by_view)
    run = jax.jit(distributed.spmd(local, mesh, specs, (by_view, P("data"))))
    entries, written = run(buffer, rows(2, 8, 3), index, value)
    np.testing.assert_array_equal(entries, [buffer[index]] * 2)
    mean = np.log(np.exp(value).mean(0)) if logs else value.mean(0)
    buffer[index] = mean
    np.testing.assert_allclose(written, buffer, rtol=1e-5, atol=1e-6)


def test_mean_log_is_the_log_of_the_mean_of_the_numbers_that_are_set():
    first = jnp.array([-jnp.inf, -jnp.inf, 0.1, 100.0, 3.0])
    second = jnp.array([-jnp.inf, 1.0, 0.1, 100.0, -2.0])
    mean = mean_log(first, second)
    np.testing.assert_array_equal(mean[:4], np.float32([-np.inf, 1.0, 0.1, 100.0]))
    np.testing.assert_allclose(mean[4], np.log((np.exp(3) + np.exp(-2)) / 2), rtol=1e-6)


def test_log_average_is_the_log_of_a_moving_average_that_starts_at_the_first_value():
    old, new = jnp.array([-jnp.inf, 0.0, 3.0]), jnp.array([2.0, 1.0, -50.0])
    expected = np.log(0.75 * np.exp([0.0, 3.0]) + 0.25 * np.exp([1.0, -50.0]))
    np.testing.assert_allclose(log_average(old, new, 0.25), [2.0, *expected], rtol=1e-6)
    np.testing.assert_array_equal(log_average(old, new, 1.0), new)
