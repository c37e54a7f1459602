"""Detect spikes of the loss, and explain why training steps were not finite."""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from jaxssl.components import Settings
from jaxssl.training.output.logs import log

FILE_NAME = "fault.json"  # name of the diagnosis file in the workdir
WINDOW = 256  # number of earlier losses that a loss is compared with
MIN_LOSSES = 32  # number of losses before the first comparison
SPIKE = 10.0  # number of median absolute deviations above the median that make a spike
# These are the quantities of a training step, in the order of their computation.
ORDER = ("parameters", "statistics", "views", "embeddings", "loss", "gradient")
# See `jaxssl.training.state.make_diagnosis`.
Measures = Mapping[str, Mapping[str, tuple[np.ndarray, np.ndarray]]]


class LossMonitor:
    """Monitor that logs spikes of the loss and skipped steps.

    Args:
        skipped: steps skipped before.
    """

    def __init__(self, skipped: int = 0) -> None:
        self._losses: deque[float] = deque(maxlen=WINDOW)
        self._skipped = skipped

    def check(self, step: int, losses: Sequence[float], skipped: int) -> None:
        """Log spikes among the losses, and newly skipped steps.

        Args:
            step: number of the step of the last loss.
            losses: losses of all steps since the last check.
            skipped: steps skipped so far.
        """
        for number, loss in enumerate(losses, step - len(losses) + 1):
            if not math.isfinite(loss):
                continue
            if len(self._losses) >= MIN_LOSSES:
                median = float(np.median(self._losses))
                deviation = float(np.median(np.abs(np.asarray(self._losses) - median)))
                if loss > median + SPIKE * max(deviation, 1e-3 * abs(median)):
                    log.warning(
                        "step %d: loss spike: %.4g, the median of the %d steps before is %.4g",
                        *(number, loss, len(self._losses), median),
                    )
            self._losses.append(loss)
        if skipped > self._skipped:
            log.warning("step %d: %d steps skipped so far that were not finite", step, skipped)
        self._skipped = skipped


class Fault(NamedTuple):
    """The reason why a run stopped, in words and as data.

    Attributes:
        document: content of fault.json.
        message: message for the user, with "{path}" in place of the path of the document.
    """

    document: Settings
    message: str


def describe(
    first: int, skipped: int, indices: Callable[[int], np.ndarray], measures: Measures
) -> Fault:
    """Describe why training steps were skipped.

    Args:
        first: number of the first step that was skipped, counted from 1.
        skipped: number of steps skipped in a row.
        indices: maps the number of a batch, counted from 0, to the indices of its examples.
        measures: norms and counts of values that are not finite, of the first skipped step.
    """
    counts = {
        f"{quantity}: {name}": int(count)
        for quantity in ORDER
        for name, (_, count) in measures[quantity].items()
        if count
    }
    causes = list(counts) or ["the parameters after the step"]
    norms = {
        quantity: {name: _finite_or_none(norm) for name, (norm, _) in measures[quantity].items()}
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
    return Fault(
        document,
        f"stopped: steps {first} to {first + skipped - 1} were not finite; first in step {first} "
        f"were {causes[0]!r}{more}; norms and examples are in {{path}}; try a lower optim.lr, "
        "optim.clip_norm, or precision=float32, in another --workdir",
    )


def _finite_or_none(value: np.ndarray) -> float | None:
    return float(value) if math.isfinite(value) else None
