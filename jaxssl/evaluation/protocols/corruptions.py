"""Robustness to common corruptions: accuracy of a linear probe on corrupted test images.

The corruptions are in `jaxssl.augment.corruptions`. Seven of the fifteen differ from the published
sets ImageNet-C and CIFAR-10-C, so the figures are not comparable with published ones. The
classifier is the linear probe with the preset `fast`, so that most of the time goes into the
features of the 75 corrupted test sets.
"""

from collections.abc import Callable, Sequence

import numpy as np

from jaxssl.augment.corruptions import CORRUPTIONS, corrupt
from jaxssl.evaluation import logistic_regression
from jaxssl.evaluation.protocol import EvalContext, Protocol, Result, make_results, subset
from jaxssl.evaluation.protocols.linear import PRESETS as PROBES

# "severities" applies to each corruption. "limit" is the largest number of test images, drawn at
# random. The other settings belong to the linear probe.
PRESETS = {
    "quick": {"severities": (3,), "limit": 1000, **PROBES["fast"]},
    "common": {"severities": (1, 2, 3, 4, 5), "limit": None, **PROBES["fast"]},
}


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
        images: [n, h, w, c] uint8.
        labels: [n] int.
        predict: ``(uint8 images [n, h, w, c]) -> [n]`` labels.
        severities: each in 1, ..., 5.
        seed: seed of the random draws. Image i has the same draw at all severities.

    Returns:
        For each corruption, accuracies in percent, [number of severities].

    Raises:
        ValueError: if a severity is not in 1, ..., 5, or there are no images.
    """
    if not len(images) or not set(severities) <= set(range(1, 6)):
        raise ValueError(
            f"severities must be in 1 to 5 and there must be images, got severities "
            f"{tuple(severities)} and {len(images)} images"
        )

    def accuracy(name: str, severity: int) -> float:
        predicted = predict(corrupt(name, images, severity, seed=seed))
        return 100 * float(np.mean(predicted == labels))

    return {name: np.array([accuracy(name, s) for s in severities]) for name in CORRUPTIONS}


def run(context: EvalContext, *, seed: int, preset: str = "quick") -> list[Result]:
    """Evaluate the accuracy on clean images, under each corruption, and its mean.

    Raises:
        ValueError: if the context has no images.
    """
    if context.test is None or context.encode is None:
        raise ValueError("corruptions need a data set of images")
    encode = context.encode
    settings = dict(PRESETS[preset])
    severities, limit = settings.pop("severities"), settings.pop("limit")
    features = context.features
    classes, y = np.unique(features.train_labels, return_inverse=True)
    probe = logistic_regression.fit_probe(features.train, y, **settings, seed=seed)

    def classify(features: np.ndarray) -> np.ndarray:
        return classes[np.argmax(logistic_regression.scores(probe, features), axis=1)]

    images, labels = context.test.images(context.size), features.test_labels
    drawn = subset(len(labels), limit, seed=seed)
    clean = 100 * float(np.mean(classify(features.test[drawn]) == labels[drawn]))
    predict, options = lambda x: classify(encode(x)), {"severities": severities, "seed": seed}
    accuracies = evaluate(images[drawn], labels[drawn], predict, **options)
    details = {"preset": preset, **PRESETS[preset], "classifier": "linear", "chosen_C": probe.C}
    details["corruptions"] = "ours, not those of ImageNet-C's files"
    details["images"] = len(drawn)
    mean = float(np.mean(list(accuracies.values())))
    drop = 100 * (clean - mean) / clean if clean else 0.0  # in percent of the clean accuracy
    scores = {"clean_top1": clean, "mean_top1": mean, "drop": drop}
    results = make_results({f"corruption_{name}": x for name, x in scores.items()}, **details)
    for name, accuracy in accuracies.items():
        by_severity = dict(zip(map(str, severities), accuracy.tolist(), strict=True))
        score = {f"corruption_{name}_top1": float(accuracy.mean())}
        results += make_results(score, **details, by_severity=by_severity)
    return results


protocol = Protocol(run, PRESETS, examples=("image", "image_text"))
