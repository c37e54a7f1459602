"""Processes that watch each other, as threads with a store of one process."""

import os
import threading
import time

import pytest

from jaxssl.training import processes as connection

pytestmark = pytest.mark.fast


class Store(dict):
    """JAX's key-value store, as far as the peers use it."""

    def key_value_set(self, key, value, allow_overwrite):
        assert allow_overwrite
        self[key] = value

    def key_value_try_get(self, key):
        return self[key]

    def key_value_dir_get(self, prefix):
        return [(key, value) for key, value in list(self.items()) if key.startswith(prefix)]


@pytest.fixture
def run(monkeypatch, capsys):
    """Return a run of three processes, and a function that returns the lines and exits of all."""
    exits = []
    for name, value in (("INTERVAL", 0.02), ("LIMIT", 0.4), ("GRACE", 0.5)):
        monkeypatch.setattr(connection, name, value)
    monkeypatch.setattr(os, "_exit", exits.append)
    store = Store()
    processes = [connection.Peers(store, i, 3) for i in range(3)]

    def result(number):
        end = time.monotonic() + 20
        while len(exits) < number and time.monotonic() < end:
            time.sleep(0.02)
        return capsys.readouterr().err.splitlines(), exits

    yield processes, result
    for process in processes:
        process.close()


@pytest.mark.parametrize("lost", [0, 2])
def test_lost_process_is_named_by_all_other_processes(run, lost):
    processes, result = run
    processes[lost]._ending.set()
    lines, exits = result(2)
    assert exits == [1, 1] and len(lines) == 2
    for line in lines:
        assert line.startswith(f"error: process {lost} of this run missed its heartbeats: it has")


@pytest.mark.parametrize("failed", [0, 1])
def test_error_in_one_process_ends_the_other_processes_with_its_message(run, failed):
    processes, result = run
    processes[failed].tell_error(OSError("no space left"), 2)
    lines, exits = result(2)
    assert exits == [2, 2]
    assert lines == [f"error: process {failed} of this run has ended: no space left"] * 2


def test_processes_that_fail_at_the_same_time_are_not_ended_by_each_other(run):
    processes, result = run
    for process in processes:
        process.tell_error(OSError("no space left"))
    time.sleep(0.1)
    assert result(0) == ([], [])


def test_closing_the_peer_connections_ends_their_threads(run, monkeypatch):
    monkeypatch.setattr(connection, "GRACE", 20)
    assert sum(thread.name.startswith("peer") for thread in threading.enumerate()) == 6
    for process in run[0]:
        process.close()
    assert not any(thread.name.startswith("peer") for thread in threading.enumerate())
    assert run[1](0) == ([], [])
