"""Data set of scikit-learn's 1 797 images of handwritten digits."""

import io
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image

from jaxssl.data import KeyedExamples, toy

NUM_TRAIN = 1297


class Builder(toy.ToyBuilder):
    """8x8 grey images of digits by 13 writers, the test set of UCI's optical recognition data.

    The set is https://archive.ics.uci.edu/dataset/80. The first 1 297 images of a fixed permutation
    are "train", the other 500 are "test". Images are stored as PNG bytes, so neither preparing nor
    reading the set needs TensorFlow.
    """

    name = "digits"

    def _features(self) -> dict[str, object]:
        return {
            "image": tfds.features.Image(shape=(8, 8, 1), encoding_format="png"),
            "label": tfds.features.ClassLabel(names=[str(digit) for digit in range(10)]),
            "id": np.int64,
        }

    def _split_generators(self, dl_manager: object) -> dict[str, object]:
        return {split: self._generate_examples(*arrays) for split, arrays in load_splits().items()}

    def _generate_examples(
        self, images: np.ndarray, labels: np.ndarray, ids: np.ndarray
    ) -> KeyedExamples:
        for i in ids.tolist():
            png = io.BytesIO()
            Image.fromarray(images[i]).save(png, format="png")
            yield i, {"image": png.getvalue(), "label": int(labels[i]), "id": i}


def load_splits() -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return (images [1797, 8, 8] uint8, labels, indices of the split) for "train" and "test"."""
    # scikit-learn is slow to import, and only needed to prepare the data.
    from sklearn.datasets import load_digits

    digits: Any = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = np.round(digits.images * (255 / 16)).astype(np.uint8)
    splits = {"train": order[:NUM_TRAIN], "test": order[NUM_TRAIN:]}
    return {split: (images, digits.target, indices) for split, indices in splits.items()}
