"""What several benchmarks take."""

import numpy as np

from jaxssl.data.source import Part, Source


def source_of(records: list, shape: tuple) -> Source:
    """A split of images that are in memory, files or uint8 arrays."""
    part = Part([{"image": record, "label": 0} for record in records])
    return Source("made", "train", ((part, np.arange(len(records))),), ("a", "b"), shape)


def spread(values: list[float], digits: int = 2) -> str:
    """Median, and between brackets the smallest and the largest."""
    low, middle, high = min(values), float(np.median(values)), max(values)
    return f"{middle:.{digits}f} [{low:.{digits}f}-{high:.{digits}f}]"
