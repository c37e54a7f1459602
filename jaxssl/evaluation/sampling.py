"""Random samples of a data set's examples."""

import numpy as np


def subset(n: int, limit: int | None, *, seed: int) -> np.ndarray:
    """Draw at most ``limit`` of n examples, and return their sorted indices."""
    if limit is None or n <= limit:
        return np.arange(n)
    return np.sort(np.random.default_rng(seed).choice(n, limit, replace=False))


def stratified(labels: np.ndarray, share: float, *, seed: int, least: int = 0) -> np.ndarray:
    """Draw a share of the examples of each class.

    With the same seed, a larger share contains a smaller one. At least one example of each class is
    left out, unless ``least`` demands it.

    Args:
        labels: [n] int.
        share: in [0, 1); the number of examples of each class is rounded.
        seed: seed of the draw.
        least: minimum number of examples of each class, if the class has that many.

    Returns:
        Sorted indices of the drawn examples.
    """
    rng, drawn = np.random.default_rng(seed), []
    for c in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == c))
        number = max(least, min(round(share * len(members)), len(members) - 1))
        drawn.append(members[:number])
    return np.sort(np.concatenate(drawn))
