"""Collective operations over a mapped axis: the only file that calls them.

Every function takes ``axis_name``, the mapped axis it runs under (`jaxssl.distributed.spmd`,
`jax.shard_map`, `jax.pmap` or `jax.vmap`). With ``axis_name=None`` arrays are global, and a
collective returns its argument.

The gradient of a global loss is ``mean(grad(local loss))``. This holds under `jax.pmap` and under
`jaxssl.distributed.spmd`, whose ``check_vma=False`` keeps JAX from summing the gradients of
replicated parameters a second time.
"""

from typing import Any

from jax import Array, lax
from jax import numpy as jnp


def gather(x: Array, axis_name: str | None, *, axis: int = 0) -> Array:
    """Every device's ``x``, concatenated along ``axis`` in device order."""
    return x if axis_name is None else lax.all_gather(x, axis_name, axis=axis, tiled=True)


def mean(tree: Any, axis_name: str | None) -> Any:
    """The mean over devices, leaf by leaf."""
    return tree if axis_name is None else lax.pmean(tree, axis_name)


def sum(tree: Any, axis_name: str | None) -> Any:
    """The sum over devices, leaf by leaf."""
    return tree if axis_name is None else lax.psum(tree, axis_name)


def max(x: Array, axis_name: str | None) -> Array:
    """The largest entry on any device, a constant."""
    x = lax.stop_gradient(jnp.max(x))
    return x if axis_name is None else lax.pmax(x, axis_name)


def ring_shift(tree: Any, axis_name: str) -> Any:
    """Every array to the next device of a ring; after `device_count` times it is home again."""
    size = lax.axis_size(axis_name)
    return lax.ppermute(tree, axis_name, [(i, (i + 1) % size) for i in range(size)])


def device_index(axis_name: str | None) -> Array:
    """Which device this is, 0 <= index < `device_count`."""
    return jnp.int32(0) if axis_name is None else lax.axis_index(axis_name)


def device_count(axis_name: str | None) -> int:
    """How many devices the axis spans."""
    return 1 if axis_name is None else lax.axis_size(axis_name)
