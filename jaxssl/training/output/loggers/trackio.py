"""Trackio, with a local database. TRACKIO_DIR selects the folder of the database."""

import os
import uuid
from collections.abc import Mapping
from pathlib import Path

from jaxssl.training.output.loggers import ServiceLogger, ServiceState

PACKAGE = "trackio"


def logger(workdir: Path, step: int, config: Mapping[str, object]) -> ServiceLogger:
    """Open a run, or continue the run of this workdir."""
    import trackio

    new_name = f"{workdir.resolve().name}-{uuid.uuid4().hex[:8]}"
    state = ServiceState(workdir / "trackio.json", new_name)
    run = trackio.init(  # pyright: ignore[reportAttributeAccessIssue]
        project=os.environ.get("TRACKIO_PROJECT", "jaxssl"),
        name=state.id,
        resume="allow",
        config=dict(config),
        embed=False,
    )
    return ServiceLogger(run, state)
