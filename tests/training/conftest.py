"""A whole run, with which tests compare runs that were stopped."""

import json
from pathlib import Path

import pytest
from shared_folders import shared_run
from tiny import DIGITS, SETTINGS

from jaxssl.evaluation import pretrain
from jaxssl.training import config, metrics_reporter


@pytest.fixture(scope="module")
def tiny(data_dir):
    """Return a function that makes the config of a tiny run."""

    def make(**changes: str):
        values = {**SETTINGS, "data.dir": str(data_dir), **changes}
        return config.load(DIGITS, list(values.items()))

    return make


@pytest.fixture(scope="module")
def whole(tiny, tmp_path_factory) -> Path:
    """Return the workdir of an uninterrupted run, with its losses by step in reported.json."""

    def make(workdir: Path) -> None:
        reported = []
        check = metrics_reporter.LossMonitor.check

        def record(self, step, losses, skipped):
            reported.append((step, [float(loss) for loss in losses]))
            check(self, step, losses, skipped)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(metrics_reporter.LossMonitor, "check", record)
            pretrain.train(tiny(), workdir)
        (workdir / "reported.json").write_text(json.dumps(reported))

    return shared_run(tmp_path_factory, "whole", make)
