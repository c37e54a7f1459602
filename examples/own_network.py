"""Train a network of your own: a small MLP-Mixer.

    jaxssl train --config.net.name=examples/own_network.py:SmallMixer --workdir runs/own_network
    python examples/own_network.py

The attributes of the class with a plain default are settings, such as --config.net.width=256. A
network may also be the class of a Flax NNX module, or a pair of pure functions (init, apply).
"""

from typing import Any

from flax import linen as nn
from jax import Array

import jaxssl


class SmallMixer(nn.Module):
    """Apply one layer to every patch of an image, and then one layer to all patches together."""

    width: int = 128
    patch: int = 4

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Map images [n, h, w, c] to features [n, width]."""
        n, h, w, c = x.shape
        side = self.patch
        patches = x.reshape(n, h // side, side, w // side, side, c).swapaxes(2, 3)
        patches = patches.reshape(n, -1, side * side * c)
        hidden = nn.gelu(nn.Dense(self.width)(patches))
        return nn.gelu(nn.Dense(self.width)(hidden.reshape(n, -1)))


def main(workdir: str = "runs/own_network", config: Any = "digits") -> jaxssl.Run:
    """Pretrain the network with the config of the digits, and evaluate it."""
    return jaxssl.train(config, net={"name": SmallMixer, "width": 64}, workdir=workdir)


if __name__ == "__main__":
    main()
