"""Sizes and variables of networks that several tests need."""

from functools import partial

import jax
import numpy as np
from jax import numpy as jnp

KEY = jax.random.key(0)


def sizes(net, *shape):
    """Variables and output as shapes: nothing is computed."""
    return jax.eval_shape(
        partial(net.init_with_output, train=False), KEY, jax.ShapeDtypeStruct(shape, jnp.float32)
    )[::-1]


def seen_sizes(net, *shape):
    """The output of every module, in training, as shapes."""

    def apply(images):
        variables = net.init(KEY, images, train=False)
        mutable = ["intermediates", "batch_stats"]
        _, state = net.apply(
            variables, images, train=True, mutable=mutable, capture_intermediates=True
        )
        return {k: v["__call__"][0] for k, v in state["intermediates"].items() if k != "__call__"}

    return jax.eval_shape(apply, jax.ShapeDtypeStruct(shape, jnp.float32))


def count(variables):
    return sum(x.size for x in jax.tree.leaves(variables["params"]))


def normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def made_up(module, x):
    """Variables that need no compiled start: small normals, about 1 where a norm multiplies."""
    variables, _ = sizes(module, *x.shape)
    leaves, tree = jax.tree.flatten_with_path(variables)
    center = [float(path[-1].key in ("scale", "var")) for path, _ in leaves]
    noise = [0.3 * normal(*leaf.shape, seed=i) for i, (_, leaf) in enumerate(leaves)]
    return jax.tree.unflatten(tree, [c + z for c, z in zip(center, noise, strict=True)])
