"""Evaluation protocols: features, images and networks in, numbers out.

A protocol is a file here. It has `PRESETS`, its named settings, and
``run(subject, *, seed, preset) -> rows``; also `FITS`, if it is not meant for all kinds of examples
(keys of `jaxssl.training.modality.MODALITIES`), `KINDS`, if it is not for all kinds of features,
`LAYER`, if it is of that layer alone, `LABELS = False`, if it needs none, `NOVEL = True`, if the
test images may be of other classes than the training images, `FEATURES = False`, if it has no use
for those of all images, and `SHARED`, those presets that several processes may share: each then has
its part of the features. `jaxssl.evaluation.run` finds it by its file name.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jax.sharding import Mesh

if TYPE_CHECKING:  # those who import a protocol need not have the data layer
    from jaxssl.data.source import Source
    from jaxssl.evaluation.finetuning import Network


class Features(NamedTuple):
    """Of a data set, as most protocols see it; of several processes, each has its part.

    Attributes:
        train: [n, f] float32.
        train_labels: [n] int >= 0.
        test: [m, f] float32.
        test_labels: [m] int >= 0.
    """

    train: np.ndarray
    train_labels: np.ndarray
    test: np.ndarray
    test_labels: np.ndarray


class Joint(NamedTuple):
    """Where images and texts meet, of a network that has read captions.

    Attributes:
        images: () -> [m, d], embeddings of the test images.
        texts: (tokens [n, length] int32) -> [n, d].
        context: tokens of a text.
    """

    images: Callable[[], np.ndarray]
    texts: Callable[[np.ndarray], np.ndarray]
    context: int


class Subject(NamedTuple):
    """What a protocol is run on.

    Attributes:
        features: of the labelled training images and the test images; empty if no protocol that
            was asked for needs them (`FEATURES = False`).
        train: where the training images come from.
        test: the test images.
        encode: ``(uint8 images [n, h, w, c]) -> [n, f]``, features like those above.
        views: ``(uint8 images, number, seed) -> [number, n, f]``, features of random views as in
            training.
        network: what may be trained further; None for raw pixels and projectors.
        size: pixels a side that images of many sizes are cut to.
        mesh: the devices.
        joint: the embeddings of images and texts, or None.
    """

    features: Features
    train: "Source | None" = None
    test: "Source | None" = None
    encode: Callable[[np.ndarray], np.ndarray] | None = None
    views: Callable[[np.ndarray, int, int], np.ndarray] | None = None
    network: "Network | None" = None
    size: int = 0
    mesh: Mesh | None = None
    joint: Joint | None = None


class Row(NamedTuple):
    """One figure.

    Attributes:
        metric: such as "knn_top1".
        value: in percent, or in ``unit``.
        std: over the protocol's repetitions, in the same unit; None if there is one only.
        details: the effective settings of the protocol. "ci95" is half the width of a 95 %
            interval, which is then shown in place of ``std``; "verdict" is said in words.
        unit: of the value; "" is a bare number.
    """

    metric: str
    value: float
    std: float | None
    details: dict[str, Any]
    unit: str = "%"
