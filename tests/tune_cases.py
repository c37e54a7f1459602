"""A tiny pretrained encoder and a few digits to fine-tune it on."""

import flax.linen as nn
import jax
import numpy as np
from data_cases import data_config
from jax import numpy as jnp

from jaxssl.augment.views import Inputs
from jaxssl.data import source
from jaxssl.models import convnet, heads
from jaxssl.models.encoder import Encoder
from jaxssl.pretrained.encoder import PretrainedEncoder

SIZE = 8


def make_pretrained(net, variables, channels=1):
    """An encoder of images in [0, 1], without a projector."""
    inputs = Inputs(SIZE, channels, mean=(0.0,), std=(1.0,))
    encoder = Encoder(net, heads.mlp(proj_layers=0))
    return PretrainedEncoder(encoder, {"net": variables}, inputs, lambda seed: {}, {})


def tiny_encoder(channels=1):
    """One convolution and BatchNorm, with 6 features."""
    net = convnet.net(widths=(6,), strides=(2,))
    variables = net.init(jax.random.key(3), jnp.zeros((1, SIZE, SIZE, channels)), train=False)
    rng = np.random.default_rng(0)  # Initial BatchNorm statistics are only 0 and 1.
    stats = jax.tree.map(lambda x: x + rng.random(x.shape, np.float32), variables["batch_stats"])
    return make_pretrained(net, {"params": variables["params"], "batch_stats": stats}, channels)


class Flat(nn.Module):
    """A square matrix on the pixels."""

    @nn.compact
    def __call__(self, x, *, train, axis_name=None, keys=None):
        """Multiply the pixels of each image [n, s, s, 1] by the matrix."""
        matrix = self.param("matrix", lambda key: jnp.eye(SIZE * SIZE))
        return x.reshape(len(x), -1) @ matrix


def flat_encoder():
    """An encoder whose features are the pixels: the identity matrix."""
    return make_pretrained(Flat(), {"params": {"matrix": jnp.eye(SIZE * SIZE)}, "batch_stats": {}})


def digits(data_dir, n, split="train"):
    """The first n of a split of the digits."""
    return source.load(data_config(dir=str(data_dir)), split).take(np.arange(n))


def same(tree, other):
    """Return True if two trees are equal to the bit."""
    leaves, others = jax.tree.leaves(tree), jax.tree.leaves(other)
    return len(leaves) == len(others) and all(map(np.array_equal, leaves, others))
