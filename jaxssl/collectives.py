"""Collective operations between devices (gather, mean, ring shift), which no other file calls.

Every function takes ``axis_name``, the mapped axis of the surrounding `jaxssl.distributed.spmd`,
`jax.shard_map`, `jax.pmap` or `jax.vmap`. With ``axis_name=None`` arrays are global, and a
collective returns its argument.

The gradient of a global loss is ``mean(grad(local loss))``. This holds under `jax.pmap` and under
`jaxssl.distributed.spmd`, which sets ``check_vma=False``. With JAX's default, the gradients of
replicated parameters would be summed a second time.
"""

from typing import Any

from jax import Array, lax
from jax import numpy as jnp


def gather(x: Array, axis_name: str | None, *, axis: int = 0) -> Array:
    """Concatenate the arrays ``x`` of all devices along ``axis``, in device order."""
    return x if axis_name is None else lax.all_gather(x, axis_name, axis=axis, tiled=True)


def mean(tree: Any, axis_name: str | None) -> Any:
    """Average a tree of arrays over all devices, leaf by leaf."""
    return tree if axis_name is None else lax.pmean(tree, axis_name)


def sum(tree: Any, axis_name: str | None) -> Any:
    """Sum a tree of arrays over all devices, leaf by leaf."""
    return tree if axis_name is None else lax.psum(tree, axis_name)


def max(x: Array, axis_name: str | None) -> Array:
    """Return the largest entry of an array over all devices, without gradient."""
    x = lax.stop_gradient(jnp.max(x))
    return x if axis_name is None else lax.pmax(x, axis_name)


def ring_shift(tree: Any, axis_name: str) -> Any:
    """Send arrays to the next device of a ring. `device_count` shifts return them to the start."""
    size = lax.axis_size(axis_name)
    return lax.ppermute(tree, axis_name, [(i, (i + 1) % size) for i in range(size)])


def device_index(axis_name: str | None) -> Array:
    """Return the index of this device on the mapped axis, 0 <= index < `device_count`."""
    return jnp.int32(0) if axis_name is None else lax.axis_index(axis_name)


def device_count(axis_name: str | None) -> int:
    """Return the number of devices on the mapped axis ``axis_name``, 1 if it is None."""
    return 1 if axis_name is None else lax.axis_size(axis_name)
