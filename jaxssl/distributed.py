"""The device mesh, array placement, and the processes of a run on several hosts."""

import ipaddress
import os
import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, cast

import jax
import numpy as np
from jax import Array
from jax import numpy as jnp
from jax._src import distributed as jax_distributed
from jax._src.clusters import ClusterEnv, K8sCluster
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxssl.errors import UserError, one_line

DATA_AXIS = "data"
# Seconds without a heartbeat after which JAX aborts the processes of a run. Commands notice a lost
# process earlier (`jaxssl.training.peers`).
HEARTBEAT = 100
# Seconds that a process which has finished waits for the others.
SHUTDOWN = 24 * 3600
T = TypeVar("T")


def make_mesh(devices: Sequence[object] | None = None) -> Mesh:
    """Return a one-dimensional mesh over ``devices`` (default: all) with the axis `DATA_AXIS`."""
    devices = jax.devices() if devices is None else devices
    return Mesh(np.asarray(devices), (DATA_AXIS,))


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
    environment = os.environ
    if "host_platform_device_count" in environment.get("XLA_FLAGS", ""):
        _one_program_at_a_time()
    coordinator = coordinator or environment.get("JAX_COORDINATOR_ADDRESS")
    processes = _number("JAX_NUM_PROCESSES", environment) if processes is None else processes
    process = _number("JAX_PROCESS_ID", environment) if process is None else process
    if coordinator is None and not _is_cluster(environment):
        if processes is not None or process is not None:
            raise UserError(
                "several processes need the address of the first one; pass --coordinator=HOST:PORT"
            )
        return
    listen = None if coordinator is None else _listen_address(coordinator, process)
    _one_program_at_a_time()
    # JAX's preemption service would take over SIGTERM. The training loop handles the signal, so
    # that all processes stop at the same step.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            coordinator,
            processes,
            process,
            coordinator_bind_address=listen,
            heartbeat_timeout_seconds=HEARTBEAT,
            shutdown_timeout_seconds=SHUTDOWN,
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
    except Exception as error:  # also AssertionError
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
    for process in range(process_count()):
        if numbers[process] != numbers[0]:
            raise UserError(
                f"process {process} has {numbers[process]} devices, process 0 has {numbers[0]}; "
                "let every process see the same number of devices"
            )


