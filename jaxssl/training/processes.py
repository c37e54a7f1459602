"""Connect the processes of a run on several hosts, so that all end if one of them is lost.

All processes end when one has ended. JAX would end them too, but later and with a stack trace of
its C++ code. JAX's key-value store, which the first process of the run serves, holds a count for
each process, which the process raises while it is alive, and the errors of processes that end.
"""

import ctypes
import ipaddress
import itertools
import os
import signal
import socket
import threading
import time
from collections import Counter
from contextlib import suppress
from typing import Any

import jax
from jax._src import distributed as jax_distributed
from jax._src.clusters import ClusterEnv, K8sCluster

from jaxssl import distributed
from jaxssl.errors import UserError, one_line
from jaxssl.training import memory, rendezvous
from jaxssl.training.output.console import show_error

# Seconds without a heartbeat after which JAX aborts the processes of a run. Commands notice a lost
# process earlier (`Peers`).
HEARTBEAT_TIMEOUT = 100
# Seconds that a process that has finished its run waits for the other processes.
SHUTDOWN_TIMEOUT = 24 * 3600
INTERVAL = 1.0  # seconds between two looks at the other processes
LIMIT = 20.0  # A process counts as lost after this many seconds without a heartbeat.
# The first process ends later than the others, because JAX aborts them when its store is gone.
GRACE = 4.0
AGAIN = f"{rendezvous.AGAIN}, and they resume at the last checkpoint"
# Keys of the store: counts of living processes, and errors of processes that have ended.
PREFIX, ALIVE, ENDED = "jaxssl/", "jaxssl/alive/", "jaxssl/ended/"


def initialize(
    coordinator: str | None = None, processes: int | None = None, process: int | None = None
) -> None:
    """Connect the processes of a run, before any other use of JAX.

    The number of processes and the address of the first come from the arguments, from the
    environment (JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES, JAX_PROCESS_ID), or from the launcher
    that JAX detects: Slurm, Open MPI, a TPU pod, or an indexed job of Kubernetes with the package
    `kubernetes`. Without any of these a run has one process.

    Args:
        coordinator: HOST:PORT of the first process.
        processes: number of processes.
        process: index of this process, from 0.

    Raises:
        UserError: if the numbers do not fit, or the processes cannot connect.
    """
    coordinator = coordinator or os.environ.get("JAX_COORDINATOR_ADDRESS") or None
    processes = _number("JAX_NUM_PROCESSES") if processes is None else processes
    process = _number("JAX_PROCESS_ID") if process is None else process
    if coordinator is None and not _is_cluster():
        if processes is not None or process is not None:
            raise UserError(
                "several processes need the address of the first one; pass --coordinator=HOST:PORT"
            )
        return
    listen = None if coordinator is None else _listen_address(coordinator, process)
    if coordinator and processes and process is not None and process < processes:
        rendezvous.meet(coordinator, listen, processes, process)
    # On CPUs with a device for each process, no two programs with collectives overlap.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    # JAX's preemption service would take over SIGTERM. The training loop handles the signal, so
    # that all processes stop at the same step.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            coordinator,
            processes,
            process,
            coordinator_bind_address=listen,
            heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT,
            shutdown_timeout_seconds=SHUTDOWN_TIMEOUT,
        )
    except (ValueError, RuntimeError) as error:
        raise UserError(
            f"the processes of this run cannot connect (coordinator {coordinator}, process "
            f"{process} of {processes}): {one_line(error)}; give --coordinator, --num_processes, "
            "--process_id"
        ) from error


def check_platform() -> None:
    """Raise UserError if the environment variable JAX_PLATFORMS names no platform with devices."""
    platforms = os.environ.get("JAX_PLATFORMS")
    try:
        jax.devices()
    except Exception as error:  # JAX also raises AssertionError.
        if not platforms:
            raise
        jax.config.update("jax_platforms", None)
        available = sorted({"cpu", *(device.platform for device in jax.devices())})
        reason = f" ({one_line(error)})" if str(error) else ""
        raise UserError(
            f"JAX_PLATFORMS={platforms!r} in the environment: JAX finds no such device{reason}; "
            f"unset it, or choose from {', '.join(available)}"
        ) from error


