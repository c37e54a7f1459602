"""The device mesh, the placement of arrays, and communication between the processes of a run."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar, cast

import jax
import numpy as np
from jax import Array
from jax import numpy as jnp
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxssl.errors import LostProcess, UserError

DATA_AXIS = "data"
T = TypeVar("T")


# The processes of a run


def process_count() -> int:
    """Return the number of processes of the run."""
    return jax.process_count()


def process_index() -> int:
    """Return the index of this process, from 0."""
    return jax.process_index()


def is_first_process() -> bool:
    """Return True in process 0, which writes the logs and results."""
    return process_index() == 0


def gather_processes(x: np.ndarray) -> np.ndarray:
    """Stack arrays of one shape from all processes along a new first axis."""
    x = np.asarray(x)
    if process_count() == 1:
        return x[None]
    return np.asarray(multihost_utils.process_allgather(x))


def gather_process_texts(text: str) -> list[str]:
    """Return the texts of all processes, which may differ in length."""
    codes = np.frombuffer(text.encode(), np.uint8)
    sizes = gather_processes(np.asarray(len(codes), np.int32))
    padded = gather_processes(pad_rows(codes, sizes.max()))
    return [row[:size].tobytes().decode() for row, size in zip(padded, sizes, strict=True)]


def any_process(flag: bool) -> bool:
    """Return True if ``flag`` is True in any process of the run. All processes must call this."""
    return bool(flag) if process_count() == 1 else bool(gather_processes(np.asarray(flag)).any())


def raise_together(check: Callable[[], T]) -> T:
    """Return ``check()``, called in all processes, and raise in all of them if one raises.

    Otherwise the other processes would wait for the failed one.

    Raises:
        Exception: the exception of this process.
        UserError: if another process failed. It is `LostProcess` if that process may be retried.
    """
    result, error = None, None
    try:
        result = check()
    except Exception as caught:  # The exception is raised below, in every process at once.
        error = caught
    status = 0 if error is None else error.status if isinstance(error, UserError) else 1
    statuses = gather_processes(np.asarray(status, np.int32))
    if statuses.any():
        other = LostProcess if 1 in statuses else UserError
        raise error or other("another process of this run has stopped; see its message")
    return cast(T, result)


def on_first_process(action: Callable[[], T]) -> T | None:
    """Return ``action()`` in the first process. The others wait, and fail if it fails."""
    return raise_together(action if is_first_process() else lambda: None)


# The device mesh and its shardings


def make_mesh(devices: Sequence[object] | None = None) -> Mesh:
    """Return a one-dimensional mesh over ``devices`` (default: all) with the axis `DATA_AXIS`."""
    devices = jax.devices() if devices is None else devices
    return Mesh(np.asarray(devices), (DATA_AXIS,))


def spmd(fn: Callable, mesh: Mesh, in_specs: object, out_specs: object) -> Callable:
    """Map ``fn`` over the devices of ``mesh`` and their shards, with the axis name `DATA_AXIS`."""
    return jax.shard_map(fn, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def replicated_sharding(mesh: Mesh) -> NamedSharding:
    """Return the sharding of an array that every device holds in full."""
    return NamedSharding(mesh, P())


def data_sharding(mesh: Mesh, axis: int = 0) -> NamedSharding:
    """Return the sharding that splits an axis, by default the first, over the devices."""
    return NamedSharding(mesh, P(*[None] * axis, DATA_AXIS))


def connect_devices() -> None:
    """Let the devices of all processes communicate once. All processes must call this.

    On CPUs JAX waits 30 seconds for the first communication of a group of devices, and without a
    limit later. Processes that compile their first step at different speeds need the latter.
    """
    mesh, local = make_mesh(), np.zeros(jax.local_device_count(), np.int32)
    jax.jit(jnp.sum, out_shardings=replicated_sharding(mesh))(shard_rows(local, mesh))
    any_process(False)  # communicates between one device of each process


def split_sharding(shape: Sequence[int], mesh: Mesh) -> NamedSharding:
    """Return the sharding that splits the longest axis that the number of devices divides.

    Vectors, which are small, and arrays without such an axis are replicated.
    """
    divisible = [axis for axis, n in enumerate(shape) if n > 0 and n % mesh.size == 0]
    if mesh.size == 1 or len(shape) < 2 or not divisible:
        return replicated_sharding(mesh)
    return data_sharding(mesh, max(divisible, key=lambda axis: shape[axis]))


def local_rows(n: int, mesh: Mesh) -> np.ndarray:
    """Return the indices, among n sharded rows, of the rows on the devices of this process."""
    slices = data_sharding(mesh).addressable_devices_indices_map((n,)).values()
    return np.unique(np.concatenate([np.arange(n)[index] for index in slices]))


# Arrays on the device mesh


def replicate(tree: T, mesh: Mesh) -> T:
    """Copy every array of ``tree`` to all devices. Each process has the same NumPy arrays."""
    sharding = replicated_sharding(mesh)
    if sharding.is_fully_addressable:
        return jax.device_put(tree, sharding)
    make_array = partial(jax.make_array_from_process_local_data, sharding)
    return jax.tree.map(lambda x: make_array(np.asarray(x), np.shape(x)), tree)


def replicate_global(x: T, mesh: Mesh) -> T:
    """Replicate a global array, or a tree of them, over all devices of the mesh."""
    return jax.jit(_same, out_shardings=replicated_sharding(mesh))(x)


def _same(x: T) -> T:
    return x


def local_view(tree: T, mesh: Mesh) -> tuple[T, Mesh]:
    """Return whole arrays on the devices of this process, and the mesh of these devices.

    Split arrays are replicated first, so that all processes must call this.
    """
    arrays = [x for x in jax.tree.leaves(tree) if isinstance(x, Array)]
    if not all(x.is_fully_replicated for x in arrays):
        tree = replicate_global(tree, mesh)
    local = make_mesh(mesh.local_devices)
    if local.size == mesh.size:
        return tree, mesh

    def view(x: Array) -> Array:
        copies = [shard.data for shard in x.addressable_shards]
        return jax.make_array_from_single_device_arrays(x.shape, replicated_sharding(local), copies)

    return jax.tree.map(view, tree), local


def shard(tree: object, mesh: Mesh) -> Any:
    """Split the first axis of every array of ``tree``, the same in each process, over devices."""
    return jax.device_put(tree, data_sharding(mesh))


def shard_rows(tree: object, mesh: Mesh, *, axis: int = 0) -> Any:
    """Build global arrays, split along ``axis``, from the rows that each process holds."""
    sharding = data_sharding(mesh, axis)
    return jax.tree.map(lambda x: jax.make_array_from_process_local_data(sharding, x), tree)


def take_rows(tree: T, indices: Array) -> T:
    """Select rows of every array [n, ...] by indices in [0, n), without a check of this range.

    An array with fewer rows than indices, such as packed graphs, uses the first n indices.
    """
    return jax.tree.map(lambda x: x.at[indices[: len(x)]].get(mode="promise_in_bounds"), tree)


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


def round_up(n: int, multiple: int) -> int:
    """Return the smallest multiple of ``multiple`` that is >= n."""
    return -(-n // multiple) * multiple


def pad_rows(x: np.ndarray, num_rows: int) -> np.ndarray:
    """Append rows of zeros to x [n, ...] up to ``num_rows`` rows. x is returned if it has them."""
    if len(x) == num_rows:
        return x
    return np.pad(x, [(0, num_rows - len(x))] + [(0, 0)] * (x.ndim - 1))
