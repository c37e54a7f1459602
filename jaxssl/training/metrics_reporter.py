"""Report the metrics of a run to metrics.jsonl, the loggers, the log and a progress bar."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import jax
import numpy as np
from jax import Array
from rich import progress

from jaxssl.training import collapse
from jaxssl.training.build import Setup
from jaxssl.training.output import console
from jaxssl.training.output.logs import log
from jaxssl.training.output.metrics_writer import MetricsWriter

WINDOW = 256  # number of earlier losses that a loss is compared with
MIN_LOSSES = 32  # number of earlier losses below which no loss is compared
SPIKE = 10.0  # number of median absolute deviations above the median that make a spike


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


class MetricsReporter:
    """Reporter that fetches training metrics from the device. Only the first process writes.

    Args:
        setup: built from the config of the run.
        writer: writes metrics.jsonl, on the first process.
        step: the step that the run starts or resumes from.
        skipped: steps skipped so far.
    """

    def __init__(self, setup: Setup, writer: MetricsWriter | None, step: int, skipped: int) -> None:
        self._setup, self._writer = setup, writer
        self._monitor = LossMonitor(skipped)
        self._bar: progress.Progress | None = None
        self._figures: dict[str, float] = {}  # latest value of each metric
        self._collapsed = False
        self.restart_clock(step)

    def restart_clock(self, step: int) -> None:
        """Measure the training speed from this step and this moment on."""
        self._clock = step, time.perf_counter()

    def report(
        self,
        step: int,
        metrics: Mapping[str, Array],
        losses: Sequence[tuple[Array, int]],
        evaluate: Callable[[], Mapping[str, float]] | None = None,
    ) -> dict[str, float]:
        """Wait for a training step, and write, show and check the metrics of the step.

        Args:
            step: number of the step.
            metrics: metrics of the step, on the device.
            losses: losses of all steps since the last report: one array for each call, and the
                number of its entries that count.
            evaluate: returns further metrics, such as the k-NN accuracy. Its time does not count
                for the speed.

        Returns:
            The metrics, with "skipped_in_a_row".
        """
        metrics, losses = jax.device_get((metrics, losses))
        values = {name: float(value) for name, value in metrics.items()}
        first_step, start = self._clock
        self.restart_clock(step)
        speed = (step - first_step) / (self._clock[1] - start)
        skipped, in_a_row = int(values["skipped_steps"]), int(values["skipped_in_a_row"])
        self._monitor.check(step, [float(x) for array, n in losses for x in array[:n]], skipped)
        if in_a_row >= self._setup.max_skipped:
            return values  # The run stops after this report.
        # Skipped steps do not advance the learning-rate schedule.
        scheduled = step - 1 - skipped + (in_a_row > 0)
        values |= {
            "images_per_second": self._setup.batch_size * speed,
            "learning_rate": float(self._setup.learning_rate(scheduled)),
            "epoch": step / self._setup.steps_per_epoch,
        }
        values |= evaluate() if evaluate else {}
        if self._writer:
            shown = {name: value for name, value in values.items() if name != "skipped_in_a_row"}
            self._writer.write(step, shown)
            self._figures |= shown
            if self._bar:
                [task] = self._bar.tasks
                figures = f"loss {self._figures['loss']:.4g}"
                figures += f"  {self._figures['images_per_second']:.0f} {task.fields['unit']}/s"
                if "knn_top1" in self._figures:
                    figures += f"  k-NN {self._figures['knn_top1']:.2f} %"
                self._bar.update(task.id, completed=step, figures=figures)
            self._log(step, shown)
        return values

    @contextmanager
    def progress_bar(self, step: int, total: int, unit: str) -> Iterator[None]:
        """Show a bar with steps, remaining time and the latest metrics, if there is a terminal.

        Args:
            step: steps done.
            total: steps of the run.
            unit: plural name of the examples.
        """
        columns = (
            progress.TextColumn("step {task.completed}/{task.total}"),
            progress.BarColumn(),
            progress.TextColumn("{task.fields[figures]}", markup=False),
            progress.TimeRemainingColumn(),
        )
        with progress.Progress(*columns, console=console.screen) as self._bar:
            self._bar.add_task("", total=total, completed=step, figures="compiling", unit=unit)
            yield

    def _log(self, step: int, values: Mapping[str, float]) -> None:
        """Log the k-NN accuracy if measured, and a warning when the embeddings collapse."""
        if "knn_top1" in values:
            log.info(
                "step %d (epoch %.1f): loss %.4g, k-NN %.2f %%, feature std %.3f, effective rank "
                "%.1f",
                *(step, values["epoch"], values["loss"], values["knn_top1"]),
                *(values["feature_std"], values["effective_rank"]),
            )
        before, self._collapsed = self._collapsed, values["feature_std"] < collapse.COLLAPSED_STD
        if self._collapsed and not before:
            log.warning(
                "step %d: collapsed: the embeddings are nearly equal (feature_std %.4f < %.1f)",
                *(step, values["feature_std"], collapse.COLLAPSED_STD),
            )
