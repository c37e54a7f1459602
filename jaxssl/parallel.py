"""The mesh and every collective: the only file that knows how work is spread over devices.

Functions take ``axis_name``: the mapped axis they run under (`spmd`, `jax.shard_map`, `jax.pmap` or
`jax.vmap`), or None, in which case arrays are global and a collective is the identity.

Gradients: take ``mean(grad(local loss))``. This is right under `jax.pmap` and under `spmd`, whose
``check_vma=False`` keeps JAX from summing the gradients of replicated parameters a second time.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

DATA_AXIS = "data"


def make_mesh(devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A one-dimensional mesh over ``devices`` (default: all), whose axis is `DATA_AXIS`."""
    devices = jax.devices() if devices is None else devices
    return Mesh(np.asarray(devices), (DATA_AXIS,))


def spmd(fn: Callable, mesh: Mesh, in_specs: Any, out_specs: Any) -> Callable:
    """`fn` run once per device of ``mesh``, each on its shard, with `DATA_AXIS` to talk over."""
    return jax.shard_map(fn, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def replicate(tree: Any, mesh: Mesh) -> Any:
    """`tree` with every array whole on every device."""
    return jax.device_put(tree, NamedSharding(mesh, P()))


def replicated_like(tree: Any, mesh: Mesh) -> Any:
    """The shapes and dtypes of ``tree``, to be replicated over ``mesh``; for restoring."""
    sharding = NamedSharding(mesh, P())
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree)


def data_sharding(mesh: Mesh) -> NamedSharding:
    """Leading axis split over the devices."""
    return NamedSharding(mesh, P(DATA_AXIS))


def shard(tree: Any, mesh: Mesh) -> Any:
    """`tree` with the leading axis of every array split over the devices."""
    return jax.device_put(tree, data_sharding(mesh))


def local_rows(n: int, mesh: Mesh) -> np.ndarray:
    """Which of n rows split over the devices lie on those of this process, sorted."""
    places = data_sharding(mesh).addressable_devices_indices_map((n,)).values()
    return np.unique(np.concatenate([np.arange(n)[place] for place in places]))


def shard_rows(tree: Any, mesh: Mesh) -> Any:
    """`shard` of arrays of which every process has its `local_rows`."""
    sharding = data_sharding(mesh)
    return jax.tree.map(lambda x: jax.make_array_from_process_local_data(sharding, x), tree)


def gather(x: Array, axis_name: str | None, *, axis: int = 0) -> Array:
    """Every device's ``x``, concatenated along ``axis`` in device order."""
    return x if axis_name is None else lax.all_gather(x, axis_name, axis=axis, tiled=True)


def mean(tree: Any, axis_name: str | None) -> Any:
    """The mean over devices, leaf by leaf."""
    return tree if axis_name is None else lax.pmean(tree, axis_name)


def total(tree: Any, axis_name: str | None) -> Any:
    """The sum over devices, leaf by leaf."""
    return tree if axis_name is None else lax.psum(tree, axis_name)


def largest(x: Array, axis_name: str | None) -> Array:
    """The largest entry on any device, a constant."""
    x = lax.stop_gradient(jnp.max(x))
    return x if axis_name is None else lax.pmax(x, axis_name)


def pass_on(tree: Any, axis_name: str) -> Any:
    """Every array to the next device of a ring; after `device_count` times it is home again."""
    size = lax.axis_size(axis_name)
    return lax.ppermute(tree, axis_name, [(i, (i + 1) % size) for i in range(size)])


def device_index(axis_name: str | None) -> Array:
    """Which device this is, 0 <= index < `device_count`."""
    return jnp.int32(0) if axis_name is None else lax.axis_index(axis_name)


def device_count(axis_name: str | None) -> int:
    """How many devices the axis spans."""
    return 1 if axis_name is None else lax.axis_size(axis_name)
