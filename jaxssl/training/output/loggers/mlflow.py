"""MLflow. MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME select server and experiment."""

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from jaxssl.training.output.loggers import ServiceState

PACKAGE = "mlflow"


class MLflow:
    """Logger that sends metrics to one run of MLflow."""

    def __init__(self, workdir: Path, config: Mapping[str, object]) -> None:
        from mlflow import MlflowClient  # pyright: ignore  # not installed with the tests

        self._client = MlflowClient()
        self._state = ServiceState(workdir / "mlflow.json", "")
        if self._state.id:
            self._client.update_run(self._state.id, status="RUNNING")
            return
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "jaxssl")
        experiment = self._client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment else self._client.create_experiment(name)
        run = self._client.create_run(number, run_name=workdir.resolve().name)
        self._state.id = run.info.run_id
        self._state.save(0)
        self._client.log_dict(self._state.id, dict(config), "config.json")

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Send the metrics of a step, unless the run sent them before it was interrupted."""
        from mlflow.entities import Metric

        if step > self._state.last_step:
            now = int(1000 * time.time())
            values = [Metric(name, value, now, step) for name, value in metrics.items()]
            self._client.log_batch(self._state.id, values)
            self._state.save(step)

    def sync(self) -> None:
        """Do nothing, because each step is sent at once."""

    def close(self) -> None:
        """End the MLflow run, as killed if an exception or a signal has stopped training."""
        status = "FINISHED" if sys.exc_info()[0] is None else "KILLED"
        self._client.set_terminated(self._state.id, status)


def logger(workdir: Path, step: int, config: Mapping[str, object]) -> MLflow:
    """Open a run, or continue the run of this workdir."""
    return MLflow(workdir, config)
