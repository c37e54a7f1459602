"""Processes that wait for each other before JAX connects them, as threads."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from process_cases import free_port

from jaxssl.errors import LostProcess, UserError
from jaxssl.training import rendezvous

pytestmark = pytest.mark.fast


@pytest.fixture
def port(monkeypatch) -> int:
    monkeypatch.setattr(rendezvous, "PAUSE", 0.01)
    monkeypatch.setattr(rendezvous, "GRACE", 0.5)
    monkeypatch.delenv("JAX_COORDINATOR_BIND_ADDRESS", raising=False)
    return free_port()


def meet(port: int, processes: list[tuple[int, int]], host: str = "127.0.0.1") -> list[object]:
    """Return the results of processes (index, number), or the errors that they raise."""

    def run(process: int, number: int) -> object:
        try:
            listen = None if host == "localhost" else f"{host}:{port}"
            return rendezvous.meet(f"{host}:{port}", listen, number, process)
        except UserError as error:
            return error

    with ThreadPoolExecutor(len(processes)) as pool:
        return list(pool.map(run, *zip(*processes, strict=True)))


def knock(port: int, words: bytes) -> socket.socket:
    """Connect to the first process, which may not listen yet."""
    while True:
        try:
            connection = socket.create_connection(("127.0.0.1", port))
        except OSError:
            time.sleep(0.01)
        else:
            connection.sendall(words)
            return connection


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "localhost"])
def test_all_processes_continue_once_all_have_started(port, host):
    assert meet(port, [(2, 3), (0, 3), (1, 3)], host) == [None] * 3
    # The port must be free at once, because JAX listens on it next.
    socket.create_server(("127.0.0.1", port)).close()


def test_first_process_listens_on_the_address_jax_is_told_and_others_connect(port, monkeypatch):
    for name in ("JOIN", "INTRODUCTION"):
        monkeypatch.setattr(rendezvous, name, 1.0)
    monkeypatch.setenv("JAX_COORDINATOR_BIND_ADDRESS", f"127.0.0.1:{port}")
    public = "192.0.2.1:1"  # as behind NAT: no process can listen there
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(rendezvous.meet, public, None, 2, 0)
        rendezvous.meet(f"127.0.0.1:{port}", public, 2, 1)
        first.result()


@pytest.mark.parametrize(
    ("processes", "message", "kind"),
    [
        ([(0, 4), (2, 4)], "missing after 0.5 s: process 1, 3 of this run; start all", LostProcess),
        ([(0, 3), (1, 3), (1, 3)], "two processes have the index 1; pass each its", UserError),
        ([(0, 2), (1, 3)], "process 1 expects 3 processes, process 0 2; pass all", UserError),
        ([(0, 2), (2, 3)], "process 2 expects 3 processes, process 0 2; pass all", UserError),
    ],
)
def test_all_processes_report_inconsistent_or_missing_processes(
    port, monkeypatch, processes, message, kind
):
    monkeypatch.setattr(rendezvous, "JOIN", 0.5)
    for error in meet(port, processes):
        assert type(error) is kind and message in str(error)


def test_error_names_process_0_if_it_cannot_be_reached(port, monkeypatch):
    monkeypatch.setattr(rendezvous, "JOIN", 0.1)
    (error,) = meet(port, [(1, 2)])
    assert type(error) is LostProcess
    assert f"process 0 of this run cannot be reached at 127.0.0.1:{port}" in str(error)


def test_process_that_ends_while_waiting_for_the_others_is_named(port):
    with ThreadPoolExecutor(1) as pool:
        others = pool.submit(meet, port, [(0, 4), (1, 4)])
        knock(port, b"jaxssl 2 4").close()
        for error in others.result():
            assert type(error) is LostProcess
            assert "process 2 of this run has ended before all had joined" in str(error)


def test_process_that_was_restarted_while_waiting_can_join(port):
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(meet, port, [(0, 3)])
        knock(port, b"jaxssl 2 3").close()
        assert meet(port, [(1, 3), (2, 3)]) == [None] * 2
        assert first.result() == [None]


def test_process_0_that_ends_while_others_wait_is_named_at_once(port, monkeypatch):
    monkeypatch.setattr(rendezvous, "PROXY", 0.0)
    with ThreadPoolExecutor(1) as pool, socket.create_server(("127.0.0.1", port)) as server:
        other = pool.submit(meet, port, [(1, 2)])
        with server.accept()[0] as connection:
            assert connection.recv(64) == b"jaxssl 1 2"
        (error,) = other.result()
    assert type(error) is LostProcess and "process 0 of this run has ended" in str(error)


def test_process_tries_again_if_a_proxy_closes_the_connection_at_once(port):
    with ThreadPoolExecutor(1) as pool:
        with socket.create_server(("127.0.0.1", port)) as proxy:
            other = pool.submit(meet, port, [(1, 2)])
            with proxy.accept()[0] as connection:
                assert connection.recv(64) == b"jaxssl 1 2"
        assert meet(port, [(0, 2)]) == [None] and other.result() == [None]


def test_other_programs_on_the_coordinator_port_are_ignored(port):
    with ThreadPoolExecutor(1) as pool:
        with socket.create_server(("127.0.0.1", port)) as server:
            other = pool.submit(meet, port, [(1, 2)])
            with server.accept()[0] as connection:
                connection.recv(64)
                connection.sendall(b"HTTP/1.1 400")
        assert meet(port, [(0, 2)]) == [None] and other.result() == [None]
    with ThreadPoolExecutor(1) as pool:
        both = pool.submit(meet, port, [(0, 2)])
        for words in (b"GET / HTTP/1.1", b"1 2"):
            knock(port, words).close()
        assert meet(port, [(1, 2)]) == [None] and both.result() == [None]
