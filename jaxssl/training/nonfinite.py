"""Explain why the loss or gradient of training steps was not finite."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from jaxssl.components import Settings
from jaxssl.training.state import Measure

FILE_NAME = "fault.json"  # name of the diagnosis file in the workdir
# The quantities of a training step, in the order of their computation.
ORDER = ("parameters", "statistics", "views", "embeddings", "loss", "gradient")
# The result of the function that `jaxssl.training.state.make_diagnosis` returns, on the host.
Measures = Mapping[str, Mapping[str, Measure]]


def describe(
    first: int, skipped: int, indices: Callable[[int], np.ndarray], measures: Measures, path: Path
) -> tuple[Settings, str]:
    """Return the content of fault.json, and the message for the user, after skipped steps.

    Args:
        first: number of the first step that was skipped, counted from 1.
        skipped: number of steps skipped in a row.
        indices: maps the number of a batch, counted from 0, to the indices [b] of its examples.
        measures: measures of the first skipped step, by quantity of `ORDER` and by module.
        path: of fault.json.
    """
    counts: dict[str, int | None] = {}
    norms: dict[str, dict[str, float | None]] = {quantity: {} for quantity in ORDER}
    for quantity in ORDER:
        for name, (norm, num_not_finite) in measures[quantity].items():
            norms[quantity][name] = float(norm) if math.isfinite(norm) else None
            if num_not_finite:
                counts[f"{quantity}: {name}"] = int(num_not_finite)
    counts = counts or {"the parameters after the step": None}
    cause, *others = counts
    document = {
        "step": first,
        "skipped_in_a_row": skipped,
        "not_finite": counts,
        "norms": norms,
        "batch": {str(n): indices(n - 1).tolist() for n in range(first, first + skipped)},
    }
    more = f" and {len(others)} more" if others else ""
    return document, (
        f"stopped: steps {first} to {first + skipped - 1} were not finite; first in step {first} "
        f"were {cause!r}{more}; norms and examples are in {path}; try a lower optim.lr, "
        "optim.clip_norm, or precision=float32, in another --workdir"
    )
