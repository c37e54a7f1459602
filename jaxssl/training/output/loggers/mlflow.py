"""MLflow. MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME select server and experiment."""

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jaxssl.training.output.loggers import ServiceLogger, ServiceState

PACKAGE = "mlflow"


class Run(NamedTuple):
    """A run of MLflow with the methods that `ServiceLogger` calls."""

    client: Any
    id: str

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Send the metrics of a step."""
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        values = [Metric(name, value, now, step) for name, value in metrics.items()]
        self.client.log_batch(self.id, values)

    def finish(self) -> None:
        """End the MLflow run, as killed if an exception or a signal has stopped training."""
        status = "FINISHED" if sys.exc_info()[0] is None else "KILLED"
        self.client.set_terminated(self.id, status)


def logger(workdir: Path, step: int, config: Mapping[str, object]) -> ServiceLogger:
    """Open a run, or continue the run of this workdir."""
    from mlflow import MlflowClient  # pyright: ignore  # not installed with the tests

    client, state = MlflowClient(), ServiceState(workdir / "mlflow.json", "")
    if state.id:
        client.update_run(state.id, status="RUNNING")
    else:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "jaxssl")
        experiment = client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment else client.create_experiment(name)
        state.id = client.create_run(number, run_name=workdir.resolve().name).info.run_id
        state.save(0)
        client.log_dict(state.id, dict(config), "config.json")
    return ServiceLogger(Run(client, state.id), state)
