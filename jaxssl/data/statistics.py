"""Statistics of the channels of training images, by which a run scales its views."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxssl.data import kind
from jaxssl.data.splits import Source
from jaxssl.errors import UserError, suggest

NORMALISE = ("auto", "half", "measured")
MEASURED = 1024  # number of images, evenly spaced in the split
SMALLEST_STD = 1 / 255  # of a channel with one value


def channel_statistics(
    data: Mapping[str, Any], source: Source, size: int
) -> dict[str, tuple[float, ...]]:
    """Return the entries "mean" and "std" of the group `config.data`, or {} for [-1, 1].

    Args:
        data: the group `config.data`, whose key "normalise" says what to return.
        source: the training split. `MEASURED` of its images are read.
        size: side of the centre that is measured of images of different sizes.

    Returns:
        The statistics of each channel for values in [0, 1], rounded to four decimals.

    Raises:
        UserError: if the setting is unknown or the examples are not images.
    """
    normalise = data.get("normalise", "auto")  # Runs of earlier versions lack it.
    if normalise not in NORMALISE:
        raise UserError(f"data.normalise={normalise!r} is unknown{suggest(normalise, NORMALISE)}")
    is_image = kind.get(source.kind).pictures
    if normalise == "measured" and not is_image:
        raise UserError("data.normalise='measured' is only for images; leave it at 'auto'")
    if normalise == "half" or not is_image:
        return {}
    if normalise == "auto" and source.shape[-1] in (1, 3):
        return {}
    chosen = np.linspace(0, len(source) - 1, min(len(source), MEASURED)).astype(np.int64)
    images = source.lazy_images(size)[chosen].reshape(-1, source.shape[-1])
    mean, std = images.mean(axis=0) / 255, images.std(axis=0) / 255
    return {
        "mean": tuple(float(x) for x in mean.round(4)),
        "std": tuple(float(x) for x in np.maximum(std, SMALLEST_STD).round(4)),
    }
