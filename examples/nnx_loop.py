"""Use a loss in a training loop of your own, here with Flax NNX and optax.

    python examples/nnx_loop.py

The loop learns features of handwritten digits with `jaxssl.losses.auc_cl`, and tests them with a
k-nearest-neighbour classifier. Nothing else of jaxssl is needed to train.
"""

import jax
import numpy as np
import optax
from flax import nnx
from jax import Array
from jax import numpy as jnp
from sklearn.datasets import load_digits

from jaxssl import losses
from jaxssl.evaluation.protocols import knn

TRAIN = 1297  # The other 500 images are the test split.


class Encoder(nnx.Module):
    """Two convolutions and a projection head."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.conv1 = nnx.Conv(1, 32, (3, 3), strides=2, rngs=rngs)
        self.conv2 = nnx.Conv(32, 64, (3, 3), rngs=rngs)
        self.head = nnx.Linear(64, 64, rngs=rngs)

    def features(self, x: Array) -> Array:
        """Map images [n, 8, 8, 1] to features [n, 64]."""
        return nnx.relu(self.conv2(nnx.relu(self.conv1(x)))).mean(axis=(1, 2))

    def __call__(self, x: Array) -> Array:
        """Map images [n, 8, 8, 1] to embeddings [n, 64]."""
        return self.head(self.features(x))


def augment(key: Array, images: Array) -> Array:
    """Shift each image by up to one pixel, and add noise."""
    shift_key, noise_key = jax.random.split(key)
    shifts = jax.random.randint(shift_key, (len(images), 2), -1, 2)
    shifted = jax.vmap(lambda image, shift: jnp.roll(image, shift, axis=(0, 1)))(images, shifts)
    return shifted + 0.2 * jax.random.normal(noise_key, images.shape)


@nnx.jit
def train_step(model: Encoder, optimizer: nnx.Optimizer, key: Array, images: Array) -> Array:
    """Update the model once, and return the loss."""
    one, two = jax.random.split(key)

    def loss_fn(model: Encoder) -> Array:
        z1, z2 = model(augment(one, images)), model(augment(two, images))
        return losses.auc_cl(z1, z2)

    loss, grads = nnx.value_and_grad(loss_fn)(model)
    optimizer.update(model, grads)
    return loss


def main(steps: int = 600, batch_size: int = 64) -> tuple[float, float]:
    """Train, and return the k-NN accuracy in percent before and after."""
    digits = load_digits()
    images, labels = np.float32(digits.images[..., None] / 16), digits.target
    model = Encoder(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)
    rng, accuracies = np.random.default_rng(0), []
    for step in range(steps + 1):
        if step in (0, steps):
            features = np.asarray(model.features(images))
            split = features[:TRAIN], labels[:TRAIN], features[TRAIN:], labels[TRAIN:]
            accuracies.append(knn.evaluate(*split)["knn_top1"])
            print(f"step {step}: k-NN accuracy {accuracies[-1]:.1f} %")
        batch = images[rng.choice(TRAIN, batch_size, replace=False)]
        loss = train_step(model, optimizer, jax.random.key(step), batch)
        if step % 100 == 0:
            print(f"step {step}: loss {loss:.3f}")
    return accuracies[0], accuracies[1]


if __name__ == "__main__":
    main()
