"""What goes wrong in training: steps that are not finite, and spikes of the loss."""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxssl.training.logs import log

FILE_NAME = "fault.json"
WINDOW, ENOUGH = 256, 32  # losses that a new one is compared with, and those that suffice
SPIKE = 10.0  # median absolute deviations above the median
ORDER = (
    "parameters",
    "statistics",
    "views",
    "embeddings",
    "loss",
    "gradient",
)  # as they come to be
Measures = Mapping[str, Mapping[str, tuple[Any, Any]]]  # see `jaxssl.training.state.make_diagnosis`


class LossMonitor:
    """Looks at the loss of every step, and at the number of steps left out, ``skipped`` so far."""

    def __init__(self, skipped: int = 0) -> None:
        self._losses: deque[float] = deque(maxlen=WINDOW)
        self._skipped = skipped

    def check(self, step: int, losses: Sequence[float], skipped: int) -> None:
        """Log what is out of the way.

        Args:
            step: of the last of the losses.
            losses: of the steps since the last look.
            skipped: steps left out so far.
        """
        for number, loss in enumerate(losses, step - len(losses) + 1):
            if not math.isfinite(loss):
                continue
            if len(self._losses) >= ENOUGH:
                median = float(np.median(self._losses))
                spread = float(np.median(np.abs(np.asarray(self._losses) - median)))
                if loss > median + SPIKE * max(spread, 1e-3 * abs(median)):
                    log.warning(
                        "step %d: loss spike: %.4g, the median of the %d steps before is %.4g",
                        *(number, loss, len(self._losses), median),
                    )
            self._losses.append(loss)
        if skipped > self._skipped:
            log.warning(
                "step %d: steps left out so far, because something was not finite: %d",
                *(step, skipped),
            )
        self._skipped = skipped


class Fault(NamedTuple):
    """Why a run stopped.

    Attributes:
        document: for "fault.json".
        message: for the user, with a "{path}" where the document is.
    """

    document: dict[str, Any]
    message: str


def describe(
    first: int, skipped: int, places: Callable[[int], np.ndarray], measures: Measures
) -> Fault:
    """Put into words why steps were left out.

    Args:
        first: number of the first step of those left out in a row, counted from 1.
        skipped: how many.
        places: of a batch, counted from 0, in the training set.
        measures: of the first step.
    """
    bad = {
        f"{what}: {name}": int(count)
        for what in ORDER
        for name, (_, count) in measures[what].items()
        if count
    }
    terms = list(bad) or ["the parameters after the step"]
    norms = {
        what: {name: _finite(norm) for name, (norm, _) in measures[what].items()} for what in ORDER
    }
    document = {
        "step": first,
        "skipped_in_a_row": skipped,
        "not_finite": bad or dict.fromkeys(terms),
        "norms": norms,
        "batch": {str(n): places(n - 1).tolist() for n in range(first, first + skipped)},
    }
    more = f" and {len(terms) - 1} more" if len(terms) > 1 else ""
    return Fault(
        document,
        f"stopped: steps {first} to {first + skipped - 1} were not finite; first in step {first} "
        f"were {terms[0]!r}{more}; norms and examples are in {{path}}; try a lower optim.lr, "
        "optim.clip_norm, or precision=float32, in another --workdir",
    )


def _finite(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None
