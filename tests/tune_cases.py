"""A tiny network and a few digits to train it on."""

import jax
import numpy as np
from conftest import data_config
from jax import numpy as jnp

from jaxssl.data import source
from jaxssl.evaluation.finetuning import Network
from jaxssl.models import convnet

SIZE = 8


def tiny_network(channels=1):
    """One convolution and BatchNorm, of 6 features."""
    net = convnet.net(widths=(6,), strides=(2,))
    variables = net.init(jax.random.key(3), jnp.zeros((1, SIZE, SIZE, channels)), train=False)
    rng = np.random.default_rng(0)  # not the statistics of a fresh network: all 0 and 1
    stats = jax.tree.map(lambda x: x + rng.random(x.shape, np.float32), variables["batch_stats"])

    def apply(variables, images, *, train, axis_name=None, keys=None):
        if not train:
            return net.apply(variables, images, train=False), variables
        h, new = net.apply(
            variables, images, train=True, axis_name=axis_name, mutable=["batch_stats"]
        )
        return h, {"params": variables["params"], **new}

    return Network(apply, {"params": variables["params"], "batch_stats": stats}, SIZE, channels)


def flat_network():
    """A matrix that is the identity at first; its features are the pixels."""

    def apply(variables, images, *, train, axis_name=None, keys=None):
        return images.reshape(len(images), -1) @ variables["params"]["matrix"], variables

    matrix = jnp.eye(SIZE * SIZE)
    return Network(apply, {"params": {"matrix": matrix}, "batch_stats": {}}, SIZE, 1)


def digits(data_dir, n, split="train"):
    """The first n of a split of the digits."""
    return source.load(data_config(dir=str(data_dir)), split).take(np.arange(n))


def same(tree, other):
    """Whether two trees are equal to the bit."""
    leaves, others = jax.tree.leaves(tree), jax.tree.leaves(other)
    return len(leaves) == len(others) and all(map(np.array_equal, leaves, others))
