"""What features look like: rank, spread, agreement of views, classes that are confused; no fitting.

The figures are no accuracies but for those of classes, which are left out without labels.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxssl.evaluation.protocol import EvalContext, Protocol, Result
from jaxssl.training import collapse

# features: of the training set at most, 25 600 is RankMe's; images, views, delta: of LiDAR, whose
# paper has more of both; alignment and uniformity are of the first two of the views.
PRESETS = {
    "default": {"features": 25_600, "images": 500, "views": 10, "delta": 1e-4},
    "paper": {"features": 25_600, "images": 1000, "views": 50, "delta": 1e-4},
}
OF_VIEWS = ("lidar", "alignment", "uniformity")
MATRIX = 100  # classes at most whose confusions are kept whole
PAIRS = 10  # most confused pairs that are kept


def evaluate(train: np.ndarray, views: np.ndarray, *, delta: float) -> dict[str, float]:
    """Measures of features, without labels.

    Args:
        train: [n, f] features of images.
        views: [q, m, f] features of q >= 2 random views of m >= 2 images.
        delta: of LiDAR, > 0.

    Returns:
        "rankme", "feature_std" and "dead_dimensions" (in percent) of the images; "lidar",
        "alignment" and "uniformity" (of the first two) of the views, as in
        `jaxssl.training.collapse`.

    Raises:
        ValueError: if features are not finite, or as `jaxssl.training.collapse.lidar`.
    """
    if not (np.isfinite(train).all() and np.isfinite(views).all()):
        raise ValueError("features must be finite, some are not")
    found = jax.device_get(collapse.embedding_metrics(views[:2]))
    return {
        "rankme": collapse.rankme(train),
        "lidar": collapse.lidar(views, delta=delta),
        "alignment": float(found["alignment"]),
        "uniformity": float(found["uniformity"]),
        "feature_std": collapse.feature_std(train),
        "dead_dimensions": collapse.dead_dimensions(train),
    }


def confusion(
    train: np.ndarray,
    train_labels: np.ndarray,
    test: np.ndarray,
    test_labels: np.ndarray,
    num_classes: int,
) -> np.ndarray:
    """How often test images of each class are nearest, by cosine, to each class's mean feature.

    Args:
        train: [n, f]; they count by their direction only.
        train_labels: [n] in [0, c); a class without any is nobody's nearest.
        test: [m, f].
        test_labels: [m] in [0, c).
        num_classes: c.

    Returns:
        [c, c] int counts, a row for each true class.
    """
    sums = np.zeros((num_classes, train.shape[1]))
    np.add.at(sums, train_labels, _unit(train))
    similarity = _unit(test) @ _unit(sums).T
    similarity[:, np.bincount(train_labels, minlength=num_classes) == 0] = -np.inf
    counts = np.zeros((num_classes, num_classes), np.int64)
    np.add.at(counts, (test_labels, similarity.argmax(axis=1)), 1)
    return counts


def confused_pairs(counts: np.ndarray) -> list[tuple[int, int, float]]:
    """Pairs of classes with the percentage of their images that are taken for the other one.

    Args:
        counts: [c, c] of `confusion`.

    Returns:
        (class, class, percent), the most confused first; pairs that never are, are left out.
    """
    size = counts.sum(axis=1)
    first, second = np.nonzero(np.triu(counts + counts.T, 1))
    share = 100 * (counts + counts.T)[first, second] / (size[first] + size[second])
    order = np.argsort(-share, kind="stable")
    return [(int(first[i]), int(second[i]), float(share[i])) for i in order]


def run(context: EvalContext, *, seed: int, preset: str = "default") -> list[Result]:
    """`evaluate` on training images and their views; with labels, how classes are confused."""
    settings, features = PRESETS[preset], context.features
    train = _drawn(features.train, settings["features"], seed)
    images = context.train.images(context.size)
    n, q = min(settings["images"], len(images)), settings["views"]
    chosen = np.sort(np.random.default_rng(seed).choice(len(images), n, replace=False))
    views = context.views(images[chosen], q, seed)
    found = evaluate(train, views, delta=settings["delta"])

    details = {"preset": preset, **settings, "features": len(train), "images": n}
    rows = []
    for name, value in found.items():
        # Views of raw pixels may be of another size than the images.
        dimensions = (views if name in OF_VIEWS else train).shape[-1]
        unit = "%" if name == "dead_dimensions" else ""
        rows.append(Result(name, value, None, {**details, "dimensions": dimensions}, unit))
    rank, spread = found["rankme"], found["feature_std"]
    words = collapse.describe_collapse(rank=rank, spread=spread, most=min(train.shape))
    rows[0].details["verdict"] = words
    labels = features.train_labels, features.test_labels
    if min(x.min(initial=0) for x in labels) >= 0 and all(map(len, labels)):
        names = getattr(context.train, "class_names", ())
        rows += _of_classes(features, names, details)
    return rows


def _of_classes(features: Any, names: Sequence[str], details: dict[str, Any]) -> list[Result]:
    """Accuracy of the nearest class mean, its worst class, and the most confused pair."""
    num_classes = int(max(features.train_labels.max(), features.test_labels.max())) + 1
    names = list(names) or [str(label) for label in range(num_classes)]
    counts = confusion(*features, num_classes)
    size, right = counts.sum(axis=1), np.diag(counts)
    tested = np.flatnonzero(size)
    per_class = {names[c]: 100 * float(right[c] / size[c]) for c in tested}
    worst = min(per_class, key=per_class.get)
    pairs = [(names[a], names[b], share) for a, b, share in confused_pairs(counts)[:PAIRS]]
    details = {**details, "classifier": "nearest class mean"}
    matrix = {"confusion": counts.tolist()} if num_classes <= MATRIX else {}
    return [
        Result(
            "class_mean_top1",
            100 * float(right.sum() / size.sum()),
            None,
            {**details, "per_class": per_class, **matrix},
        ),
        Result("worst_class_top1", per_class[worst], None, {**details, "class": worst}),
        Result(
            "most_confused_pair",
            pairs[0][2] if pairs else 0.0,
            None,
            {**details, "pairs": pairs},
        ),
    ]


def _drawn(rows: np.ndarray, limit: int, seed: int) -> np.ndarray:
    if len(rows) <= limit:
        return rows
    chosen = np.random.default_rng(seed).choice(len(rows), limit, replace=False)
    return rows[np.sort(chosen)]


def _unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


protocol = Protocol(
    run, PRESETS, examples=("image", "image_text"), needs_labels=False, novel_classes=True
)
