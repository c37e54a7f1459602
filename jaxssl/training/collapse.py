"""Measure representation collapse in the embeddings of a batch."""

from functools import partial

import jax
from jax import Array
from jax import numpy as jnp

from jaxssl.losses.pairs import unit

# Features with a standard deviation below this have collapsed. Evenly spread features have 1.
COLLAPSED_STD = 0.2  # a mean cosine of about 0.96
BLOCK = 256  # number of rows that are compared with all rows at the same time


@jax.jit
def embedding_metrics(embeddings: Array) -> dict[str, Array]:
    r"""Measure the spread and the agreement of embeddings scaled to unit length.

    * feature_std: mean standard deviation of a dimension, times sqrt(d). It is 1 for embeddings
      spread evenly over the sphere, and 0 if all are equal (Chen and He, SimSiam, 2021).
    * effective_rank: RankMe, exp of the entropy of the normalised singular values, in
      [1, min(V B, d)] (Garrido et al., RankMe, 2023, eq. 1).
    * alignment: mean squared distance between two views of an example, in [0, 4]. Lower is closer.
    * uniformity: log of the mean of exp(-2 |u - v|^2) over different examples, in [-8, 0]. Lower is
      more uniform (both Wang and Isola, 2020).
    * positive_similarity, negative_similarity: mean cosine of two views of one example, and of
      views of different examples.

    Args:
        embeddings: [V, B, d]. With V = 1, alignment and positive_similarity compare a view with
            itself. With B = 1, uniformity and negative_similarity are 0.
    """
    num_views, b, d = embeddings.shape
    z = unit(embeddings)
    rows = z.reshape(-1, d)
    singular = jnp.linalg.svd(rows, compute_uv=False)
    share = singular / jnp.maximum(jnp.sum(singular), 1e-12)
    example, dot = jnp.tile(jnp.arange(b), num_views), partial(jnp.einsum, precision="highest")

    def negatives(row: Array, index: Array) -> Array:
        """Sum a row's cosines with other examples, and the terms of the uniformity."""
        cosine, other = dot("d,nd->n", row, rows), example != index
        return jnp.stack([jnp.sum(x, where=other) for x in (cosine, jnp.exp(4 * cosine - 4))])

    sums = jax.lax.map(lambda row: negatives(*row), (rows, example), batch_size=BLOCK)
    negative, potential = jnp.mean(sums, axis=0) / max(num_views * (b - 1), 1)
    views = dot("vbd,wbd->vw", z, z) / b  # mean cosines of two views of an example
    positive = jnp.mean(views, where=~jnp.eye(num_views, dtype=bool) | (num_views == 1))
    return {
        "feature_std": jnp.mean(jnp.std(rows, axis=0)) * d**0.5,
        "effective_rank": jnp.exp(jnp.sum(jax.scipy.special.entr(share))),
        "alignment": 2 - 2 * positive,
        "uniformity": jnp.where(b > 1, jnp.log(potential), 0),
        "positive_similarity": positive,
        "negative_similarity": negative,
    }
