"""Explain why the loss or gradient of training steps was not finite."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from jaxssl.components import Settings

FILE_NAME = "fault.json"  # name of the diagnosis file in the workdir
# These are the quantities of a training step, in the order of their computation.
ORDER = ("parameters", "statistics", "views", "embeddings", "loss", "gradient")
# The return value of the function that `jaxssl.training.state.make_diagnosis` makes.
Measures = Mapping[str, Mapping[str, tuple[np.ndarray, np.ndarray]]]


def describe(
    first: int, skipped: int, indices: Callable[[int], np.ndarray], measures: Measures, path: Path
) -> tuple[Settings, str]:
    """Return the content of fault.json, and the message for the user, after skipped steps.

    Args:
        first: number of the first step that was skipped, counted from 1.
        skipped: number of steps skipped in a row.
        indices: maps the number of a batch, counted from 0, to the indices of its examples.
        measures: norms and counts of values that are not finite, of the first skipped step.
        path: of fault.json.
    """
    counts = {
        f"{quantity}: {name}": int(count)
        for quantity in ORDER
        for name, (_, count) in measures[quantity].items()
        if count
    }
    causes = list(counts) or ["the parameters after the step"]
    norms = {
        quantity: {
            name: float(norm) if math.isfinite(norm) else None
            for name, (norm, _) in measures[quantity].items()
        }
        for quantity in ORDER
    }
    document = {
        "step": first,
        "skipped_in_a_row": skipped,
        "not_finite": counts or dict.fromkeys(causes),
        "norms": norms,
        "batch": {str(n): indices(n - 1).tolist() for n in range(first, first + skipped)},
    }
    more = f" and {len(causes) - 1} more" if len(causes) > 1 else ""
    return document, (
        f"stopped: steps {first} to {first + skipped - 1} were not finite; first in step {first} "
        f"were {causes[0]!r}{more}; norms and examples are in {path}; try a lower optim.lr, "
        "optim.clip_norm, or precision=float32, in another --workdir"
    )