def check_devices() -> None:
    """Raise UserError in all processes unless all of them have the same number of devices."""
    numbers = Counter(device.process_index for device in jax.devices())
    for process in range(distributed.process_count()):
        if numbers[process] != numbers[0]:
            raise UserError(
                f"process {process} has {numbers[process]} devices, process 0 has {numbers[0]}; "
                "let every process see the same number of devices"
            )


def start(coordinator: str | None, processes: int | None, process: int | None) -> "Peers | None":
    """Connect the processes of a run, and check its devices, before any other use of JAX.

    Args:
        coordinator: HOST:PORT of the first process, see `initialize`.
        processes: number of processes.
        process: index of this process, from 0.

    Returns:
        The other processes, which are watched from now on. None for a run of one process.

    Raises:
        UserError: as `initialize`, `check_platform` and `check_devices`.
    """
    memory.share_arena()
    initialize(coordinator, processes, process)
    check_platform()
    check_devices()
    if distributed.process_count() == 1:
        return None
    distributed.connect_devices()
    connection = jax_distributed.global_state  # not public, but Orbax uses it in the same way
    if distributed.process_index():
        _explain_abort(str(connection.coordinator_address))
    return Peers(connection.client, distributed.process_index(), distributed.process_count())


class Peers:
    """The other processes of this run. Threads watch their heartbeats.

    The first process watches all others. They watch the first one, which tells them about the
    rest, so that the work does not grow with the square of the number of processes.

    Args:
        store: the client of JAX's key-value store.
        process: index of this process.
        processes: number of processes.
    """

    def __init__(self, store: Any, process: int, processes: int) -> None:
        self._store, self._process = store, process
        self._counts: dict[int, str | None] = {}  # last count of each other process
        # Number of looks at each other process since its last heartbeat. A clock would also
        # count the time in which this process was suspended itself.
        self._silent = dict.fromkeys(range(1, processes) if process == 0 else [0], 0)
        self._ending = threading.Event()  # set once this process is ending
        targets = self._listen, self._judge
        name = f"peer {process}"
        self._threads = [threading.Thread(target=x, name=name, daemon=True) for x in targets]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop the watching threads. Python would abort at exit while a thread is in JAX's code."""
        self._ending.set()
        for thread in self._threads:
            thread.join(GRACE)

    def tell_error(self, error: Exception, status: int = 1) -> None:
        """Tell the other processes that this process ends with an error, so that they end too."""
        self._ending.set()
        message = f"{status} process {self._process} of this run has ended: {one_line(error)}"
        self._put(f"{ENDED}{self._process}", message)

    def wait_for_loss(self) -> None:
        """Sleep as long as it may take to detect a lost process, which then ends this process."""
        time.sleep(LIMIT + GRACE)

    def _listen(self) -> None:
        """Publish heartbeats of this process, and read those of the other processes."""
        for count in itertools.count():
            self._put(f"{ALIVE}{self._process}", str(count))
            values = self._read()
            for other in self._silent:
                value = values.get(f"{ALIVE}{other}")
                if value not in (None, self._counts.get(other)):
                    self._counts[other], self._silent[other] = value, 0
                if message := values.get(f"{ENDED}{other}"):
                    # Wait, because this process may be about to report the same error itself.
                    self._ending.wait(INTERVAL)
                    status, _, text = message.partition(" ")
                    self._end(text, int(status))
            if self._ending.wait(INTERVAL):
                return

    def _judge(self) -> None:
        """End this process if another is silent too long. JAX's store may not even answer then."""
        while not self._ending.wait(INTERVAL):
            for other in self._silent:
                self._silent[other] += 1
                if self._silent[other] > LIMIT / INTERVAL:
                    self._end(
                        f"process {other} of this run missed its heartbeats: it has exited, was "
                        f"suspended, or cannot be reached; {AGAIN}"
                    )

    def _read(self) -> dict[str, str]:
        """Return the values that the watched processes have written, as far as they can be read."""
        if self._process == 0:
            with suppress(Exception):  # the exceptions of a store differ between JAX's versions
                return dict(self._store.key_value_dir_get(PREFIX))
        values = {}
        for key in (f"{ALIVE}0", f"{ENDED}0"):
            with suppress(Exception):
                values[key] = self._store.key_value_try_get(key)
        return values

    def _put(self, key: str, value: str) -> None:
        """Write a value, if the store can be reached."""
        with suppress(Exception):
            self._store.key_value_set(key, value, allow_overwrite=True)

    def _end(self, message: str, status: int = 1) -> None:
        """End this process with an error message, unless it is already ending."""
        if self._ending.is_set():
            return
        self._ending.set()
        show_error(f"error: {message}")
        if self._process == 0:
            self._put(f"{ENDED}0", f"{status} {message}")
            time.sleep(GRACE)
        os._exit(status)  # A normal exit would wait for the other processes.


