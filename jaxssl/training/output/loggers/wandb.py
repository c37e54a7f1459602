"""Weights & Biases. Environment variables of wandb, such as WANDB_MODE=offline, apply."""

import os
import uuid
from collections.abc import Mapping
from pathlib import Path

from jaxssl.buckets import is_bucket
from jaxssl.training.output.loggers import ServiceLogger, ServiceState

PACKAGE = "wandb"


def logger(workdir: Path, step: int, config: Mapping[str, object]) -> ServiceLogger:
    """Open a run, or continue the run of this workdir."""
    import wandb

    state = ServiceState(workdir / "wandb.json", uuid.uuid4().hex)
    run = wandb.init(  # pyright: ignore[reportAttributeAccessIssue]
        project=os.environ.get("WANDB_PROJECT", "jaxssl"),
        name=workdir.resolve().name,
        dir=None if is_bucket(workdir) else str(workdir),
        id=state.id,
        resume="allow",
        config=dict(config),
        allow_val_change=True,
    )
    return ServiceLogger(run, state)
