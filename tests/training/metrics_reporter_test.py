"""The figures that a report computes itself."""

from contextlib import closing
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from jaxssl.training import metrics_reporter
from jaxssl.training.metrics_reporter import LossMonitor, MetricsReporter
from jaxssl.training.output.metrics_writer import MetricsWriter

SETUP: Any = SimpleNamespace(
    learning_rate=lambda step: 0.5 * step, steps_per_epoch=10, batch_size=8, max_skipped=5
)
METRICS = {"loss": 2.0, "feature_std": 1.0, "skipped_steps": 3, "skipped_in_a_row": 0}


@pytest.fixture
def reporter(tmp_path):
    with closing(MetricsWriter(tmp_path, 0, ())) as writer:
        yield MetricsReporter(SETUP, writer, 0, 0)


@pytest.mark.parametrize(("in_a_row", "scheduled"), [(0, 11), (2, 12)])
def test_reporter_logs_the_learning_rate_of_the_last_update_and_checks_losses_of_taken_steps(
    reporter, monkeypatch, in_a_row, scheduled
):
    """At step 15 with 3 skipped steps, 12 updates were made: the last with the rate of 11."""
    checked = []
    monkeypatch.setattr(LossMonitor, "check", lambda self, *args: checked.append(args))
    losses: Any = [(np.arange(4.0), 2), (np.arange(5.0, 9.0), 3)]
    values = reporter.report(15, {**METRICS, "skipped_in_a_row": in_a_row}, losses)
    assert (values["learning_rate"], values["epoch"]) == (0.5 * scheduled, 1.5)
    assert checked == [(15, [0, 1, 5, 6, 7], 3)]


def test_reported_speed_is_in_examples_per_second(tmp_path, monkeypatch):
    seconds = iter([10.0, 12.0])
    monkeypatch.setattr(metrics_reporter.time, "perf_counter", lambda: next(seconds))
    with closing(MetricsWriter(tmp_path, 5, ())) as writer:
        values = MetricsReporter(SETUP, writer, 5, 0).report(15, METRICS, [])
    assert values["images_per_second"] == 8 * 10 / 2


def test_call_that_has_just_been_compiled_has_no_speed(reporter):
    reporter.restart_clock(15)
    assert "images_per_second" not in reporter.report(15, METRICS, [])


def test_collapse_is_logged_once_each_time_it_begins(reporter, caplog):
    for step, spread in enumerate((0.5, 0.1, 0.1, 0.5, 0.1), 1):
        reporter.report(step, {**METRICS, "feature_std": spread}, [])
    starts = [line[:17] for line in caplog.messages if "collapsed" in line]
    assert starts == ["step 2: collapsed", "step 5: collapsed"]


def test_small_rise_of_a_constant_loss_is_not_logged_as_a_spike(caplog):
    monitor = LossMonitor()
    monitor.check(40, [1.0] * 40, 0)
    monitor.check(41, [1.005], 0)
    assert not caplog.text
    monitor.check(42, [1.02], 0)
    assert "step 42: loss spike: 1.02" in caplog.text
