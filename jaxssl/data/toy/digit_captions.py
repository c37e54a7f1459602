"""The handwritten digits with generated captions, for demos and tests of image-text models."""

import numpy as np
import tensorflow_datasets as tfds

from jaxssl.data import KeyedExamples
from jaxssl.data.prompts import SPOKEN
from jaxssl.data.toy import digits

STROKES = ("thin", "medium", "thick")
SLANTS = ("leaning left", "upright", "leaning right")
TEMPLATES = (
    "a handwritten {digit}, {stroke} strokes, {slant}",
    "the digit {digit} written with {stroke} strokes, {slant}",
    "a {stroke} {digit}, {slant}",
    "a scan of the number {digit}: {slant}, {stroke} pen",
    "someone wrote a {digit} {slant} in {stroke} strokes",
)


class Builder(digits.Builder):
    """TFDS builder of scikit-learn's digits with five generated captions an image.

    A caption names the digit, the thickness of its strokes and its slant. Both are measured on the
    image and divided into thirds of all images: the mean pixel, and the slope of the regression
    line of the ink's columns over its rows.
    """

    name = "digit_captions"

    def _features(self) -> dict[str, object]:
        return {**super()._features(), "captions": tfds.features.Sequence(tfds.features.Text())}

    def _generate_examples(
        self, images: np.ndarray, labels: np.ndarray, ids: np.ndarray
    ) -> KeyedExamples:
        stroke, slant = _thirds(ink(images)), _thirds(lean(images))
        for i, example in super()._generate_examples(images, labels, ids):
            words = {
                "digit": SPOKEN[str(labels[i])],
                "stroke": STROKES[stroke[i]],
                "slant": SLANTS[slant[i]],
            }
            yield i, {**example, "captions": [text.format(**words) for text in TEMPLATES]}


def ink(images: np.ndarray) -> np.ndarray:
    """Return the mean pixel of each image, [n], a measure of stroke thickness."""
    return images.reshape(len(images), -1).mean(axis=1)


def lean(images: np.ndarray) -> np.ndarray:
    """Return each digit's slope: columns to the right per row upwards, by regression, [n]."""
    weight = images / np.maximum(images.sum(axis=(1, 2), keepdims=True), 1)
    rows, columns = np.mgrid[: images.shape[1], : images.shape[2]]
    x = columns - (weight * columns).sum(axis=(1, 2), keepdims=True)
    y = (weight * rows).sum(axis=(1, 2), keepdims=True) - rows
    return (weight * x * y).sum(axis=(1, 2)) / np.maximum((weight * y**2).sum(axis=(1, 2)), 1e-9)


def _thirds(values: np.ndarray) -> np.ndarray:
    return np.searchsorted(np.quantile(values, [1 / 3, 2 / 3]), values)
