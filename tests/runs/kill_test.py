"""A run that is killed at random moments of all phases ends like an uninterrupted one."""

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny import TINY, flags
from workdir_cases import assert_same_run

from jaxssl.training.workdir import checkpoint

ROOT = Path(__file__).parents[2]
KILLS = int(os.environ.get("JAXSSL_KILLS", "5"))
STEPS, TIMEOUT = 60, 300  # number of steps, timeout in seconds
CONFIG = {**TINY, "total_steps": str(STEPS), "schedule.warmup_epochs": "0.05"}
CONFIG |= {"checkpoint.every": str(5 / 81), "eval.every": str(20 / 81)}
CONFIG |= {"eval.protocols": "('knn', 'fewshot')"}
# Phase of a run -> (test of its folder and of its log since the last start, which is true in this
# phase; most seconds from then until the run is killed).
PHASES: dict[str, tuple[Callable[[Path, str], bool], float]] = {
    "preparation": (lambda run, log: any(run.glob("data/digits/*incomplete*")), 0.3),
    "step": (lambda run, log: "optimiser" in log, 3.0),
    "checkpoint": (
        lambda run, log: "optimiser" in log and any(run.glob("run/checkpoints/*-checkpoint-tmp*")),
        0.3,
    ),
    "any": (lambda run, log: True, 10.0),
    "evaluation": (lambda run, log: "finished" in log, 1.0),
    "report": (lambda run, log: any(run.glob("run/results.json*")), 2.0),
}


def start(run: Path) -> subprocess.Popen:
    """Start the command, always the same. It trains in the folder `run` of a folder."""
    command = [sys.executable, str(ROOT / "train.py"), "--workdir", str(run / "run")]
    command += flags({**CONFIG, "data.dir": str(run / "data")})
    with run.with_suffix(".log").open("a") as output:
        options = {"stdout": output, "stderr": output, "start_new_session": True}
        return subprocess.Popen(command, cwd=ROOT, **options)


def finish(run: Path) -> None:
    assert start(run).wait(TIMEOUT) == 0, run.with_suffix(".log").read_text()


def kill(run: Path, phase: str, rng: random.Random) -> bool:
    """Start the run and kill it in a phase; return False if it ended before."""
    log = run / "run" / "train.log"
    before = log.stat().st_size if log.exists() else 0
    within, longest = PHASES[phase]
    process, delay, began = start(run), rng.uniform(0, longest), time.monotonic()
    logged = lambda: log.read_text()[before:] if log.exists() else ""  # noqa: E731
    while process.poll() is None and not within(run, logged()):
        assert time.monotonic() - began < TIMEOUT, run.with_suffix(".log").read_text()
        time.sleep(0.002)
    try:
        assert process.wait(delay) == 0, run.with_suffix(".log").read_text()
        return False
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return True


def check_files(workdir: Path) -> None:
    """Check that all files with their final name are complete."""
    for path in workdir.glob("*.json"):
        json.loads(path.read_text())
    for path in workdir.glob("metrics.jsonl"):
        [json.loads(line) for line in path.read_text().splitlines()[:-1]]
    for path in workdir.glob("report.html"):
        assert path.read_text().rstrip().endswith("</html>")


def assert_equal(one: Path, other: Path) -> None:
    """Check that two finished runs differ in times only."""
    assert_same_run(one, other, STEPS)
    assert not checkpoint.restore_arrays(one).damaged
    assert checkpoint.steps(one) == checkpoint.steps(other)
    documents = [json.loads((path / "results.json").read_text()) for path in (one, other)]
    assert documents[0] == documents[1] and (one / "report.html").exists()
    files = [{p.name for p in x.iterdir() if "tfevents" not in p.name} for x in (one, other)]
    assert files[0] == files[1]


@pytest.mark.long
def test_repeatedly_killed_run_ends_with_the_same_bits_as_an_uninterrupted_run(tmp_path):
    """Five kills by default; JAXSSL_KILLS=30 strikes thirty times."""
    rng, whole, run = random.Random(1), tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    run.mkdir()
    finish(whole)
    struck, phases = [], itertools.cycle(PHASES)
    while len(struck) < KILLS:
        phase = next(phases)
        early = phase in ("preparation", "step", "checkpoint")
        if early and STEPS in checkpoint.steps(run / "run"):
            finish(run)
            assert_equal(run / "run", whole / "run")
            shutil.rmtree(run / "run")
        if phase == "preparation":
            shutil.rmtree(run / "data", ignore_errors=True)
        struck += [phase] * kill(run, phase, rng)
        check_files(run / "run")
    finish(run)
    assert_equal(run / "run", whole / "run")
    assert {"preparation", "step", "checkpoint"} <= set(struck)
