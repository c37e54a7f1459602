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

WINDOW = 256  # largest number of earlier losses that a loss is compared with
MIN_LOSSES = 32  # smallest number of earlier losses that a loss is compared with
SPIKE = 10.0  # A spike is more than this many median absolute deviations above the median.


class LossMonitor:
    """Warns when the loss spikes and when steps are skipped.

    Args:
        skipped: number of steps skipped before the run resumed.
    """

    def __init__(self, skipped: int = 0) -> None:
        self._losses: deque[float] = deque(maxlen=WINDOW)
        self._skipped, self._spiking = skipped, False

    def check(self, step: int, losses: Sequence[float], skipped: int) -> None:
        """Log where a spike of the losses begins, and newly skipped steps.

        The median absolute deviation counts as at least a thousandth of the median. Otherwise a
        tiny rise of a constant loss would be a spike.

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
                is_spike = loss > median + SPIKE * max(deviation, 1e-3 * abs(median))
                if is_spike and not self._spiking:
                    log.warning(
                        f"step {number}: loss spike: {loss:.4g}, the median of the "
                        f"{len(self._losses)} steps before is {median:.4g}"
                    )
                self._spiking = is_spike
            self._losses.append(loss)
        if skipped > self._skipped:
            log.warning(f"step {step}: {skipped} of the steps so far were not finite and skipped")
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
        self._latest: dict[str, float] = {}  # by metric, for the progress bar
        self._collapsed = False  # at the last report
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
            losses: pairs (array [k], n) for each call since the last report. The first n entries
                are the losses of the steps of the call.
            evaluate: returns further metrics, such as the k-NN accuracy. The caller restarts the
                clock afterwards, so that its time does not count for the speed.

        Returns:
            The metrics, with "skipped_in_a_row". If the run stops because of skipped steps, they
            are neither written nor completed.
        """
        metrics, losses = jax.device_get((metrics, losses))
        values = {name: float(value) for name, value in metrics.items()}
        first_step, start = self._clock
        self.restart_clock(step)
        seconds = self._clock[1] - start
        skipped, in_a_row = int(values["skipped_steps"]), int(values["skipped_in_a_row"])
        if self._writer:
            self._monitor.check(step, [float(x) for array, n in losses for x in array[:n]], skipped)
        if in_a_row >= self._setup.max_skipped:
            return values  # The run stops after this report.
        # The learning rate is a function of the number of updates. The last step was an update
        # itself, unless it was skipped.
        updates = step - skipped
        updates_before = updates if in_a_row else updates - 1
        if step > first_step:  # not if the first call after a start has just been compiled
            values["images_per_second"] = self._setup.batch_size * (step - first_step) / seconds
        values |= {
            "learning_rate": float(self._setup.learning_rate(updates_before)),
            "epoch": step / self._setup.steps_per_epoch,
        }
        if evaluate:
            values |= evaluate()
        if self._writer:
            written = {name: value for name, value in values.items() if name != "skipped_in_a_row"}
            self._writer.write(step, written)
            self._update_bar(step, written)
            self._log_accuracy_and_collapse(step, written)
        return values

    def _update_bar(self, step: int, values: Mapping[str, float]) -> None:
        """Show a step and the latest value of each metric in the progress bar."""
        self._latest |= values
        if self._bar:
            [task] = self._bar.tasks
            figures = f"loss {self._latest['loss']:.4g}"
            if "images_per_second" in self._latest:
                speed = self._latest["images_per_second"]
                figures += f"  {speed:.0f} {task.fields['unit']}/s"
            if "knn_top1" in self._latest:
                figures += f"  k-NN {self._latest['knn_top1']:.2f} %"
            self._bar.update(task.id, completed=step, figures=figures)

    @contextmanager
    def progress_bar(self, step: int, total: int, unit: str) -> Iterator[None]:
        """Show a bar with steps, remaining time and the latest metrics, if a terminal is attached.

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

    def _log_accuracy_and_collapse(self, step: int, values: Mapping[str, float]) -> None:
        """Log the k-NN accuracy if measured, and a warning when the embeddings collapse."""
        if "knn_top1" in values:
            log.info(
                f"step {step} (epoch {values['epoch']:.1f}): loss {values['loss']:.4g}, "
                f"k-NN {values['knn_top1']:.2f} %, feature std {values['feature_std']:.3f}, "
                f"effective rank {values['effective_rank']:.1f}"
            )
        was_collapsed = self._collapsed
        self._collapsed = values["feature_std"] < collapse.COLLAPSED_STD
        if self._collapsed and not was_collapsed:
            log.warning(
                f"step {step}: collapsed: the embeddings are nearly equal (feature_std "
                f"{values['feature_std']:.4f} < {collapse.COLLAPSED_STD:.1f})"
            )
