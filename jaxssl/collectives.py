"""Collective operations between devices (gather, mean, ring shift), which no other file calls.

``axis_name`` is the mapped axis of the surrounding `jaxssl.distributed.spmd`, `jax.shard_map`,
`jax.pmap` or `jax.vmap`. With ``axis_name=None`` arrays are global, and nothing is sent.

The gradient of a global loss is ``mean(grad(local loss))``. This holds under `jax.pmap` and under
`jaxssl.distributed.spmd`, which sets ``check_vma=False``. With JAX's default, `check_vma=True`,
every array has a type that says whether it varies over the axis, and the gradient of an array that
does not vary is summed over devices already. `vary` changes the type, and the rule holds again.
"""

from typing import TypeVar

import jax
from jax import Array, lax
from jax import numpy as jnp

T = TypeVar("T")  # a tree of arrays


def gather(x: Array, axis_name: str | None, *, axis: int = 0, equal: bool = False) -> Array:
    """Concatenate the arrays ``x`` of all devices along ``axis``, in device order.

    Args:
        x: array of this device.
        axis_name: mapped axis, or None.
        axis: dimension of ``x``.
        equal: give the result the type of an array that is equal on all devices, for memory. No
            gradient then flows to the embeddings of other devices.
    """
    if axis_name is None:
        return x
    if equal and _marks_arrays(axis_name):
        return lax.all_gather(vary(x, axis_name), axis_name, axis=axis, tiled=True, to="invarying")
    return lax.all_gather(x, axis_name, axis=axis, tiled=True)


def mean(tree: T, axis_name: str | None) -> T:
    """Average a tree of arrays over all devices, leaf by leaf."""
    return tree if axis_name is None else lax.pmean(tree, axis_name)


def sum(tree: T, axis_name: str | None, *, groups: list[list[int]] | None = None) -> T:
    """Sum a tree of arrays over all devices, or over the devices of each group, leaf by leaf."""
    return tree if axis_name is None else lax.psum(tree, axis_name, axis_index_groups=groups)


def max(x: Array, axis_name: str | None) -> Array:
    """Return the largest entry of an array over all devices, -inf without entries; no gradient."""
    x = lax.stop_gradient(jnp.max(x, initial=-jnp.inf))
    return x if axis_name is None else lax.pmax(x, axis_name)


def ring_shift(tree: T, axis_name: str) -> T:
    """Send arrays to the next device of a ring. `device_count` shifts return them to the start."""
    size = lax.axis_size(axis_name)
    return lax.ppermute(tree, axis_name, [(i, (i + 1) % size) for i in range(size)])


def device_index(axis_name: str | None) -> Array:
    """Return the index of this device on the mapped axis, 0 <= index < `device_count`."""
    return jnp.int32(0) if axis_name is None else lax.axis_index(axis_name)


def device_count(axis_name: str | None) -> int:
    """Return the number of devices on the mapped axis ``axis_name``, 1 if it is None."""
    return 1 if axis_name is None else lax.axis_size(axis_name)


def is_replicated(x: Array, axis_name: str | None) -> bool:
    """Return whether ``x`` is known to be equal on all devices of the axis.

    False under `jax.pmap` and ``check_vma=False``, where this is not known.
    """
    if axis_name is None:
        return True
    return _marks_arrays(axis_name) and axis_name not in _varying_axes(x)


def vary(tree: T, axis_name: str | None) -> T:
    """Mark arrays equal on all devices as varying, where `jax.shard_map` checks such marks."""
    if axis_name is None:
        return tree
    return align((tree, device_index(axis_name)))[0]


def align(tree: T) -> T:
    """Mark all arrays as varying over every axis over which one of them varies.

    Loops need this for their carry, and custom gradients for their arguments, under
    `jax.shard_map` with ``check_vma=True``. Elsewhere arrays are unchanged.
    """
    axes = frozenset[str]().union(*(_varying_axes(x) for x in jax.tree.leaves(tree)))

    def cast(x: Array) -> Array:
        missing = tuple(sorted(axes - _varying_axes(x)))
        return lax.pcast(x, missing, to="varying") if missing else x

    return jax.tree.map(cast, tree)


def _marks_arrays(axis_name: str) -> bool:
    """Return whether the axis belongs to a `jax.shard_map` with ``check_vma=True``."""
    return axis_name in _varying_axes(lax.axis_index(axis_name))


def _varying_axes(x: Array) -> frozenset[str]:
    return jax.typeof(x).manual_axis_type.varying
