"""Trackio, in its local database. TRACKIO_DIR selects the folder of the database."""

import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxssl.training.loggers import ServiceState

PACKAGE = "trackio"


class Trackio:
    """Logger that writes metrics to one run of Trackio."""

    def __init__(self, workdir: Path, config: Mapping[str, Any]) -> None:
        import trackio

        name = f"{workdir.resolve().name}-{uuid.uuid4().hex[:8]}"
        self._state = ServiceState(workdir / "trackio.json", name)
        self._run = trackio.init(  # pyright: ignore[reportAttributeAccessIssue]
            project=os.environ.get("TRACKIO_PROJECT", "jaxssl"),
            name=self._state.id,
            resume="allow",
            config=dict(config),
            embed=False,
        )
        self._state.save(self._state.last_step)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of a step, unless an earlier part of the run has written them."""
        if step > self._state.last_step:
            self._run.log(dict(metrics), step=step)
            self._state.save(step)

    def sync(self) -> None:
        """Do nothing, because Trackio writes in the background."""

    def close(self) -> None:
        """Wait until everything is written, and end the run."""
        self._run.finish()


def logger(workdir: Path, step: int, config: Mapping[str, Any]) -> Trackio:
    """Open a run, or continue the run of this workdir."""
    del step
    return Trackio(workdir, config)
