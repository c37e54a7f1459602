"""Robustness to common corruptions: a classifier fitted on clean images, tested on corrupted ones.

The corruptions are those of `jaxssl.augment.corruptions`, the classifier is the linear probe
`fast`: with it, fifteen times five test sets cost little more than their features.
"""

from collections.abc import Callable, Sequence

import numpy as np

from jaxssl.augment.corruptions import CORRUPTIONS, corrupt
from jaxssl.evaluation import logistic_regression
from jaxssl.evaluation.protocol import EvalContext, Protocol, Result
from jaxssl.evaluation.protocols.linear import PRESETS as PROBES

# severities: of each corruption; limit: test images at most, drawn by the seed; others: those of
# the linear probe.
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
    """Accuracy on images as each corruption leaves them at each severity.

    Args:
        images: [n, h, w, c] uint8.
        labels: [n] int.
        predict: ``(uint8 images [n, h, w, c]) -> [n]`` labels.
        severities: of 1 to 5.
        seed: of the draws; image i has its own, the same for all severities.

    Returns:
        [number of severities] accuracies in percent of each of the corruptions.

    Raises:
        ValueError: if a severity is not of 1 to 5, or there are no images.
    """
    if not len(images) or not set(severities) <= set(range(1, 6)):
        raise ValueError(
            f"corruptions take severities of 1 to 5 and an image or more, got severities "
            f"{tuple(severities)} and {len(images)} images"
        )
    return {
        name: np.array(
            [
                100 * np.mean(predict(corrupt(name, images, severity, seed=seed)) == labels)
                for severity in severities
            ]
        )
        for name in CORRUPTIONS
    }


def run(context: EvalContext, *, seed: int, preset: str = "quick") -> list[Result]:
    """Accuracy on clean images, over all corruptions and on each of them."""
    settings = dict(PRESETS[preset])
    severities, limit = settings.pop("severities"), settings.pop("limit")
    features = context.features
    classes, y = np.unique(features.train_labels, return_inverse=True)
    probe = logistic_regression.fit_probe(features.train, y, **settings, seed=seed)

    def classify(features: np.ndarray) -> np.ndarray:
        return classes[np.argmax(logistic_regression.scores(probe, features), axis=1)]

    images, labels = context.test.images(context.size), features.test_labels
    chosen = np.arange(len(labels))
    if limit is not None and len(labels) > limit:
        chosen = np.sort(np.random.default_rng(seed).choice(len(labels), limit, replace=False))
    clean = 100 * float(np.mean(classify(features.test[chosen]) == labels[chosen]))
    found = evaluate(
        images[chosen],
        labels[chosen],
        lambda x: classify(context.encode(x)),
        severities=severities,
        seed=seed,
    )
    details = {"preset": preset, **PRESETS[preset], "classifier": "linear", "chosen_C": probe.C}
    details["images"] = len(chosen)
    mean = float(np.mean(list(found.values())))
    rows = [
        Result("corruption_clean_top1", clean, None, details),
        Result("corruption_mean_top1", mean, None, details),
        # What is lost, as a share of what there was.
        Result("corruption_drop", 100 * (clean - mean) / clean if clean else 0.0, None, details),
    ]
    for name, accuracy in found.items():
        by_severity = dict(zip(map(str, severities), accuracy.tolist(), strict=True))
        own = {**details, "by_severity": by_severity}
        rows.append(Result(f"corruption_{name}_top1", float(accuracy.mean()), None, own))
    return rows


protocol = Protocol(run, PRESETS, examples=("image", "image_text"))
