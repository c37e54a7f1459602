"""Shapes and variables of networks for several tests."""

import math
import re
from functools import partial

import jax
import numpy as np
from jax import numpy as jnp

KEY = jax.random.key(0)


def init_shapes(net, *shape, dtype=jnp.float32):
    """Return the shapes of variables and output, without computing them."""
    init = partial(net.init_with_output, train=False)
    return jax.eval_shape(init, KEY, jax.ShapeDtypeStruct(shape, dtype))[::-1]


def intermediate_shapes(net, *shape):
    """Return the shape of every submodule's output in training."""

    def apply(images):
        variables = net.init(KEY, images, train=False)
        how = {"mutable": ["intermediates", "batch_stats"], "capture_intermediates": True}
        _, state = net.apply(variables, images, train=True, **how)
        return {k: v["__call__"][0] for k, v in state["intermediates"].items() if k != "__call__"}

    return jax.eval_shape(apply, jax.ShapeDtypeStruct(shape, jnp.float32))


def count_params(variables):
    return sum(x.size for x in jax.tree.leaves(variables["params"]))


def normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def random_variables(module, x):
    """Return small normal variables, about 1 for scales and variances, without compiling `init`."""
    variables, _ = init_shapes(module, *x.shape, dtype=x.dtype)
    leaves, tree = jax.tree.flatten_with_path(variables)
    center = [float(path[-1].key in ("scale", "var")) for path, _ in leaves]
    noise = [0.3 * normal(*leaf.shape, seed=i) for i, (_, leaf) in enumerate(leaves)]
    return jax.tree.unflatten(tree, [c + z for c, z in zip(center, noise, strict=True)])


def layer_norm(p, x, epsilon):
    """Return LayerNorm with scale and bias ``p`` in NumPy."""
    z = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon)
    return z * p["scale"] + p["bias"]


def transformer_block(p, x, heads, act, epsilon, *, causal=False, factors=(1, 1)):
    """Apply a pre-norm block to the tokens [t, dim] of one example, looping over the heads."""
    dense = lambda name, x: x @ p[name]["kernel"] + p[name]["bias"]  # noqa: E731
    qkv = dense("qkv", layer_norm(p["LayerNorm_0"], x, epsilon))
    dim, visible = x.shape[1], np.tri(len(x)) if causal else np.ones((len(x), len(x)))
    parts = []
    for head in np.split(np.arange(dim), heads):
        q, k, v = (qkv[:, dim * i + head] for i in range(3))
        weights = visible * np.exp(q @ k.T / math.sqrt(dim / heads))
        parts.append(weights / weights.sum(1, keepdims=True) @ v)
    x = x + factors[0] * dense("attention_out", np.concatenate(parts, axis=1))
    y = act(dense("mlp_in", layer_norm(p["LayerNorm_1"], x, epsilon)))
    return x + factors[1] * dense("mlp_out", y)


exact_gelu = np.vectorize(lambda u: u * (1 + math.erf(u / math.sqrt(2))) / 2)


def dtypes_of(lowered):
    """Return the dtypes in every line of a program that has one of three operations."""
    lines = lowered.as_text().splitlines()
    return {
        name: [set(re.findall(r"x(bf16|f32)>", line)) for line in lines if f".{name} " in line]
        for name in ("dot_general", "exponential", "rsqrt")
    }
