"""Wait until all processes of a run have started, before JAX connects them.

JAX would abort the others if one of them is missing, with a stack trace that does not name it.
Until all are there, the first process listens on the port that JAX uses afterwards.
"""

import os
import select
import socket
import time
from contextlib import ExitStack, suppress

from jaxssl.errors import LostProcess, UserError

# Seconds that the first process waits for the others. Hosts may start minutes apart.
JOIN = 300.0
# Seconds that the first process still waits for missing processes after one has ended.
GRACE = 10.0
PAUSE = 0.5  # seconds between two attempts to reach the first process
INTRODUCTION = 5.0  # seconds in which a process that has connected says who it is
GREETING = b"jaxssl"  # begins each message, because another program may use the port
AGAIN = "start all processes again"
ENDED = f"process {{}} of this run has ended before all had joined; {AGAIN}"


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


def _await_others(server: socket.socket, processes: int) -> None:
    """Wait in the first process until all other processes have connected; close the server."""
    answer = f"{LostProcess.status} {ENDED.format(0)}"
    joined: list[tuple[int, socket.socket]] = []
    with ExitStack() as stack:
        stack.enter_context(server)
        try:
            _collect(server, processes, joined, stack)
            answer = ""
        except UserError as error:
            answer = f"{error.status} {error}"
            raise
        finally:
            for _, connection in joined:
                with suppress(OSError):  # A process that has ended needs no answer.
                    connection.sendall(GREETING + answer.encode())


def _collect(
    server: socket.socket, processes: int, joined: list[tuple[int, socket.socket]], stack: ExitStack
) -> None:
    """Accept the connections of the other processes, and add them to ``joined``, left open."""
    end = time.monotonic() + JOIN
    lost: set[int] = set()
    while missing := sorted(set(range(1, processes)) - {process for process, _ in joined}):
        left = max(0.0, end - time.monotonic())
        ready = select.select([server, *(connection for _, connection in joined)], [], [], left)[0]
        if not ready:
            if ended := sorted({*missing} & lost):
                raise LostProcess(ENDED.format(ended[0]))
            names = ", ".join(map(str, missing))
            raise LostProcess(f"missing after {JOIN:g} s: process {names} of this run; {AGAIN}")
        for process, connection in list(joined):
            if connection in ready:  # Peers send only a greeting, so this one has disconnected.
                joined.remove((process, connection))
                lost.add(process)
                end = min(end, time.monotonic() + GRACE)
        if server not in ready:
            continue
        connection = stack.enter_context(server.accept()[0])
        try:
            connection.settimeout(INTRODUCTION)
            process, expected = map(int, connection.recv(64).removeprefix(GREETING).split())
        except (OSError, ValueError):  # Another program has connected.
            connection.close()
            continue
        joined.append((process, connection))
        if process not in missing:
            raise UserError(f"two processes have the index {process}; pass each its --process_id")
        if expected != processes:
            raise UserError(
                f"process {process} expects {expected} processes, process 0 {processes}; pass "
                "all of them the same --num_processes"
            )


def _report_to_first(host: str, port: int, processes: int, process: int) -> None:
    """Report to the first process, and wait until all other processes have reported to it."""
    end = time.monotonic() + JOIN
    while True:
        try:
            with socket.create_connection((host, port), timeout=INTRODUCTION) as connection:
                connection.settimeout(JOIN + INTRODUCTION)
                connection.sendall(GREETING + f" {process} {processes}".encode())
                answer = b"".join(iter(lambda: connection.recv(4096), b""))
            reason = "another program answers"
        except OSError as error:
            answer, reason = b"no answer", str(error)
        if answer == GREETING:
            return
        if answer.startswith(GREETING):
            status, _, text = answer.removeprefix(GREETING).decode().partition(" ")
            raise LostProcess(text) if int(status) == LostProcess.status else UserError(text)
        if not answer:
            raise LostProcess(ENDED.format(0))
        if time.monotonic() > end:
            raise LostProcess(
                f"process 0 of this run cannot be reached at {host}:{port} ({reason}); check "
                f"--coordinator, and {AGAIN}"
            )
        time.sleep(PAUSE)
