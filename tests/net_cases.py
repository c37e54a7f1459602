"""Shapes and variables of networks for several tests."""

from functools import partial

import jax
import numpy as np
from jax import numpy as jnp

KEY = jax.random.key(0)


def init_shapes(net, *shape):
    """Return the shapes of variables and output, without computing them."""
    return jax.eval_shape(
        partial(net.init_with_output, train=False), KEY, jax.ShapeDtypeStruct(shape, jnp.float32)
    )[::-1]


def intermediate_shapes(net, *shape):
    """Return the shape of every submodule's output in training."""

    def apply(images):
        variables = net.init(KEY, images, train=False)
        mutable = ["intermediates", "batch_stats"]
        _, state = net.apply(
            variables, images, train=True, mutable=mutable, capture_intermediates=True
        )
        return {k: v["__call__"][0] for k, v in state["intermediates"].items() if k != "__call__"}

    return jax.eval_shape(apply, jax.ShapeDtypeStruct(shape, jnp.float32))


def count_params(variables):
    return sum(x.size for x in jax.tree.leaves(variables["params"]))


def normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def random_variables(module, x):
    """Return small normal variables, about 1 for scales and variances, without compiling `init`."""
    variables, _ = init_shapes(module, *x.shape)
    leaves, tree = jax.tree.flatten_with_path(variables)
    center = [float(path[-1].key in ("scale", "var")) for path, _ in leaves]
    noise = [0.3 * normal(*leaf.shape, seed=i) for i, (_, leaf) in enumerate(leaves)]
    return jax.tree.unflatten(tree, [c + z for c, z in zip(center, noise, strict=True)])
