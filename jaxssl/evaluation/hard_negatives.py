"""Find each anchor's hardest negatives in a batch, and how many share the anchor's class."""

from typing import NamedTuple

import numpy as np

from jaxssl.evaluation.features import l2_normalise


class HardNegatives(NamedTuple):
    """Indices and similarities of the k most similar other images of each of n images.

    Attributes:
        indices: [n, k] int32, the images, most similar first. k < n.
        similarity: [n, k] float32, cosine similarities.
        same_class: share of false negatives among them, images of the anchor's class. None if no
            pair is labelled.
        same_class_all: the same share among all pairs of different images.
    """

    indices: np.ndarray
    similarity: np.ndarray
    same_class: float | None
    same_class_all: float | None


def hardest_negatives(
    embeddings: np.ndarray, labels: np.ndarray | None, number: int
) -> HardNegatives:
    """Find the k other images with the largest cosine similarity to each image.

    Args:
        embeddings: [n, d], not necessarily normalised. A zero row has similarity 0 to every row.
        labels: [n] int, -1 for unlabelled images; None without labels.
        number: k, > 0; at most n - 1 are returned.

    Returns:
        The hardest negatives; ties are broken by the smaller index.
    """
    z = l2_normalise(np.asarray(embeddings, np.float64))
    similarity = z @ z.T
    np.fill_diagonal(similarity, -np.inf)
    number = min(number, len(z) - 1)
    index = np.argsort(-similarity, axis=1, kind="stable")[:, :number]
    is_hard = np.zeros(similarity.shape, bool)
    np.put_along_axis(is_hard, index, True, axis=1)
    return HardNegatives(
        index.astype(np.int32),
        np.take_along_axis(similarity, index, axis=1).astype(np.float32),
        same_class_share(labels, is_hard),
        same_class_share(labels, np.ones_like(is_hard)),
    )


def same_class_share(labels: np.ndarray | None, mask: np.ndarray) -> float | None:
    """Return the share of pairs with equal labels among the labelled pairs of a mask.

    Args:
        labels: [n] int, -1 for unlabelled images; None without labels.
        mask: [n, n] bool, the pairs to count. The diagonal is ignored.

    Returns:
        Share in [0, 1]; None if no pair is labelled.
    """
    if labels is None:
        return None
    labels = np.asarray(labels)
    counted = mask & (labels[:, None] >= 0) & (labels[None, :] >= 0)
    counted &= ~np.eye(len(labels), dtype=bool)
    same = counted & (labels[:, None] == labels[None, :])
    return float(same.sum() / counted.sum()) if counted.any() else None
