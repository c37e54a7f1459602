"""Measure the rank of the features of a data set, and describe whether they have collapsed."""

import numpy as np
import scipy.linalg
import scipy.special

from jaxssl.evaluation.features import l2_normalise
from jaxssl.training.collapse import COLLAPSED_STD

# Features have collapsed if their rank is below this share of the largest possible rank, or
# below this number.
COLLAPSED_RANK_SHARE, COLLAPSED_RANK = 0.1, 1.5
DEAD = 1e-6  # standard deviation of a dead dimension, relative to the largest feature
RANKME_EPS = 1e-7  # epsilon of the RankMe paper for float32


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
    r"""Compute LiDAR: the rank of differences between images, relative to those between views.

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

    It is in [0, 1], as in `training.collapse`: 1 for features spread evenly over the sphere, 0 if
    all have the same direction.
    """
    rows = l2_normalise(np.asarray(features, np.float64))
    return float(rows.std(axis=0).mean() * np.sqrt(rows.shape[1]))


def dead_dimensions(features: np.ndarray) -> float:
    """Return the percentage of feature dimensions [n, d] that are equal for all examples."""
    largest = np.abs(features).max()
    spread = np.asarray(features, np.float64).std(axis=0)
    return 100 * float(np.mean(spread <= DEAD * largest))


def describe_collapse(*, rank: float, spread: float, most: int) -> str:
    """Describe in words whether the features of a data set have collapsed.

    * complete collapse: nearly all features have the same direction (``spread`` is below
      `COLLAPSED_STD`).
    * dimensional collapse: the features use few dimensions (``rank`` is below
      `COLLAPSED_RANK_SHARE` of the largest possible rank, or below `COLLAPSED_RANK`).
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


def _eigenvalues_of_gram(rows: np.ndarray) -> np.ndarray:
    """Compute squared singular values of [n, d] float64 features from the smaller Gram matrix."""
    n, d = rows.shape
    gram = rows.T @ rows if d <= n else rows @ rows.T
    eigenvalues = np.linalg.eigvalsh(gram)
    rounding = len(gram) * np.finfo(np.float64).eps * eigenvalues[-1]
    return np.where(eigenvalues > rounding, eigenvalues, 0)


def _exp_entropy(share: np.ndarray) -> float:
    return float(np.exp(scipy.special.entr(share).sum()))
