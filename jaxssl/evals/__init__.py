"""Evaluation protocols: arrays in, numbers out.

A protocol's file has `PRESETS`, its named settings, and `run(features, *, seed, preset) -> rows`.
`jaxssl.evaluate` finds it by its file name and runs it on a checkpoint's features.
"""

from typing import Any, NamedTuple

import numpy as np


class Features(NamedTuple):
    """What a protocol sees of a data set.

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


class Row(NamedTuple):
    """One figure.

    Attributes:
        metric: such as "knn_top1".
        value: in percent.
        std: over the protocol's repetitions, in percent; None if there is one only.
        details: the effective settings of the protocol.
    """

    metric: str
    value: float
    std: float | None
    details: dict[str, Any]
