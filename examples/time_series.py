"""Learn features of time series, because nothing in the losses is about images.

python examples/time_series.py
"""

import jax
import numpy as np
import optax
from jax import Array
from jax import numpy as jnp

from jaxssl import losses
from jaxssl.evaluation.protocols import knn


def draw(key: Array, labels: Array) -> Array:
    """Draw noisy series [n, 128] of four classes: two frequencies, with and without a fast wave."""
    phase, noise = jax.random.split(key)
    t = jnp.linspace(0, 1, 128) + jax.random.uniform(phase, (len(labels), 1))
    slow = jnp.sin(2 * jnp.pi * (4.0 + 2.0 * (labels % 2))[:, None] * t)
    fast = jnp.sin(2 * jnp.pi * 17.0 * t) * (labels // 2)[:, None]
    return slow + fast + 0.5 * jax.random.normal(noise, t.shape)


def view(key: Array, series: Array) -> Array:
    """Cut a window of 64 values at a random place of each series."""
    starts = jax.random.randint(key, (len(series),), 0, 65)
    return jax.vmap(lambda x, start: jax.lax.dynamic_slice(x, (start,), (64,)))(series, starts)


def features(params: dict[str, Array], x: Array) -> Array:
    """Map windows [n, 64] to features [n, 32]: a convolution over time, ReLU and the mean."""
    patches = jnp.stack([x[:, i : i + 49] for i in range(16)], axis=-1)
    return jax.nn.relu(patches @ params["filters"] + params["bias"]).mean(axis=1)


def main(steps: int = 400) -> tuple[float, float]:
    """Train, and return the k-NN accuracy in percent before and after."""
    labels, optimiser = np.arange(1000) % 4, optax.adam(3e-3)
    series = draw(jax.random.key(0), jnp.asarray(labels))
    w1, w2 = jax.random.normal(jax.random.key(1), (2, 32, 32)) / 4
    params = {"filters": w1[:16], "bias": jnp.zeros(32), "head": w2}

    def loss_fn(params, key):
        rows_key, *keys = jax.random.split(key, 3)
        rows = jax.random.choice(rows_key, series[:800], (128,), replace=False)
        z1, z2 = (features(params, view(key, rows)) @ params["head"] for key in keys)
        return losses.nt_xent(z1, z2, temperature=0.2)

    @jax.jit
    def step(params, state, key):
        loss, grads = jax.value_and_grad(loss_fn)(params, key)
        updates, state = optimiser.update(grads, state)
        return optax.apply_updates(params, updates), state, loss

    def accuracy():
        h = features(params, series[:, :64])
        return knn.evaluate(h[:800], labels[:800], h[800:], labels[800:])["knn_top1"]

    before, state, loss = accuracy(), optimiser.init(params), jnp.inf
    for number in range(steps):
        params, state, loss = step(params, state, jax.random.key(number))
    print(f"loss {loss:.3f}, k-NN accuracy {before:.1f} % before and {accuracy():.1f} % after")
    return before, accuracy()


if __name__ == "__main__":
    main()
