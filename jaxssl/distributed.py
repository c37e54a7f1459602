"""The device mesh, array placement, and the processes of a run on several hosts."""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxssl.errors import UserError, one_line

DATA_AXIS = "data"


def make_mesh(devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A one-dimensional mesh over ``devices`` (default: all), whose axis is `DATA_AXIS`."""
    devices = jax.devices() if devices is None else devices
    return Mesh(np.asarray(devices), (DATA_AXIS,))


def initialize(
    coordinator: str | None = None, processes: int | None = None, process: int | None = None
) -> None:
    """Join the processes of a run, on one or several hosts, before any other use of JAX.

    How many were started, and where, is told by the arguments, by the environment
    (JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES, JAX_PROCESS_ID), or by Slurm, Open MPI or the TPU
    pod, which JAX knows. Without any of these there is one process, and nothing is done.

    Args:
        coordinator: HOST:PORT at which the first process can be reached.
        processes: how many there are.
        process: which one this is, from 0.

    Raises:
        UserError: if the numbers do not fit, or the processes do not find together.
    """
    environment = os.environ
    if "host_platform_device_count" in environment.get("XLA_FLAGS", ""):
        _one_program_at_a_time()
    coordinator = coordinator or environment.get("JAX_COORDINATOR_ADDRESS")
    processes = _number("JAX_NUM_PROCESSES", environment) if processes is None else processes
    process = _number("JAX_PROCESS_ID", environment) if process is None else process
    if coordinator is None and not _is_cluster(environment):
        if processes is not None or process is not None:
            raise UserError("several processes need --coordinator=HOST:PORT, the first one's")
        return
    _one_program_at_a_time()
    # It would take SIGTERM for itself; the training loop stops all processes at one step.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(coordinator, processes, process)
    except (ValueError, RuntimeError) as error:
        raise UserError(
            f"the processes of this run do not find together (coordinator {coordinator}, process "
            f"{process} of {processes}): {one_line(error)}; give --coordinator, --num_processes, "
            "--process_id"
        ) from error


def _one_program_at_a_time() -> None:
    """On CPUs: collectives of two programs could wait for each other's threads for ever."""
    jax.config.update("jax_cpu_enable_async_dispatch", False)


def _number(name: str, environment: Mapping[str, str]) -> int | None:
    text = environment.get(name)
    if text is None:
        return None
    if not text.isdecimal():
        raise UserError(f"{name}={text!r} in the environment must be a number")
    return int(text)


def _is_cluster(environment: Mapping[str, str]) -> bool:
    """Whether a launcher has started several processes that JAX can find by itself."""
    tasks = environment.get("SLURM_STEP_NUM_TASKS", environment.get("SLURM_NTASKS", "1"))
    if "SLURM_STEP_NODELIST" in environment and tasks != "1":
        return True
    if environment.get("OMPI_COMM_WORLD_SIZE", "1") != "1":
        return True
    pod = "," in environment.get("TPU_WORKER_HOSTNAMES", "")
    return pod or environment.get("MEGASCALE_NUM_SLICES", "1") != "1"


def process_count() -> int:
    """How many processes share the run."""
    return jax.process_count()


def process_index() -> int:
    """Which of the processes this is, from 0."""
    return jax.process_index()


def is_first_process() -> bool:
    """Whether this is the process that writes."""
    return process_index() == 0


def any_process(flag: bool) -> bool:
    """Whether the flag is set in one of the processes; all of them must ask."""
    return bool(flag) if process_count() == 1 else bool(gather_processes(np.int32(flag)).any())


def raise_together(check: Callable[[], None]) -> None:
    """Call ``check`` in all processes; if it raises in one, none goes on to wait for that one.

    Raises:
        Exception: that of this process.
        UserError: if another process has one.
    """
    error: Exception | None = None
    try:
        check()
    except Exception as caught:  # raised below, in every process
        error = caught
    if any_process(error is not None):
        raise error or UserError("another process of this run has stopped; see its message")


def gather_processes(x: np.ndarray) -> np.ndarray:
    """Every process' ``x``, of one shape, along a new first axis."""
    x = np.asarray(x)
    if process_count() == 1:
        return x[None]
    return np.asarray(multihost_utils.process_allgather(x))


def round_up(n: int, multiple: int) -> int:
    """Return the smallest multiple of ``multiple`` that is not below n."""
    return -(-n // multiple) * multiple


def pad_rows(x: np.ndarray, num_rows: int, value: float = 0) -> np.ndarray:
    """Append rows of ``value`` to x [n, ...] up to ``num_rows`` rows."""
    widths = [(0, num_rows - len(x))] + [(0, 0)] * (x.ndim - 1)
    return np.pad(x, widths, constant_values=value)


def gather_process_rows(x: np.ndarray) -> np.ndarray:
    """Every process' rows of ``x`` [n, ...], of which each may have another number, in order."""
    if process_count() == 1:
        return np.asarray(x)
    sizes = gather_processes(np.int32(len(x)))
    padded = gather_processes(pad_rows(x, sizes.max()))
    return np.concatenate([rows[:size] for rows, size in zip(padded, sizes, strict=True)])


def mean_over_processes(x: np.ndarray) -> float:
    """The mean of every process' numbers ``x`` [n], of which each may have another number."""
    sums = gather_processes(np.float32([np.sum(x), len(x)])).astype(np.float64).sum(axis=0)
    return float(sums[0] / sums[1])


def process_slice(n: int) -> slice:
    """Which of n rows are this process', if each takes about as many of them, in order."""
    share = [round(n * i / process_count()) for i in range(process_count() + 1)]
    return slice(*share[process_index() :][:2])


def local_mesh() -> Mesh:
    """A mesh over the devices of this process alone."""
    return make_mesh(jax.local_devices())


def on_first_process(action: Callable[[], None]) -> None:
    """Call ``action`` in the first process; the others wait for it, and fail if it does."""
    raise_together(action if is_first_process() else lambda: None)


def spmd(fn: Callable, mesh: Mesh, in_specs: Any, out_specs: Any) -> Callable:
    """`fn` run once per device of ``mesh``, each on its shard, with `DATA_AXIS` to talk over."""
    return jax.shard_map(fn, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def replicated_sharding(mesh: Mesh) -> NamedSharding:
    """Whole on every device."""
    return NamedSharding(mesh, P())


def replicate(tree: Any, mesh: Mesh) -> Any:
    """`tree` with every array whole on every device; of several processes, each has it in NumPy."""
    sharding = replicated_sharding(mesh)
    if sharding.is_fully_addressable:
        return jax.device_put(tree, sharding)
    whole = partial(jax.make_array_from_process_local_data, sharding)
    return jax.tree.map(lambda x: whole(np.asarray(x), np.shape(x)), tree)


def replicate_locally(tree: Any, mesh: Mesh) -> Any:
    """Arrays that every process has whole, on a mesh of this process' devices."""
    return replicate(jax.tree.map(lambda x: x.addressable_data(0), tree), mesh)


def replicate_global(x: Array, mesh: Mesh) -> Array:
    """A global array, whole on every device of its mesh."""
    return jax.jit(_same, out_shardings=replicated_sharding(mesh))(x)


def _same(x: Array) -> Array:
    return x


def data_sharding(mesh: Mesh) -> NamedSharding:
    """Leading axis split over the devices."""
    return NamedSharding(mesh, P(DATA_AXIS))


def split_sharding(shape: Sequence[int], mesh: Mesh) -> NamedSharding:
    """The longest axis that the devices divide split over them; whole if there is none."""
    lengths = [n if n % mesh.size == 0 else 0 for n in shape]
    if mesh.size == 1 or not any(lengths):
        return replicated_sharding(mesh)
    axis = int(np.argmax(lengths))
    return NamedSharding(mesh, P(*[None] * axis, DATA_AXIS))


def shard(tree: Any, mesh: Mesh) -> Any:
    """`tree` with the leading axis of every array split over the devices."""
    return jax.device_put(tree, data_sharding(mesh))


def local_rows(n: int, mesh: Mesh) -> np.ndarray:
    """Which of n rows split over the devices lie on those of this process, sorted."""
    places = data_sharding(mesh).addressable_devices_indices_map((n,)).values()
    return np.unique(np.concatenate([np.arange(n)[place] for place in places]))


def shard_rows(tree: Any, mesh: Mesh, *, axis: int = 0) -> Any:
    """Arrays split along ``axis``, of which every process has its `local_rows`."""
    sharding = NamedSharding(mesh, P(*[None] * axis, DATA_AXIS))
    return jax.tree.map(lambda x: jax.make_array_from_process_local_data(sharding, x), tree)


def take_rows(tree: Any, places: Array) -> Any:
    """The rows ``places`` of every array; an array of fewer rows, of packed examples, is kept."""
    return jax.tree.map(lambda x: x.at[places[: len(x)]].get(mode="promise_in_bounds"), tree)
