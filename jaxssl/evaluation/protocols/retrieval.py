"""Image retrieval: is an image of the same class among the k nearest?"""

import numpy as np
from numpy.typing import ArrayLike

from jaxssl.evaluation import protocol as base
from jaxssl.evaluation.nearest_neighbours import nearest_others, neighbours

PRESETS: base.Presets = {
    "default": {"k": (1, 5, 10), "centred": False, "within": False},
    # Settings of MMCL and CoCLR for videos.
    "mmcl_video": {"k": (1, 5, 10, 20, 50), "centred": True, "within": False},
    # Queries and candidates are both from the test set, as in metric learning.
    "within": {"k": (1, 5, 10), "centred": False, "within": True},
}

BLOCK = 2**23  # number of neighbours in memory at once if the test set is the bank


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

    Each test image is a query. Neighbours are found by cosine similarity; ties go to the smaller
    index. ``within`` adds the mean average precision at R, where R is the number of images in the
    bank with the label of the query:

    .. math:: MAP@R = \frac{1}{m} \sum_q \frac{1}{R_q} \sum_{i=1}^{R_q} P_q(i) [y_{q,i} = y_q]

    with P(i) the precision among the first i. Queries whose label is missing in the bank count as
    0 in both metrics.

    Args:
        features: the training set is the bank, the test set are the queries.
        k: numbers of neighbours, each >= 1.
        centred: whether the mean of each split is subtracted from its features.
        within: whether the test set, without the query, is the bank.

    Returns:
        "retrieval_r1" and so on for each k, and "retrieval_map_at_r" if ``within``, in percent.

    Raises:
        ValueError: if a k is below 1 or above the number of images in the bank.

    References:
        Han et al., Self-supervised Co-training for Video Representation Learning, 2020 (centred);
        Musgrave et al., A Metric Learning Reality Check, 2020, eq. 6-7 (MAP@R).
    """
    size = len(features.test) - 1 if within else len(features.train)
    if not k or min(k) < 1 or max(k) > size:
        raise ValueError(f"k must be in [1, {size}], the size of the bank, got {k}")
    bank, bank_labels, queries, labels = features
    if centred:
        queries, bank = _centred(queries), _centred(bank)
    if within:
        return _recall_within(queries, labels, k)
    _, index = neighbours(bank, queries, max(k))
    hits = bank_labels[index] == labels[:, None]
    return {f"retrieval_r{n}": 100 * float(hits[:, :n].any(axis=1).mean()) for n in k}


def _recall_within(
    features: np.ndarray, labels: np.ndarray, k: tuple[int, ...]
) -> dict[str, float]:
    """Compute recall at k and MAP@R, in percent, of each image among all others of one set."""
    classes, number = np.unique(labels, return_counts=True)
    relevant = number[np.searchsorted(classes, labels)] - 1
    most = max(max(k), int(relevant.max()))
    scores: dict[str, list[np.ndarray]] = {f"retrieval_r{n}": [] for n in k}
    scores["retrieval_map_at_r"] = []
    # A query needs as many neighbours as the largest class has images, so queries come in blocks.
    size = max(1, BLOCK // (most + 1))
    for first in range(0, len(features), size):
        block = slice(first, first + size)
        hits = labels[nearest_others(features, most, block).indices] == labels[block][:, None]
        for n in k:
            scores[f"retrieval_r{n}"].append(hits[:, :n].any(axis=1))
        scores["retrieval_map_at_r"].append(_average_precision(hits, relevant[block]))
    return {name: 100 * float(np.concatenate(values).mean()) for name, values in scores.items()}


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
    mean = np.mean(features, axis=0, dtype=np.float64)
    return np.asarray(features - mean.astype(np.float32), np.float32)


def run(context: base.EvalContext, *, seed: int, preset: str = "default") -> list[base.Result]:
    """Evaluate image retrieval with the settings of a preset."""
    settings = PRESETS[preset]
    return base.make_results(recall(context.features, **settings), preset=preset, **settings)


protocol = base.Protocol(run, PRESETS, novel_classes=True)
