"""Measure representation collapse in the embeddings of a batch or the features of a data set."""

import jax
import numpy as np
import scipy.linalg
from jax import Array
from jax import numpy as jnp

from jaxssl.losses.pairs import unit

# Features with a standard deviation below this have collapsed. Evenly spread features have 1.
COLLAPSED_STD = 0.2  # A lower std means collapse; 0.2 is a mean cosine of about 0.96.
# Features have also collapsed if their rank is below this share of the largest possible rank, or
# below this number.
COLLAPSED_RANK_SHARE, COLLAPSED_RANK = 0.1, 1.5
DEAD = 1e-6  # standard deviation of a dead dimension, relative to the largest feature
RANKME_EPS = 1e-7  # epsilon of the RankMe paper for float32


@jax.jit
def embedding_metrics(embeddings: Array) -> dict[str, Array]:
    r"""Measure the spread and the agreement of embeddings scaled to unit length.

    * feature_std: mean standard deviation of a dimension, times sqrt(d). It is 1 for embeddings
      spread evenly over the sphere, and 0 if all are equal (Chen and He, SimSiam, 2021).
    * effective_rank: RankMe, exp of the entropy of the normalised singular values, in
      [1, min(V B, d)] (Garrido et al., RankMe, 2023, eq. 1).
    * alignment: mean squared distance between two views of an example, in [0, 4]. Lower is closer.
    * uniformity: log of the mean of exp(-2 |u - v|^2) over different examples, in [-8, 0]; lower is
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


def rankme(features: np.ndarray) -> float:
    r"""Compute RankMe, the effective rank of features: exp(entropy of the singular values).

    .. math:: \exp(-\sum_k p_k \log p_k), \quad p_k = \sigma_k / \sum_j \sigma_j + \epsilon

    Args:
        features: [n, d], neither centred nor scaled to unit length. The paper uses 25 600 rows.

    Returns:
        A number in [1, min(n, d)], up to the influence of epsilon, or 0 if all features are 0.

    References:
        Garrido et al., RankMe, 2023, eq. 1.
    """
    singular = np.sqrt(_eigenvalues_of_gram(np.asarray(features, np.float64)))
    if not singular.any():
        return 0.0
    return _exp_entropy(singular / singular.sum() + RANKME_EPS)


def lidar(views: np.ndarray, *, delta: float = 1e-4) -> float:
    r"""Compute LiDAR: the rank of differences between images, in units of those between views.

    .. math:: \exp(-\sum_k p_k \log p_k), \quad p_k = \lambda_k / \sum_j \lambda_j

    with the eigenvalues of S_w^{-1/2} S_b S_w^{-1/2}. S_b is the scatter of the mean views of the
    images. S_w is the scatter of the views around these means, plus delta I.

    Args:
        views: [q, n, d], features of q >= 2 views of n >= 2 images.
        delta: > 0, in squared units of the features. A value that float64 cannot tell from 0 is
            raised.

    Returns:
        A number in [1, min(n - 1, d)], or 0 if the mean views of all images are equal.

    Raises:
        ValueError: with only one view or image, or if delta is not positive.

    References:
        Thilak et al., LiDAR, 2024, eq. 1 and 2. The epsilon of the paper only keeps the logarithm
        finite. It is left out here, because eigenvalues of 0 are skipped.
    """
    q, n, d = views.shape
    if q < 2 or n < 2 or delta <= 0:
        raise ValueError(
            f"LiDAR needs at least 2 views, 2 images and delta > 0, got {q} views, {n} images "
            f"and delta={delta}"
        )
    views = np.asarray(views, np.float64)
    means = views.mean(axis=0)
    within = (views - means).reshape(-1, d)
    scatter = within.T @ within / len(within)
    scatter += max(delta, 1e-13 * np.trace(scatter)) * np.eye(d)
    factor = np.linalg.cholesky(scatter)
    between = (means - means.mean(axis=0)) / np.sqrt(n)
    # factor^-1 S_b factor^-T has the same eigenvalues as S_w^{-1/2} S_b S_w^{-1/2}.
    whitened = scipy.linalg.solve_triangular(factor, between.T, lower=True)
    eigenvalues = _eigenvalues_of_gram(whitened.T)
    return _exp_entropy(eigenvalues / eigenvalues.sum()) if eigenvalues.any() else 0.0


def feature_std(features: np.ndarray) -> float:
    """Compute the mean standard deviation of unit-length features [n, d], times sqrt(d).

    It is in [0, 1], as in `embedding_metrics`: 1 for features spread evenly over the sphere, 0 if
    all have the same direction.
    """
    norm = np.linalg.norm(features, axis=1, keepdims=True)
    rows = np.asarray(features, np.float64) / np.maximum(norm, 1e-12)
    return float(rows.std(axis=0).mean() * np.sqrt(rows.shape[1]))


def dead_dimensions(features: np.ndarray) -> float:
    """Return the percentage of feature dimensions [n, d] that are equal for all examples."""
    largest = np.max(np.abs(features), initial=0)
    spread = np.asarray(features, np.float64).std(axis=0)
    return 100 * float(np.mean(spread <= DEAD * largest))


def describe_collapse(*, rank: float, spread: float, most: int) -> str:
    """Describe in words whether the features of a data set have collapsed.

    * complete collapse: nearly all features have the same direction; ``spread`` is below
      `COLLAPSED_STD`.
    * dimensional collapse: the features use few dimensions; ``rank`` is below
      `COLLAPSED_RANK_SHARE` of the largest possible rank, or below `COLLAPSED_RANK`.
    * no collapse: neither of the two.

    Args:
        rank: `rankme` of the features.
        spread: `feature_std` of the features.
        most: the largest possible rank, min(n, d).
    """
    figures = f"rank {rank:.1f} of {most}, standard deviation {spread:.2f} of at most 1"
    if spread < COLLAPSED_STD:
        return f"complete collapse: the features are nearly equal; {figures}"
    if most > 1 and rank < max(COLLAPSED_RANK, COLLAPSED_RANK_SHARE * most):
        return f"dimensional collapse: the features use few of their dimensions; {figures}"
    return f"no collapse: {figures}"


def _mean(x: Array, where: Array) -> Array:
    return jnp.sum(jnp.where(where, x, 0)) / jnp.maximum(jnp.sum(where, dtype=x.dtype), 1)


def _eigenvalues_of_gram(rows: np.ndarray) -> np.ndarray:
    """Compute squared singular values of [n, d] float64 features from the smaller Gram matrix."""
    n, d = rows.shape
    gram = rows.T @ rows if d <= n else rows @ rows.T
    eigenvalues = np.linalg.eigvalsh(gram)
    rounding = len(gram) * np.finfo(np.float64).eps * eigenvalues[-1]
    return np.where(eigenvalues > rounding, eigenvalues, 0)


def _exp_entropy(share: np.ndarray) -> float:
    share = share[share > 0]
    return float(np.exp(-np.sum(share * np.log(share))))
