"""Tests of shares of rows, on devices and on processes that are imitated."""

import socket

import jax
import numpy as np
import pytest

from jaxssl import distributed
from jaxssl.errors import UserError


def test_round_up_returns_a_multiple_that_is_not_smaller():
    assert [distributed.round_up(n, 8) for n in (0, 1, 8, 9, 16)] == [0, 8, 8, 16, 16]


@pytest.mark.parametrize(
    ("shape", "axis"), [((8, 16), 1), ((24, 16), 0), ((8, 9), 0), ((7, 9), None), ((), None)]
)
def test_longest_divisible_axis_is_split_over_devices(shape, axis):
    sharding = distributed.split_sharding(shape, distributed.make_mesh())
    expected = tuple(n // 8 if i == axis else n for i, n in enumerate(shape))
    assert sharding.shard_shape(shape) == expected
    alone = distributed.make_mesh(jax.devices()[:1])
    assert distributed.split_sharding(shape, alone).is_fully_replicated


def on_each(monkeypatch, count, call):
    """Return the results of a call in each of ``count`` processes."""
    monkeypatch.setattr(distributed, "process_count", lambda: count)
    results = []
    for index in range(count):
        monkeypatch.setattr(distributed, "process_index", lambda index=index: index)
        results.append(call(index))
    return results


@pytest.mark.parametrize("n", [0, 1, 10, 12, 1001])
def test_slices_of_processes_cover_the_rows_once_in_almost_equal_shares(n, monkeypatch):
    shares = on_each(monkeypatch, 4, lambda _: np.arange(n)[distributed.process_slice(n)])
    np.testing.assert_array_equal(np.concatenate(shares), np.arange(n))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_rows_and_means_of_processes_are_weighted_by_their_numbers_of_rows(monkeypatch):
    rows = [np.array([1.0, 2.0, 6.0], np.float32), np.array([5.0], np.float32)]
    # Both processes send, by shape: sizes, padded rows, and sums with numbers of rows.
    sent = {(): [3, 1], (3,): [[1, 2, 6], [5, 0, 0]], (2,): [[9, 3], [5, 1]]}

    def gather(x):
        stack = np.array(sent[x.shape])
        np.testing.assert_array_equal(x, stack[distributed.process_index()])
        return stack

    monkeypatch.setattr(distributed, "gather_processes", gather)
    for whole in on_each(monkeypatch, 2, lambda i: distributed.gather_process_rows(rows[i])):
        np.testing.assert_array_equal(whole, [1, 2, 6, 5])
    assert on_each(monkeypatch, 2, lambda i: distributed.mean_over_processes(rows[i])) == [3.5, 3.5]


@pytest.mark.parametrize(
    ("host", "addresses", "listen"),
    [
        ("127.0.0.1", None, "127.0.0.1"),
        ("[::1]", None, "[::1]"),
        ("localhost", "127.0.0.1", "127.0.0.1"),
        ("host0", "127.0.1.1", None),  # as /etc/hosts of Debian has it
        ("192.0.2.1", None, None),  # an address of no machine, as behind NAT
        ("host0", "192.0.2.1", None),
    ],
)
def test_first_process_listens_on_the_address_that_is_given(monkeypatch, host, addresses, listen):
    lookup = socket.getaddrinfo
    if addresses:
        monkeypatch.setattr(socket, "getaddrinfo", lambda _, *args, **kw: lookup(addresses, None))
    monkeypatch.delenv("JAX_COORDINATOR_BIND_ADDRESS", raising=False)
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    expected = f"{listen}:{port}" if listen else None
    assert distributed._listen_address(f"{host}:{port}", 0) == expected
    assert distributed._listen_address(f"{host}:{port}", 1) is None
    if listen:
        family = socket.AF_INET6 if "[" in listen else socket.AF_INET
        with socket.create_server((listen.strip("[]"), port), family=family):
            with pytest.raises(UserError, match="cannot listen on the port"):
                distributed._listen_address(f"{host}:{port}", 0)
