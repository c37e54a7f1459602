"""Features of labelled examples that several tests evaluate."""

import numpy as np

from jaxssl.evaluation.protocol import Features


def labelled(n, m, f, classes, *, spread=1.0, seed=0):
    """Gaussian classes; a small spread separates them."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes, f))
    sets = []
    for size in (n, m):
        labels = np.arange(size) % classes
        rows = centres[labels] + spread * rng.normal(size=(size, f))
        sets += [rows.astype(np.float32), labels]
    return Features(*sets)