def _explain_abort(coordinator: str) -> None:
    """Report that process 0 has ended when JAX aborts this process for that reason.

    JAX aborts in a thread of its own, in C++. Handlers of Python's module `signal` do not run then.
    """
    if os.name != "posix":
        return
    host, _, port = coordinator.rpartition(":")

    def on_abort(number: int) -> None:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=GRACE).close()
        except OSError:
            show_error(f"error: process 0 of this run has ended, or cannot be reached; {AGAIN}")
            os._exit(1)

    global _on_abort  # The global keeps Python from freeing the C callback.
    _on_abort = ctypes.CFUNCTYPE(None, ctypes.c_int)(on_abort)
    ctypes.CDLL(None).signal(signal.SIGABRT, _on_abort)


def _listen_address(coordinator: str, process: int | None) -> str | None:
    """Return the address on which the first process listens, or None for JAX's choice.

    JAX listens on all addresses of the machine. The first process listens on the one that the user
    names, unless that is not an address of this machine, as behind NAT.

    Raises:
        UserError: unless the address is HOST:PORT and the first process can listen there. JAX would
            end with a segmentation fault if the port were taken.
    """
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise UserError(
            f"--coordinator={coordinator}: expected HOST:PORT with a port from 1 to 65535"
        )
    try:
        host.strip("[]").encode("idna")
    except UnicodeError as error:
        raise UserError(
            f"--coordinator={coordinator}: {host} is not a host name ({error}); check it"
        ) from error
    if process != 0 or "JAX_COORDINATOR_BIND_ADDRESS" in os.environ:
        return None
    address = _address_of_this_machine(host.strip("[]"))
    try:
        rendezvous.listen_on(address or "", int(port)).close()
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else one_line(error)
        raise UserError(
            f"--coordinator={coordinator}: cannot listen on the port ({reason}); "
            "choose another port, the same in all processes"
        ) from error
    if address is None:
        return None
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _address_of_this_machine(host: str) -> str | None:
    """Return the IP address of a host, or None if this machine cannot be reached under it.

    A name that leads to the loopback device on this machine leads elsewhere on the others.
    """
    try:
        family, *_, place = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
        socket.create_server((place[0], 0), family=family).close()
    except OSError:
        return None
    is_named = place[0] != host and host != "localhost"
    is_loopback = ipaddress.ip_address(place[0]).is_loopback
    return None if is_named and is_loopback else str(place[0])


def _number(name: str) -> int | None:
    """Return the number in an environment variable, or None if it is not set.

    Raises:
        UserError: if its value is not a number.
    """
    text = os.environ.get(name)
    if text is None:
        return None
    if not text.isdecimal():
        raise UserError(f"{name}={text!r} in the environment must be a number")
    return int(text)


def _is_cluster() -> bool:
    """Return whether JAX detects a launcher that has started several processes."""
    if rendezvous.is_only_task_of_slurm() or os.environ.get("OMPI_COMM_WORLD_SIZE") == "1":
        return False  # In a cluster, JAX would use one GPU and wait for all tasks of the job.
    launchers = [x for x in ClusterEnv._cluster_types if not x.opt_in_only_method]
    if "JOB_COMPLETION_INDEX" not in os.environ:
        launchers.remove(K8sCluster)  # K8sCluster needs an indexed job, and warns elsewhere.
    return any(launcher.is_env_present() for launcher in launchers)
