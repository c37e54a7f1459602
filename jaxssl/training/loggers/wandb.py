"""Weights & Biases. Its environment variables, such as WANDB_MODE=offline, apply."""

import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxssl.training.loggers import ServiceState

PACKAGE = "wandb"


class Wandb:
    """Logger that sends metrics to one run of Weights & Biases."""

    def __init__(self, workdir: Path, config: Mapping[str, Any]) -> None:
        import wandb

        self._state = ServiceState(workdir / "wandb.json", uuid.uuid4().hex)
        project = os.environ.get("WANDB_PROJECT", "jaxssl")
        folder, name = str(workdir), workdir.resolve().name
        self._run = wandb.init(  # pyright: ignore[reportAttributeAccessIssue]
            project=project,
            name=name,
            dir=folder,
            id=self._state.id,
            resume="allow",
            config=dict(config),
            allow_val_change=True,
        )
        self._state.save(self._state.last_step)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Send the metrics of a step, unless an earlier part of the run has sent them."""
        if step > self._state.last_step:
            self._run.log(dict(metrics), step=step)
            self._state.save(step)

    def sync(self) -> None:
        """Do nothing, because wandb sends in the background."""

    def close(self) -> None:
        """Wait until everything is sent, and end the run."""
        self._run.finish()


def logger(workdir: Path, step: int, config: Mapping[str, Any]) -> Wandb:
    """Open a run, or continue the run of this workdir."""
    del step
    return Wandb(workdir, config)
