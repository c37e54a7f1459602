"""The negatives of a batch that look most like the anchor, and how many are of its class."""

from typing import NamedTuple

import numpy as np


class Hardest(NamedTuple):
    """The most similar other images of each of n images.

    Attributes:
        place: [n, k] int32, which images, the most similar first; k is less than n.
        similarity: [n, k] float32, cosines.
        same_class: share of them that are of the anchor's class, the false negatives; None where
            no pair has two labels.
        same_class_all: the same share among all pairs of different images.
    """

    place: np.ndarray
    similarity: np.ndarray
    same_class: float | None
    same_class_all: float | None


def hardest_negatives(embeddings: np.ndarray, labels: np.ndarray | None, number: int) -> Hardest:
    """The ``number`` images whose embeddings have the largest cosine with each image's own.

    Args:
        embeddings: [n, d], of any length; a zero row has the cosine 0 with all.
        labels: [n] int, -1 is unlabelled; None if there are none.
        number: k, > 0; there are at most n - 1.

    Returns:
        Of equal cosines the earlier image comes first.
    """
    z = np.asarray(embeddings, np.float64)
    z = z / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-12)
    similarity = z @ z.T
    np.fill_diagonal(similarity, -np.inf)
    number = min(number, len(z) - 1)
    place = np.argsort(-similarity, axis=1, kind="stable")[:, :number]
    chosen = np.zeros(similarity.shape, bool)
    np.put_along_axis(chosen, place, True, axis=1)
    return Hardest(
        place.astype(np.int32),
        np.take_along_axis(similarity, place, axis=1).astype(np.float32),
        same_class_share(labels, chosen),
        same_class_share(labels, np.ones_like(chosen)),
    )


def same_class_share(labels: np.ndarray | None, chosen: np.ndarray) -> float | None:
    """Of the chosen pairs of different images that have labels, the share with equal ones.

    Args:
        labels: [n] int, -1 is unlabelled; None if there are none.
        chosen: [n, n] bool; an image with itself does not count.

    Returns:
        In [0, 1]; None if there is no such pair.
    """
    if labels is None:
        return None
    labels = np.asarray(labels)
    known = chosen & (labels[:, None] >= 0) & (labels[None, :] >= 0)
    known &= ~np.eye(len(labels), dtype=bool)
    same = known & (labels[:, None] == labels[None, :])
    return float(same.sum() / known.sum()) if known.any() else None
