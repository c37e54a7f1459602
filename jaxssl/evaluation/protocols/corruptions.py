"""Robustness to common corruptions: accuracy of a linear probe on corrupted test images.

The presets `quick` and `common` apply our corruptions, `jaxssl.augment.corruptions`, which differ
from the published sets, so their results are not comparable with published ones. The other presets
read a published set, see `jaxssl.evaluation.corrupted_sets`. The classifier is the linear probe
with the preset `fast`, so that most of the time goes into the features of the 75 corrupted test
sets.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxssl import distributed
from jaxssl.augment.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from jaxssl.data.decoders.arrays import LazyArray
from jaxssl.evaluation import corrupted_sets, logistic_regression
from jaxssl.evaluation.protocol import EvalContext, Protocol, Result, make_results, subset
from jaxssl.evaluation.protocols.linear import PRESETS as PROBES

# "corruptions" is "ours" or the folder of a published set. "severities" applies to each corruption.
# "limit" is the largest number of test images, drawn at random. The other settings belong to the
# linear probe.
OURS = {"corruptions": "ours", "severities": SEVERITIES, "limit": None, **PROBES["fast"]}
PRESETS = {
    "quick": {**OURS, "severities": (3,), "limit": 1000},
    "common": OURS,
    "cifar10_c": {**OURS, "corruptions": "CIFAR-10-C"},
    "cifar10_corrupted": {**OURS, "corruptions": "cifar10_corrupted"},
    "imagenet_c": {**OURS, "corruptions": "ImageNet-C"},
    "imagenet2012_corrupted": {**OURS, "corruptions": "imagenet2012_corrupted"},
}
# AlexNet's error on ImageNet-C, mean over the severities, in the order of `CORRUPTIONS`.
ALEXNET = (
    *(0.886428, 0.894468, 0.922640, 0.819880, 0.826268, 0.785948, 0.798360, 0.866816),
    *(0.826572, 0.819324, 0.564592, 0.853204, 0.646056, 0.717840, 0.606500),
)


def evaluate(
    images: np.ndarray,
    labels: np.ndarray,
    predict: Callable[[np.ndarray], np.ndarray],
    *,
    severities: Sequence[int],
    seed: int,
) -> dict[str, np.ndarray]:
    """Compute the accuracy on images with each corruption at each severity.

    Args:
        images: [n, h, w, c] uint8, grey or RGB, because one corruption is JPEG compression.
        labels: [n] int.
        predict: ``(uint8 images [n, h, w, c]) -> [n]`` labels.
        severities: each in 1, ..., 5.
        seed: seed of the random draws. Image i has the same draw at all severities.

    Returns:
        For each corruption, accuracies in percent, [number of severities].

    Raises:
        ValueError: if a severity is not in 1, ..., 5, ``images`` is empty, or images or labels have
            another shape or dtype.
    """
    if not len(images) or not set(severities) <= set(range(1, 6)):
        raise ValueError(
            f"severities must be in 1 to 5 and there must be images, got severities "
            f"{tuple(severities)} and {len(images)} images"
        )
    if np.shape(labels) != (len(images),):
        raise ValueError(f"labels must be [{len(images)}], got {list(np.shape(labels))}")

    def read(name: str, severity: int) -> tuple[np.ndarray, np.ndarray]:
        return corrupt(name, images, severity, seed=seed), labels

    return _accuracies(read, severities, predict)


def mean_corruption_error(accuracies: Mapping[str, np.ndarray]) -> float:
    r"""Return the mean corruption error on ImageNet-C in percent.

    .. math:: \mathrm{mCE} = \frac{100}{15} \sum_c \frac{\sum_s E_{s,c}}{\sum_s E^{AlexNet}_{s,c}}

    Args:
        accuracies: for each of the 15 corruptions, the accuracies in percent at severities 1 to 5.

    References:
        Hendrycks and Dietterich, Benchmarking Neural Network Robustness to Common Corruptions and
        Perturbations, 2019, section 4.1.
    """
    errors = [1 - np.mean(accuracies[name]) / 100 for name in CORRUPTIONS]
    return 100 * float(np.mean(np.array(errors) / ALEXNET))


def run(context: EvalContext, *, seed: int, preset: str = "quick") -> list[Result]:
    """Evaluate the accuracy on clean images, under each corruption, and averaged over corruptions.

    On ImageNet-C, "corruption_mce" is the `mean_corruption_error`. CIFAR-10-C has no such
    normalisation, and "corruption_mean_error" is 100 minus the mean accuracy.

    Raises:
        ValueError: if the context has no images, a feature is not finite, or the published set is
            not complete or does not have the labels of the test split.
    """
    if context.test is None or context.encode is None:
        raise ValueError("corruptions need a data set of images")
    encode = context.encode
    features = context.features
    features.require_finite()
    settings = dict(PRESETS[preset])
    severities, limit = settings.pop("severities"), settings.pop("limit")
    origin = settings.pop("corruptions")
    published = {}
    if origin != "ours":
        class_names = context.test.class_names
        interpolation = context.resizing[-1] if context.resizing else "bilinear"
        settings_of_set = context.data, class_names, context.size, str(interpolation)
        published = _open_everywhere(origin, *settings_of_set)
        _, theirs = published[CORRUPTIONS[0], severities[0]]()
        if not np.array_equal(np.sort(theirs), np.sort(features.test_labels)):
            raise ValueError(
                f"{origin} has {len(theirs)} images of the whole test set, and data.test_split has "
                f"{len(features.test_labels)} others; set it to the split of those images"
            )
    classes, y = np.unique(features.train_labels, return_inverse=True)
    probe = logistic_regression.fit_probe(features.train, y, **settings, seed=seed)

    def classify(features: np.ndarray) -> np.ndarray:
        return classes[np.argmax(logistic_regression.scores(probe, features), axis=1)]

    def predict(images: np.ndarray | LazyArray) -> np.ndarray:
        encoded = encode(images)
        if not np.isfinite(encoded).all():
            raise ValueError("features of corrupted images must be finite, got NaN or infinity")
        return classify(encoded)

    drawn = subset(len(features.test), limit, seed=seed)
    labels = features.test_labels[drawn]
    clean = 100 * float(np.mean(classify(features.test[drawn]) == labels))
    if published:
        accuracies = _accuracies(lambda *key: published[key](), severities, predict)
    else:
        images = context.test.images(context.size, *context.resizing)[drawn]
        accuracies = evaluate(images, labels, predict, severities=severities, seed=seed)
    details = {"preset": preset, **PRESETS[preset], "classifier": "linear", "chosen_C": probe.C}
    details["images"] = len(drawn)
    mean = float(np.mean(list(accuracies.values())))
    drop = 100 * (clean - mean) / clean if clean else 0.0  # in percent of the clean accuracy
    scores = {"clean_top1": clean, "mean_top1": mean, "drop": drop}
    if origin in ("ImageNet-C", "imagenet2012_corrupted"):
        scores["mce"] = mean_corruption_error(accuracies)
    elif published:
        scores["mean_error"] = 100 - mean
    results = make_results({f"corruption_{name}": x for name, x in scores.items()}, **details)
    for name, accuracy in accuracies.items():
        by_severity = dict(zip(map(str, severities), accuracy.tolist(), strict=True))
        score = {f"corruption_{name}_top1": float(accuracy.mean())}
        results += make_results(score, **details, by_severity=by_severity)
    return results


def _accuracies(
    read: Callable[..., corrupted_sets.Labelled], severities: Sequence[int], predict: Callable
) -> dict[str, np.ndarray]:
    """Compute accuracies in percent for each corruption, [number of severities].

    Args:
        read: ``(corruption, severity) -> images, labels``.
        severities: each in 1, ..., 5.
        predict: ``images -> labels``.
    """

    def accuracy(name: str, severity: int) -> float:
        images, labels = read(name, severity)
        return 100 * float(np.mean(predict(images) == labels))

    return {name: np.array([accuracy(name, s) for s in severities]) for name in CORRUPTIONS}


def _open_everywhere(origin: str, *settings: Any) -> corrupted_sets.Readers:
    """Open a published set in all processes, or raise the same ValueError in all of them."""
    reason, opened = "", {}
    try:
        opened = corrupted_sets.open_set(origin, *settings)
    except ValueError as error:
        reason = str(error)
    if reasons := [text for text in distributed.gather_process_texts(reason) if text]:
        raise ValueError(reasons[0])
    return opened


protocol = Protocol(run, PRESETS, examples=("image", "image_text"))
