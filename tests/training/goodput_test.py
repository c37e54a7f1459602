"""The parts of a run's wall time, over restarts and processes."""

import json
import time

import numpy as np
import pytest

from jaxssl import distributed
from jaxssl.training.workdir import goodput
from jaxssl.training.workdir.goodput import Goodput

pytestmark = pytest.mark.fast


@pytest.fixture
def clock(monkeypatch):
    """Return a clock that stands still: a list with the seconds."""
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(time, "time", lambda: 1e9 + now[0])
    return now


def seconds(workdir):
    return {k: v for k, v in goodput.read(workdir)["seconds"].items() if v}


@pytest.mark.parametrize("ended", [False, True])
def test_goodput_counts_time_since_the_last_checkpoint_as_restart_time(clock, tmp_path, ended):
    def run(resumes, first, ended):
        began = clock[0]
        clock[0] += first
        times = Goodput(tmp_path, began, resumes=resumes)
        clock[0] += 6
        times.lap("input wait")
        clock[0] += 30
        assert times.call("checkpoints", lambda x: clock.__setitem__(0, clock[0] + x), 4) is None
        return times.write(ended=ended)

    run(False, 10, ended)
    expected = {"start": 10, "input wait": 6, "steps": 30, "checkpoints": 4}
    assert seconds(tmp_path) == expected
    clock[0] += 50  # lost by a crash, or between two commands
    line = run(True, 10, True)
    expected = {name: (1 + (name != "start")) * value for name, value in expected.items()}
    assert seconds(tmp_path) == expected | {"restarts": 10 if ended else 60}
    assert line.startswith("100 s: steps 60.0 %" if ended else "150 s: steps 40.0 %, restarts 40.0")


def test_goodput_names_the_process_with_the_longest_input_wait(clock, tmp_path, monkeypatch):
    times = Goodput(tmp_path, 90.0, resumes=False)
    monkeypatch.setattr(distributed, "gather_processes", lambda x: np.array([x, 2.5], np.float32))
    assert times.write().endswith("; longest input wait 25.0 %, in process 1")


FORGED = json.dumps({"seconds": dict.fromkeys(goodput.PARTS, 1), "time": "now", "ended": False})


@pytest.mark.parametrize("text", ["", "[]", '{"seconds": {}}', '{"seconds": 3}', FORGED])
def test_damaged_goodput_file_counts_as_missing(clock, tmp_path, text):
    (tmp_path / goodput.NAME).write_text(text)
    assert goodput.read(tmp_path) is None
    Goodput(tmp_path, 90.0, resumes=True).write()
    assert seconds(tmp_path) == {"restarts": 10}
