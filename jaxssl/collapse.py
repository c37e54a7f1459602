"""Is the encoder collapsing? Measures on a batch of embeddings."""

import jax
from jax import Array
from jax import numpy as jnp

from jaxssl.pairs import unit

# A deviation below this share of that of evenly spread embeddings is called collapsed.
COLLAPSED_STD = 0.2  # a mean cosine of about 0.96


@jax.jit
def measures(embeddings: Array) -> dict[str, Array]:
    r"""Measures of spread and agreement of unit-length embeddings.

    * feature_std: mean standard deviation of a dimension, times sqrt(d): 1 spread evenly over
      the sphere, 0 all equal (Chen and He, SimSiam, 2021).
    * effective_rank: RankMe, exp of the entropy of the normalised singular values, in
      [1, min(V B, d)] (Garrido et al., RankMe, 2023, eq. 1).
    * alignment: mean squared distance of two views of an example, in [0, 4]; lower is closer.
    * uniformity: log of the mean of exp(-2 |u - v|^2) over different examples, in [-8, 0]; lower is
      more uniform (both Wang and Isola, 2020).
    * positive_similarity, negative_similarity: mean cosine of two views of one example, and of
      views of different examples.

    Args:
        embeddings: [V, B, d]. With one view the measures of agreement are those of a view with
            itself; with one example those over different examples are 0.
    """
    num_views, b, d = embeddings.shape
    z = unit(embeddings)
    rows = z.reshape(-1, d)
    singular = jnp.linalg.svd(rows, compute_uv=False)
    share = singular / jnp.maximum(jnp.sum(singular), 1e-12)
    entropy = -jnp.sum(jnp.where(share > 0, share * jnp.log(jnp.where(share > 0, share, 1)), 0))
    similarity = jnp.matmul(rows, rows.T, precision=jax.lax.Precision.HIGHEST)
    example = jnp.tile(jnp.arange(b), num_views)
    view = jnp.repeat(jnp.arange(num_views), b)
    same = example[:, None] == example[None, :]
    agree = same & ((view[:, None] != view[None, :]) | (num_views == 1))
    positive = _mean(similarity, agree)
    potential = _mean(jnp.exp(-2 * (2 - 2 * similarity)), ~same)
    return {
        "feature_std": jnp.mean(jnp.std(rows, axis=0)) * d**0.5,
        "effective_rank": jnp.exp(entropy),
        "alignment": 2 - 2 * positive,
        "uniformity": jnp.where(b > 1, jnp.log(jnp.maximum(potential, 1e-12)), 0),
        "positive_similarity": positive,
        "negative_similarity": _mean(similarity, ~same),
    }


def _mean(x: Array, where: Array) -> Array:
    return jnp.sum(jnp.where(where, x, 0)) / jnp.maximum(jnp.sum(where, dtype=x.dtype), 1)
