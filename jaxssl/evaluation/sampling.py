"""Draws of a share of labelled examples, class by class."""

import numpy as np


def stratified(labels: np.ndarray, share: float, *, seed: int, least: int = 0) -> np.ndarray:
    """Sorted places of a share of the examples of each class; a larger share holds a smaller one.

    Args:
        labels: [n] int.
        share: in [0, 1); what is rounded away is left, and one example of each class too.
        seed: of the draw.
        least: examples of each class at least, as far as there are.
    """
    rng, chosen = np.random.default_rng(seed), []
    for c in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == c))
        number = max(least, min(round(share * len(members)), len(members) - 1))
        chosen.append(members[:number])
    return np.sort(np.concatenate(chosen))
