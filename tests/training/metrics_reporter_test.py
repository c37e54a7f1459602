"""The figures that a report computes itself."""

from types import SimpleNamespace

import numpy as np
import pytest

from jaxssl.training.metrics_reporter import MetricsReporter
from jaxssl.training.nonfinite import LossMonitor


@pytest.mark.parametrize(("in_a_row", "scheduled"), [(0, 11), (2, 12)])
def test_report_has_the_rate_of_the_step_the_epoch_and_the_losses_that_count(
    tmp_path, monkeypatch, in_a_row, scheduled
):
    """At step 15 with 3 skipped steps, 12 updates were made: the last with the rate of 11."""
    checked = []
    monkeypatch.setattr(LossMonitor, "check", lambda self, *args: checked.append(args))
    config = SimpleNamespace(batch_size=8, max_skipped=5, get=lambda *_: (), to_dict=dict)
    setup = SimpleNamespace(learning_rate=lambda step: 0.5 * step, steps_per_epoch=10)
    reporter = MetricsReporter(config, setup, tmp_path, 0, 0)
    metrics = {"loss": 2.0, "feature_std": 1.0, "skipped_steps": 3, "skipped_in_a_row": in_a_row}
    values = reporter.report(15, metrics, [(np.arange(4.0), 2), (np.arange(5.0, 9.0), 3)])
    reporter.close()
    assert (values["learning_rate"], values["epoch"]) == (0.5 * scheduled, 1.5)
    assert checked == [(15, [0, 1, 5, 6, 7], 3)]
