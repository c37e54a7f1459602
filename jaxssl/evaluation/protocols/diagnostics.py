"""Diagnostics of features without training: rank, spread, agreement of views, confused classes.

The class metrics are left out without labels.
"""

from collections.abc import Sequence

import jax
import numpy as np

from jaxssl.evaluation import feature_rank
from jaxssl.evaluation.features import l2_normalise
from jaxssl.evaluation.nearest_neighbours import neighbours, slices
from jaxssl.evaluation.protocol import EvalContext, Features, Protocol, Result, subset
from jaxssl.training import collapse

# "features" is the largest number of training features (RankMe uses 25 600). "images", "views" and
# "delta" belong to LiDAR, whose paper uses more images and views. Alignment and uniformity use the
# first two views.
PRESETS = {
    "default": {"features": 25_600, "images": 500, "views": 10, "delta": 1e-4},
    "paper": {"features": 25_600, "images": 1000, "views": 50, "delta": 1e-4},
}
VIEW_METRICS = ("lidar", "alignment", "uniformity")
MATRIX = 100  # largest number of classes for which the confusion matrix is stored
PAIRS = 10  # number of most confused class pairs that are stored


def evaluate(train: np.ndarray, views: np.ndarray, *, delta: float) -> dict[str, float]:
    """Compute the feature diagnostics that need no labels.

    Args:
        train: [n, f] features of images.
        views: [q, m, f] features of q >= 2 random views of m >= 2 images.
        delta: LiDAR's regularisation, > 0.

    Returns:
        "rankme", "feature_std" and "dead_dimensions" (in percent) of the images; "lidar" of the
        views; "alignment" and "uniformity" of the first two views. They are defined in
        `jaxssl.evaluation.feature_rank` and `jaxssl.training.collapse`.

    Raises:
        ValueError: if a feature is not finite, or as `jaxssl.evaluation.feature_rank.lidar`.
    """
    if not all(np.isfinite(array).all() for array in (train, views)):
        raise ValueError("features must be finite, got NaN or infinity; check the encoder")
    view_metrics = jax.device_get(collapse.embedding_metrics(views[:2]))
    return {
        "rankme": feature_rank.rankme(train),
        "lidar": feature_rank.lidar(views, delta=delta),
        "alignment": float(view_metrics["alignment"]),
        "uniformity": float(view_metrics["uniformity"]),
        "feature_std": feature_rank.feature_std(train),
        "dead_dimensions": feature_rank.dead_dimensions(train),
    }


def nearest_class_mean(features: Features) -> np.ndarray:
    """Predict the class [m] of each test image: the nearest class mean by cosine similarity.

    Features are L2-normalised before they are averaged.
    """
    classes, y = np.unique(features.train_labels, return_inverse=True)
    sums = np.zeros((len(classes), features.train.shape[1]))
    for part in slices(len(y), 2**16):
        np.add.at(sums, y[part], l2_normalise(features.train[part]))
    return classes[neighbours(sums, features.test, 1).indices[:, 0]]


def confused_pairs(labels: np.ndarray, predicted: np.ndarray) -> list[tuple[int, int, float]]:
    """List pairs of classes by the percentage of their images that are confused.

    Args:
        labels: [m] classes.
        predicted: [m] classes.

    Returns:
        (class, class, percent > 0), the most confused pair first.
    """
    size = np.bincount(labels, minlength=int(predicted.max()) + 1)
    wrong = np.sort(np.stack([labels, predicted])[:, labels != predicted], axis=0)
    (first, second), count = np.unique(wrong, axis=1, return_counts=True)
    share = 100 * count / (size[first] + size[second])
    order = np.argsort(-share, kind="stable")
    return [(int(first[i]), int(second[i]), float(share[i])) for i in order]


def run(context: EvalContext, *, seed: int, preset: str = "default") -> list[Result]:
    """Evaluate the diagnostics on training images and their views, and on labels if present.

    Raises:
        ValueError: as `evaluate`, and if the context has no images.
    """
    if context.train is None or context.views is None:
        raise ValueError("diagnostics need a data set of images")
    settings, features = PRESETS[preset], context.features
    features.require_finite()
    train = features.train[subset(len(features.train), settings["features"], seed=seed)]
    images = context.train.images(context.size, *context.resizing)
    drawn = subset(len(images), settings["images"], seed=seed)
    views = context.views(images[drawn], settings["views"], seed)
    metrics = evaluate(train, views, delta=settings["delta"])

    details = {"preset": preset, **settings, "features": len(train), "images": len(drawn)}
    rank, spread = metrics["rankme"], metrics["feature_std"]
    verdict = feature_rank.describe_collapse(rank=rank, spread=spread, most=min(train.shape))
    results = []
    for name, value in metrics.items():
        # As raw pixels, views may have another number of features than images.
        facts = {**details, "dimensions": (views if name in VIEW_METRICS else train).shape[-1]}
        if name == "rankme":
            facts["verdict"] = verdict
        results.append(Result(name, value, None, facts, "%" if name == "dead_dimensions" else ""))
    if min(features.train_labels.min(), features.test_labels.min()) >= 0:
        results += _class_results(features, context.train.class_names, preset)
    return results


def _class_results(features: Features, names: Sequence[str], preset: str) -> list[Result]:
    """Report the accuracy of the nearest class mean, its worst class and the most confused pair."""
    num_classes = int(max(features.train_labels.max(), features.test_labels.max())) + 1
    names = list(names) or [str(label) for label in range(num_classes)]
    if len(set(names)) < len(names):  # Two classes of one name would share a key of "per_class".
        names = [f"{name} ({label})" for label, name in enumerate(names)]
    labels, predicted = features.test_labels, nearest_class_mean(features)
    size = np.bincount(labels, minlength=num_classes)
    correct = np.bincount(labels[predicted == labels], minlength=num_classes)
    tested = np.flatnonzero(size)
    accuracy = 100 * (correct[tested] / size[tested])
    worst, lowest = names[tested[np.argmin(accuracy)]], float(accuracy.min())
    per_class = dict(zip([names[c] for c in tested], accuracy.tolist(), strict=True))
    pairs = [
        (names[a], names[b], share) for a, b, share in confused_pairs(labels, predicted)[:PAIRS]
    ]
    details = {"preset": preset, "classifier": "nearest class mean"}
    matrix = {}
    if num_classes <= MATRIX:
        counts = np.zeros((num_classes, num_classes), int)
        np.add.at(counts, (labels, predicted), 1)
        matrix["confusion"] = counts.tolist()
    mean, most = 100 * float(correct.sum() / size.sum()), pairs[0][2] if pairs else 0.0
    return [
        Result("class_mean_top1", mean, None, {**details, "per_class": per_class, **matrix}),
        Result("worst_class_top1", lowest, None, {**details, "class": worst}),
        Result("most_confused_pair", most, None, {**details, "pairs": pairs}),
    ]


protocol = Protocol(
    run, PRESETS, examples=("image", "image_text"), needs_labels=False, novel_classes=True
)
