"""Small networks, and the steps of methods, for tests that combine them by hand."""

from functools import partial

import flax.linen as nn
import jax
import numpy as np
from jax import numpy as jnp

B, DIM, NUM_EXAMPLES, KEY = 6, 4, 24, jax.random.key(0)


class Net(nn.Module):
    """Mean over pixels and a Dense layer, for any image size, with or without BatchNorm."""

    width: int = 5
    norm: bool = False

    @nn.compact
    def __call__(self, x, *, train, axis_name=None, keys=None):
        x = jnp.tanh(nn.Dense(self.width)(x.reshape(x.shape[0], -1, x.shape[-1]).mean(1)))
        return nn.BatchNorm(use_running_average=not train)(x) if self.norm else x


class Head(nn.Module):
    """One Dense layer."""

    @nn.compact
    def __call__(self, x, *, train, axis_name=None):
        return nn.Dense(DIM)(x)


def as_numpy(state):
    """Return a training state as NumPy arrays, which later steps do not donate."""
    return jax.tree.map(np.asarray, state.replace(key=jax.random.key_data(state.key)))


def start(method, batch):
    return jax.jit(partial(method.init, num_examples=NUM_EXAMPLES))(KEY, batch)


def value_of(method, params, carried, batch, step=0):
    """Return the loss, its gradient, the carried state and the embeddings."""

    @jax.jit
    def run(params, carried, batch, step):
        loss = partial(method.loss, step=step, key=KEY, axis_name=None)
        return jax.value_and_grad(loss, has_aux=True)(params, carried, batch)

    (value, (carried, _, embeddings)), gradient = run(params, carried, batch, jnp.int32(step))
    return value, gradient, carried, embeddings


def first_step(method, batch):
    """Return the initial parameters and carried state, and what `value_of` returns for them."""
    params, carried = start(method, batch)
    return params, carried, *value_of(method, params, carried, batch)


def embed(params, images, names=("net", "projector")):
    """Apply the networks by hand to images [V, b, h, w, c]; return [V, b, d]."""
    x = images.reshape(-1, *images.shape[2:])
    for name, module in (("net", Net()), ("projector", Head()), ("predictor", Head())):
        if name in names:
            x = module.apply({"params": params[name]}, x, train=False)
    return x.reshape(*images.shape[:2], -1)
