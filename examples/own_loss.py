"""Train with a loss of your own: alignment and uniformity (Wang and Isola, 2020, eq. 1 and 2).

    jaxssl train --config.loss.name=examples/own_loss.py:align_uniform --workdir runs/own_loss
    python examples/own_loss.py

The keyword arguments with a plain default are settings, such as --config.loss.sharpness=3. A loss
of pairs works with every method, number of views and number of devices.
"""

from typing import Any

import jax
from jax import Array
from jax import numpy as jnp

import jaxssl
from jaxssl.losses import Pairs
from jaxssl.losses.pairs import cosine, log_sum_exp, mean_where, not_self, positives


def align_uniform(pairs: Pairs, *, weight: float = 1.0, sharpness: float = 2.0) -> Array:
    """Return the squared distance to the positives, plus the log of the potential energy.

    Args:
        pairs: n anchors and m candidates.
        weight: weight of the uniformity, >= 0.
        sharpness: t of the Gaussian potential exp(-t * distance^2), > 0.

    Returns:
        [n] float32.
    """
    squared = 2 - 2 * cosine(pairs)  # squared distance of normalised embeddings, [n, m]
    alignment = mean_where(squared, positives(pairs))
    others = not_self(pairs)
    energy = log_sum_exp(-sharpness * squared, others) - jnp.log(others.sum(axis=1))
    return alignment + weight * energy


def main(workdir: str = "runs/own_loss", config: Any = "digits") -> jaxssl.Run:
    """Compute the loss of two arrays, then pretrain with it."""
    z1, z2 = jax.random.normal(jax.random.key(0), (2, 32, 16))
    pairs = jaxssl.losses.pair_views([z1, z2])
    print(f"loss of random embeddings: {align_uniform(pairs).mean():.3f}")
    return jaxssl.train(config, loss=align_uniform, workdir=workdir)


if __name__ == "__main__":
    main()
