"""Image retrieval: is an image of the same class among the k nearest?"""

import numpy as np
from numpy.typing import ArrayLike

from jaxssl.evaluation import protocol as base
from jaxssl.evaluation.nearest_neighbours import nearest_others, neighbours, slices

PRESETS: base.Presets = {
    "default": {"k": (1, 5, 10), "centred": False, "within": False},
    # Settings of MMCL and CoCLR for videos.
    "mmcl_video": {"k": (1, 5, 10, 20, 50), "centred": True, "within": False},
    # Queries and candidates are both from the test set, as in metric learning.
    "within": {"k": (1, 5, 10), "centred": False, "within": True},
}

BLOCK = 2**23  # largest number of neighbours held at once


def evaluate(
    train_features: ArrayLike,
    train_labels: ArrayLike,
    test_features: ArrayLike,
    test_labels: ArrayLike,
    *,
    preset: str = "default",
    **settings: object,
) -> dict[str, float]:
    """Compute the recall of image retrieval on features, with the settings of a preset.

        scores = retrieval.evaluate(train_features, train_labels, test_features, test_labels)

    Features are [n, f] and [m, f], labels are class indices [n] and [m].
    `jaxssl.evaluation.protocols` describes the arguments, which four protocols share. Settings are
    arguments of `recall`.

    Returns:
        "retrieval_r1" and so on in percent, see `recall`.
    """
    features = base.check_features(train_features, train_labels, test_features, test_labels)
    return recall(features, **base.choose_settings(PRESETS, preset, "default", settings))


def recall(
    features: base.Features, *, k: tuple[int, ...], centred: bool = False, within: bool = False
) -> dict[str, float]:
    r"""Compute recall at k: the share of queries with an image of their class among the k nearest.

    Each test image is a query. Neighbours are found by cosine similarity. Ties go to the smaller
    index. ``within`` adds the mean average precision at R, where R is the number of images in the
    bank with the label of the query. With m queries, P_q(i) the share of images with the query's
    label among its i nearest, and y the labels:

    .. math:: MAP@R = \frac{1}{m} \sum_q \frac{1}{R_q} \sum_{i=1}^{R_q} P_q(i) [y_{q,i} = y_q]

    Queries with a label that the bank lacks count as 0 in both metrics.

    Args:
        features: the bank is the training set, the queries are the test set. With ``within`` only
            the test set is used.
        k: numbers of neighbours, each >= 1.
        centred: whether the mean of each split is subtracted from its features.
        within: whether the test set, without the query, is the bank.

    Returns:
        "retrieval_r1" and so on for each k, and "retrieval_map_at_r" if ``within``, in percent.

    Raises:
        ValueError: if a k is below 1 or above the number of images in the bank.

    References:
        Han et al., Self-supervised Co-training for Video Representation Learning, 2020 (centred).
        Musgrave et al., A Metric Learning Reality Check, 2020, eq. 6-7 (MAP@R).
    """
    bank, bank_labels, queries, labels = features
    if within:
        bank, bank_labels = queries, labels
    size = len(bank) - within
    if not k or not all(isinstance(n, int | np.integer) and 1 <= n <= size for n in k):
        raise ValueError(f"each k must be in [1, {size}] (the bank has {size} images), got {k}")
    if centred:
        features.require_finite()  # The mean would spread a NaN over all rows.
        bank, queries = _centred(bank), _centred(queries)
    scores = {f"retrieval_r{n}": np.zeros(len(queries)) for n in k}
    most, relevant = max(k), None
    if within:
        _, row, number = np.unique(labels, return_inverse=True, return_counts=True)
        relevant = number[row] - 1
        most = max(most, int(relevant.max()))
        scores["retrieval_map_at_r"] = np.zeros(len(queries))
    for part in slices(len(queries), BLOCK // (most + 1)):
        if within:
            nearest = nearest_others(queries, most, part)
        else:
            nearest = neighbours(bank, queries[part], most)
        hits = bank_labels[nearest.indices] == labels[part][:, None]
        for n in k:
            scores[f"retrieval_r{n}"][part] = hits[:, :n].any(axis=1)
        if relevant is not None:
            scores["retrieval_map_at_r"][part] = _average_precision(hits, relevant[part])
    return {name: 100 * float(values.mean()) for name, values in scores.items()}


def _average_precision(hits: np.ndarray, relevant: np.ndarray) -> np.ndarray:
    """Return each query's average precision over its R relevant images (AP at R), [m].

    Args:
        hits: [m, >= max(relevant)] bool, whether each neighbour has the label, nearest first.
        relevant: [m] int, R.
    """
    rank = np.arange(1, hits.shape[1] + 1)
    hits = hits & (rank <= relevant[:, None])
    precision = np.cumsum(hits, axis=1) / rank
    return (precision * hits).sum(axis=1) / np.maximum(relevant, 1)


def _centred(features: np.ndarray) -> np.ndarray:
    """Subtract the mean of features [n, f], as float32."""
    return features - np.mean(features, axis=0, dtype=np.float64).astype(np.float32)


def run(context: base.EvalContext, *, seed: int, preset: str = "default") -> list[base.Result]:
    """Evaluate image retrieval with the settings of a preset."""
    settings = PRESETS[preset]
    return base.make_results(recall(context.features, **settings), preset=preset, **settings)


protocol = base.Protocol(run, PRESETS, novel_classes=True)
