"""Retrieval: is an image of the same class among the k nearest ones?"""

from typing import Any

import numpy as np

from jaxssl.evaluation.protocol import EvalContext, Features, Protocol, Result
from jaxssl.evaluation.protocols.knn import neighbours

PRESETS: dict[str, dict[str, Any]] = {
    "default": {"k": (1, 5, 10), "centred": False, "within": False},
    # MMCL's protocol for videos, which is CoCLR's
    "mmcl_video": {"k": (1, 5, 10, 20, 50), "centred": True, "within": False},
    # Metric learning's: the test images among themselves
    "within": {"k": (1, 5, 10), "centred": False, "within": True},
}

BLOCK = 2**23  # neighbours that are held at a time, to find those of large classes


def evaluate(
    features: Features, *, k: tuple[int, ...], centred: bool = False, within: bool = False
) -> dict[str, float]:
    r"""Recall at k by label: the share of queries with their label among the k nearest of a bank.

    Nearest by cosine similarity; of equal ones the first in the bank. Each test image is a query.
    ``within`` adds the mean average precision at R, where R is how often the query's label occurs:

    .. math:: MAP@R = \frac{1}{m} \sum_q \frac{1}{R_q} \sum_{i=1}^{R_q} P_q(i) [y_{q,i} = y_q]

    with P(i) the precision among the first i. A query whose label occurs nowhere in the bank is a
    miss in both.

    Args:
        features: the bank is the training set's; queries are the test set's.
        k: how many neighbours count, each >= 1.
        centred: take the mean of its own split from each feature first.
        within: the bank is the test set itself, without the query.

    Returns:
        "retrieval_r1" and so on for each k, with ``within`` "retrieval_map_at_r" too, in percent.

    Raises:
        ValueError: if a k is below 1 or above the number of images in the bank.

    References:
        Han et al., Self-supervised Co-training for Video Representation Learning, 2020 (centred);
        Musgrave et al., A Metric Learning Reality Check, 2020, eq. 6-7 (MAP@R).
    """
    queries, labels = features.test, features.test_labels
    bank, bank_labels = (queries, labels) if within else features[:2]
    size = len(bank) - within
    if not k or min(k) < 1 or max(k) > size:
        raise ValueError(f"k must be in [1, {size}], the images to be found, got {k}")
    if centred:
        queries, bank = _centred(queries), _centred(bank)
    if not within:
        _, place = neighbours(bank, queries, max(k))
        return _recall(bank_labels[place] == labels[:, None], k)

    classes, number = np.unique(labels, return_counts=True)
    relevant = number[np.searchsorted(classes, labels)] - 1
    most = max(max(k), int(relevant.max()))
    found = []
    # Each query has as many neighbours as the largest class has images: queries in blocks.
    size = max(1, BLOCK // (most + 1))
    for first in range(0, len(queries), size):
        part = np.arange(first, min(first + size, len(queries)))
        _, place = neighbours(bank, queries[part], most + 1)
        # The query goes last; among many equal images it may not have been found at all.
        order = np.argsort(place == part[:, None], axis=1, kind="stable")[:, :most]
        hits = labels[np.take_along_axis(place, order, axis=1)] == labels[part][:, None]
        recall = {n: hits[:, :n].any(axis=1) for n in k}
        found.append(recall | {"map": _average_precision(hits, relevant[part])})
    mean = {n: 100 * float(np.concatenate([part[n] for part in found]).mean()) for n in found[0]}
    map_at_r = mean.pop("map")
    return {f"retrieval_r{n}": value for n, value in mean.items()} | {
        "retrieval_map_at_r": map_at_r
    }


def _recall(hits: np.ndarray, k: tuple[int, ...]) -> dict[str, float]:
    """From whether each of the neighbours [m, >= max(k)], nearest first, has the label."""
    return {f"retrieval_r{n}": 100 * float(hits[:, :n].any(axis=1).mean()) for n in k}


def _average_precision(hits: np.ndarray, relevant: np.ndarray) -> np.ndarray:
    """[m] from whether each neighbour [m, >= max(relevant)], nearest first, has the label."""
    rank = np.arange(1, hits.shape[1] + 1)
    hits = hits & (rank <= relevant[:, None])
    precision = np.cumsum(hits, axis=1) / rank
    return (precision * hits).sum(axis=1) / np.maximum(relevant, 1)


def _centred(features: np.ndarray) -> np.ndarray:
    mean = np.mean(features, axis=0, dtype=np.float64)
    return np.asarray(features - mean.astype(np.float32), np.float32)


def run(context: EvalContext, *, seed: int, preset: str = "default") -> list[Result]:
    """`evaluate` with a preset's settings."""
    del seed
    settings = PRESETS[preset]
    scores = evaluate(context.features, **settings)
    details = {"preset": preset, **settings}
    return [Result(metric, value, None, details) for metric, value in scores.items()]


protocol = Protocol(run, PRESETS, novel_classes=True)
