"""Wait until all processes of a run have started, before JAX connects them.

JAX would abort the others if one of them is missing, with a stack trace that does not name it.
Until all are there, the first process listens on the port that JAX uses afterwards.
"""

import os
import re
import select
import socket
import time
from contextlib import ExitStack, suppress

from jaxssl.errors import LostProcess, UserError

# Seconds that the first process waits for the others. Hosts may start minutes apart.
JOIN = 300.0
# Seconds that the first process still waits for missing processes after one has ended.
GRACE = 10.0
# Seconds after which a closed connection was one to the first process. A proxy that waits for the
# first process accepts connections and closes them at once.
PROXY = 1.0
PAUSE = 0.5  # seconds between two attempts to reach the first process
INTRODUCTION = 5.0  # seconds in which a process that has connected says who it is
GREETING = b"jaxssl"  # begins each message, because another program may use the port
AGAIN = "start all processes again"


def is_only_task_of_slurm() -> bool:
    """Return whether Slurm has started this process without others, in its job or its step."""
    return os.environ.get("SLURM_STEP_NUM_TASKS", os.environ.get("SLURM_NTASKS")) == "1"


def listen_on(address: str, port: int) -> socket.socket:
    """Listen on one IP address of this machine, or on all its addresses if none is given."""
    dual = not address and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual or ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family, dualstack_ipv6=dual)


def meet(coordinator: str, listen: str | None, processes: int, process: int) -> None:
    """Return when all processes of a run have started.

    Args:
        coordinator: HOST:PORT of the first process.
        listen: ADDRESS:PORT on which it listens, or None for all addresses.
        processes: number of processes.
        process: index of this process.

    Raises:
        UserError: in all processes, if one is missing after `JOIN` seconds, has ended, or was
            started with other numbers.
    """
    listen = listen or os.environ.get("JAX_COORDINATOR_BIND_ADDRESS")
    host, _, port = (listen if listen and process == 0 else coordinator).rpartition(":")
    host = host.strip("[]")
    if process:
        _report_to_first(host, int(port), processes, process)
    else:
        _await_others(listen_on(host if listen else "", int(port)), processes)


def _ended(process: int) -> LostProcess:
    return LostProcess(f"process {process} of this run has ended before all had joined; {AGAIN}")


def _await_others(server: socket.socket, processes: int) -> None:
    """Wait in the first process until all other processes have connected. Close the server."""
    joined: dict[socket.socket, int] = {}
    # The answer to the others if an unexpected exception or a signal ends this process.
    error: UserError | None = _ended(0)
    with ExitStack() as stack:
        stack.enter_context(server)
        try:
            _collect(server, processes, joined, stack)
            error = None
        except UserError as caught:
            error = caught
            raise
        finally:
            answer = f"{error.status} {error}" if error else ""
            for connection in joined:
                with suppress(OSError):  # A process that has ended needs no answer.
                    connection.sendall(GREETING + answer.encode())


def _collect(
    server: socket.socket, processes: int, joined: dict[socket.socket, int], stack: ExitStack
) -> None:
    """Accept the other processes, and add connection and index of each to ``joined``, left open."""
    end = time.monotonic() + JOIN
    lost: set[int] = set()
    while missing := {*range(1, processes)} - {*joined.values()}:
        left = max(0.0, end - time.monotonic())
        ready, _, _ = select.select([server, *joined], [], [], left)
        if not ready:
            if missing & lost:
                raise _ended(min(missing & lost))
            names = ", ".join(map(str, sorted(missing)))
            raise LostProcess(f"missing after {JOIN:g} s: process {names} of this run; {AGAIN}")
        for connection in joined.keys() & {*ready}:
            # A process sends nothing after its introduction, so this one has disconnected.
            lost.add(joined.pop(connection))
            end = min(end, time.monotonic() + GRACE)
        if server not in ready:
            continue
        connection = stack.enter_context(server.accept()[0])
        connection.settimeout(INTRODUCTION)
        introduction = b""
        with suppress(OSError):
            introduction = connection.recv(64)
        match = re.fullmatch(GREETING + rb" (\d+) (\d+)", introduction)
        if not match:  # Another program has connected.
            connection.close()
            continue
        process, expected = int(match[1]), int(match[2])
        joined[connection] = process
        if expected != processes:
            raise UserError(
                f"process {process} expects {expected} processes, process 0 {processes}; pass "
                "all of them the same --num_processes"
            )
        if process not in missing:
            raise UserError(f"two processes have the index {process}; pass each its --process_id")


def _report_to_first(host: str, port: int, processes: int, process: int) -> None:
    """Report to the first process, and wait until all other processes have reported to it."""
    end = time.monotonic() + JOIN
    while True:
        try:
            with socket.create_connection((host, port), timeout=INTRODUCTION) as connection:
                start = time.monotonic()
                connection.settimeout(JOIN + INTRODUCTION)
                connection.sendall(GREETING + f" {process} {processes}".encode())
                answer = b"".join(iter(lambda: connection.recv(4096), b""))
                if not answer and time.monotonic() > start + PROXY:
                    raise _ended(0)
            reason = "another program answers" if answer else "it closes the connection"
        except OSError as error:
            answer, reason = b"no answer", str(error)
        if answer == GREETING:
            return
        if answer.startswith(GREETING):
            status, _, text = answer.removeprefix(GREETING).decode().partition(" ")
            raise LostProcess(text) if int(status) == LostProcess.status else UserError(text)
        if time.monotonic() > end:
            raise LostProcess(
                f"process 0 of this run cannot be reached at {host}:{port} ({reason}); check "
                f"--coordinator, and {AGAIN}"
            )
        time.sleep(PAUSE)