def key_value_store() -> Any:
    """Return the client of JAX's key-value store, which the first process of a run serves."""
    return jax_distributed.global_state.client  # not public; Orbax uses it in the same way


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
    if process != 0 or "JAX_COORDINATOR_BIND_ADDRESS" in os.environ:
        return None
    address = _address_of_this_machine(host.strip("[]"))
    try:
        if address:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            socket.create_server((address, int(port)), family=family).close()
        else:
            dual = socket.has_dualstack_ipv6()
            family = socket.AF_INET6 if dual else socket.AF_INET
            socket.create_server(("", int(port)), family=family, dualstack_ipv6=dual).close()
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
    """Return the IP address of a host, or None if this machine cannot listen on it.

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


def _one_program_at_a_time() -> None:
    """Run CPU programs one at a time, because collectives of two programs could deadlock."""
    jax.config.update("jax_cpu_enable_async_dispatch", False)


def _number(name: str, environment: Mapping[str, str]) -> int | None:
    text = environment.get(name)
    if text is None:
        return None
    if not text.isdecimal():
        raise UserError(f"{name}={text!r} in the environment must be a number")
    return int(text)


def _is_cluster(environment: Mapping[str, str]) -> bool:
    """Return whether JAX detects a launcher that has started several processes."""
    tasks = environment.get("SLURM_STEP_NUM_TASKS", environment.get("SLURM_NTASKS"))
    if "1" in (tasks, environment.get("OMPI_COMM_WORLD_SIZE")):
        return False  # JAX would use one GPU, and wait for the other tasks of an interactive job.
    launchers = [x for x in ClusterEnv._cluster_types if not x.opt_in_only_method]
    if "JOB_COMPLETION_INDEX" not in environment:
        launchers.remove(K8sCluster)  # It needs an indexed job, and warns elsewhere.
    return any(launcher.is_env_present() for launcher in launchers)


def process_count() -> int:
    """Return the number of processes of the run."""
    return jax.process_count()


def process_index() -> int:
    """Return the index of this process, from 0."""
    return jax.process_index()


def is_first_process() -> bool:
    """Return True in process 0, which writes the logs and results."""
    return process_index() == 0


def any_process(flag: bool) -> bool:
    """Return True if the flag is set in any process of the run. All processes must call this."""
    return bool(flag) if process_count() == 1 else bool(gather_processes(np.asarray(flag)).any())


def raise_together(check: Callable[[], T]) -> T:
    """Return ``check()``, called in all processes, and raise in all of them if one raises.

    Otherwise the other processes would wait for the failed one.

    Raises:
        Exception: the exception of this process.
        UserError: if another process failed.
    """
    result, error = None, None
    try:
        result = check()
    except Exception as caught:  # The exception is raised below, in every process at once.
        error = caught
    if any_process(error is not None):
        raise error or UserError("another process of this run has stopped; see its message")
    return cast(T, result)


def gather_processes(x: np.ndarray) -> np.ndarray:
    """Stack arrays of one shape from all processes along a new first axis."""
    x = np.asarray(x)
    if process_count() == 1:
        return x[None]
    return np.asarray(multihost_utils.process_allgather(x))


def round_up(n: int, multiple: int) -> int:
    """Return the smallest multiple of ``multiple`` that is >= n."""
    return -(-n // multiple) * multiple


def pad_rows(x: np.ndarray, num_rows: int) -> np.ndarray:
    """Append rows of zeros to x [n, ...] up to ``num_rows`` rows."""
    return np.pad(x, [(0, num_rows - len(x))] + [(0, 0)] * (x.ndim - 1))


def gather_process_texts(text: bytes) -> list[bytes]:
    """Return the texts of all processes, which may differ in length."""
    x = np.frombuffer(text, np.uint8)
    sizes = gather_processes(np.asarray(len(x), np.int32))
    padded = gather_processes(pad_rows(x, sizes.max()))
    return [row[:size].tobytes() for row, size in zip(padded, sizes, strict=True)]


def on_first_process(action: Callable[[], T]) -> T | None:
    """Return ``action()`` in the first process. The others wait, and fail if it fails."""
    return raise_together(action if is_first_process() else lambda: None)


def spmd(fn: Callable, mesh: Mesh, in_specs: object, out_specs: object) -> Callable:
    """Map ``fn`` over the devices of ``mesh`` and their shards, with the axis name `DATA_AXIS`."""
    return jax.shard_map(fn, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def replicated_sharding(mesh: Mesh) -> NamedSharding:
    """Return the sharding of an array that every device holds in full."""
    return NamedSharding(mesh, P())


def replicate(tree: T, mesh: Mesh) -> T:
    """Copy every array of ``tree``, which each process holds in NumPy, to all devices."""
    sharding = replicated_sharding(mesh)
    if sharding.is_fully_addressable:
        return jax.device_put(tree, sharding)
    whole = partial(jax.make_array_from_process_local_data, sharding)
    return jax.tree.map(lambda x: whole(np.asarray(x), np.shape(x)), tree)


def local_view(tree: T, mesh: Mesh) -> tuple[T, Mesh]:
    """Return whole arrays on the devices of this process, and the mesh of these devices."""
    arrays = [x for x in jax.tree.leaves(tree) if isinstance(x, Array)]
    if not all(x.is_fully_replicated for x in arrays):
        tree = replicate_global(tree, mesh)
    local = make_mesh(mesh.local_devices)
    if local.size == mesh.size:
        return tree, mesh

    def view(x: Array) -> Array:
        parts = [shard.data for shard in x.addressable_shards]
        return jax.make_array_from_single_device_arrays(x.shape, replicated_sharding(local), parts)

    return jax.tree.map(view, tree), local


def replicate_global(x: T, mesh: Mesh) -> T:
    """Replicate a global array, or a tree of them, over all devices of the mesh."""
    return jax.jit(_same, out_shardings=replicated_sharding(mesh))(x)


def _same(x: T) -> T:
    return x


def copy_to_host(arrays: Sequence[object]) -> list[np.ndarray]:
    """Return whole arrays, and the bits of random keys, in every process.

    Arrays that are split over the devices of several processes are gathered. All processes must
    call this with the same arrays.
    """
    for x in arrays:
        if isinstance(x, Array) and not jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x.copy_to_host_async()
    return [_copy_to_host(x) for x in arrays]


def _copy_to_host(x: object) -> np.ndarray:
    if isinstance(x, Array):
        if not x.is_fully_addressable:
            if not x.is_fully_replicated:
                return np.asarray(multihost_utils.process_allgather(x, tiled=True))
            x = x.addressable_data(0)
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x = jax.random.key_data(x)
    return np.asarray(x)


def data_sharding(mesh: Mesh) -> NamedSharding:
    """Return the sharding that splits the leading axis over the devices."""
    return NamedSharding(mesh, P(DATA_AXIS))


def split_sharding(shape: Sequence[int], mesh: Mesh) -> NamedSharding:
    """Return the sharding that splits the longest axis that the number of devices divides.

    Vectors, which are small, and arrays without such an axis are replicated.
    """
    lengths = [n if n % mesh.size == 0 else 0 for n in shape]
    if mesh.size == 1 or len(shape) < 2 or not any(lengths):
        return replicated_sharding(mesh)
    axis = int(np.argmax(lengths))
    return NamedSharding(mesh, P(*[None] * axis, DATA_AXIS))


def shard(tree: object, mesh: Mesh) -> Any:
    """Split the leading axis of every array of ``tree`` over the devices."""
    return jax.device_put(tree, data_sharding(mesh))


def local_rows(n: int, mesh: Mesh) -> np.ndarray:
    """Return the indices, among n sharded rows, of the rows on the devices of this process."""
    slices = data_sharding(mesh).addressable_devices_indices_map((n,)).values()
    return np.unique(np.concatenate([np.arange(n)[index] for index in slices]))


def shard_rows(tree: object, mesh: Mesh, *, axis: int = 0) -> Any:
    """Build global arrays, split along ``axis``, from the rows that each process holds."""
    sharding = NamedSharding(mesh, P(*[None] * axis, DATA_AXIS))
    return jax.tree.map(lambda x: jax.make_array_from_process_local_data(sharding, x), tree)


def take_rows(tree: T, indices: Array) -> T:
    """Select rows of every array of a batch by index. Packed arrays may be shorter."""
    return jax.tree.map(lambda x: x.at[indices[: len(x)]].get(mode="promise_in_bounds"), tree)
