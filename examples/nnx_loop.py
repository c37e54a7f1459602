"""Train a Flax NNX network with `losses.auc_cl` in a plain training loop.

Two random views of each handwritten digit are encoded. The target ``b`` of AUC-CL is a parameter of
the network. k-NN compares the features before and after training.

    python examples/nnx_loop.py    # about 15 seconds on a CPU
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import Array

from jaxssl import losses
from jaxssl.augment.recipes.digits import recipe
from jaxssl.augment.views import Inputs, make_views
from jaxssl.data.toy.digits import load_splits
from jaxssl.evaluation.protocols import knn

SIZE = 16  # side of a view in pixels
make_two_views = jax.jit(make_views([recipe(size=SIZE)] * 2))


class Network(nnx.Module):
    """A convolutional backbone with a projector, for images [n, s, s, 1]."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.conv1 = nnx.Conv(1, 32, (3, 3), strides=2, rngs=rngs)
        self.conv2 = nnx.Conv(32, 128, (3, 3), strides=2, rngs=rngs)
        self.projector = nnx.Linear(128, 64, rngs=rngs)
        self.b = nnx.Param(jnp.zeros(()))

    def features(self, x: Array) -> Array:
        """Return the output of the backbone [n, 128]."""
        return nnx.relu(self.conv2(nnx.relu(self.conv1(x)))).mean(axis=(1, 2))

    def __call__(self, x: Array) -> Array:
        """Return the embeddings [n, 64]. The loss normalises them."""
        return self.projector(self.features(x))


@nnx.jit
def train_step(network: Network, optimiser: nnx.Optimizer, views: Array) -> Array:
    """Update the network with two views of a batch [2, n, s, s, 1] and return the loss."""

    def loss_fn(network: Network) -> Array:
        return losses.auc_cl(network(views[0]), network(views[1]), b=network.b[...])

    loss, gradient = nnx.value_and_grad(loss_fn)(network)
    optimiser.update(network, gradient)
    return loss


def knn_accuracy(network: Network, images: Array, labels: np.ndarray, train: np.ndarray) -> float:
    """Return the accuracy in percent on all images but those of the indices ``train``."""
    features = network.features(Inputs(SIZE, channels=1).prepare(images))
    test = np.setdiff1d(np.arange(len(images)), train)
    data = (features[train], labels[train], features[test], labels[test])
    return knn.evaluate(*data, k=20)["knn_top1"]


def main(steps: int = 400, batch_size: int = 64) -> tuple[list[float], list[float]]:
    """Return the loss of each step, and the accuracies before and after training."""
    images, labels, train = load_splits()["train"]
    images = jnp.asarray(images)[..., None]  # [1797, 8, 8, 1] uint8
    network = Network(nnx.Rngs(0))
    optimiser = nnx.Optimizer(network, optax.adam(3e-3), wrt=nnx.Param)
    rng, key, history = np.random.default_rng(0), jax.random.key(0), []
    before = knn_accuracy(network, images, labels, train)
    for step in range(steps):
        index = rng.choice(train, batch_size, replace=False)
        views = make_two_views(jax.random.fold_in(key, step), images[index], index)["views"]
        history.append(float(train_step(network, optimiser, views)))
        if step % 50 == 0:
            print(f"step {step}: loss {history[-1]:.1f}")
    after = knn_accuracy(network, images, labels, train)
    print(f"k-NN accuracy: {before:.1f} % before training, {after:.1f} % after")
    return history, [before, after]


if __name__ == "__main__":
    main()
