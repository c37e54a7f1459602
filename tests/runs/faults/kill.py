"""Kill a run at random moments, and check that it ends like an uninterrupted one.

    python tests/runs/faults/kill.py [--kills 30] [--seed 0]

Moments are drawn from the phases of a run: the preparation of the data, a step, the writing of a
checkpoint, evaluation, the report, or any time at all. After each kill -9 every file must be whole;
after the last one the same command must end with the parameters, metrics and results of a run that
was left alone, to the bit.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from tiny import TINY  # noqa: E402
from workdir_cases import assert_same_arrays, metric_lines  # noqa: E402

from jaxssl.training.workdir import checkpoint  # noqa: E402

STEPS = 60
TMP = "*.orbax-checkpoint-tmp*"
CONFIG = {
    **TINY,
    "total_steps": str(STEPS),
    "schedule.warmup_epochs": "0.05",
    "checkpoint.every": str(5 / 81),
    "eval.every": str(20 / 81),
    "eval.protocols": "('knn', 'fewshot')",
}
TIMEOUT = 300  # seconds


class Run(NamedTuple):
    """The files of a run."""

    folder: Path

    @property
    def workdir(self) -> Path:
        return self.folder / "run"

    def start(self, log: Path) -> subprocess.Popen:
        """The command, always the same."""
        values = {**CONFIG, "data.dir": str(self.folder / "data")}
        flags = [f"--config.{key}={value}" for key, value in values.items()]
        command = [sys.executable, str(ROOT / "train.py"), "--workdir", str(self.workdir), *flags]
        with log.open("a") as output:
            return subprocess.Popen(
                command, cwd=ROOT, stdout=output, stderr=output, start_new_session=True
            )

    def log(self) -> str:
        path = self.workdir / "train.log"
        return path.read_text() if path.exists() else ""


def _any(folder: Path, pattern: str) -> bool:
    return folder.is_dir() and next(folder.glob(pattern), None) is not None


# Whether a run is in a phase, given the text that it has logged since its start.
PHASES: dict[str, Callable[[Run, str], bool]] = {
    "preparation": lambda run, log: _any(run.folder / "data", "digits/*incomplete*"),
    "step": lambda run, log: "optimiser" in log,
    "checkpoint": lambda run, log: "optimiser" in log and _any(run.workdir / "checkpoints", TMP),
    "any": lambda run, log: True,
    "evaluation": lambda run, log: "finished" in log,
    "report": lambda run, log: _any(run.workdir, "results.json*"),
}
TRAINING = ("preparation", "step", "checkpoint")
DELAY = {"preparation": 0.3, "step": 3.0, "checkpoint": 0.3, "evaluation": 1.0, "report": 2.0}


def kill(run: Run, phase: str, rng: random.Random, log: Path, longest: float) -> str:
    """Start the run and kill it in a phase; return the outcome."""
    before, delay = len(run.log()), rng.uniform(0, DELAY.get(phase, longest))
    process, began = run.start(log), time.monotonic()
    while process.poll() is None and not PHASES[phase](run, run.log()[before:]):
        assert time.monotonic() - began < TIMEOUT, f"no {phase} in {TIMEOUT} s: {log.read_text()}"
        time.sleep(0.002)
    try:
        process.wait(delay)
        assert process.returncode == 0, log.read_text()
        return "ended before"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return "killed"


def finish(run: Run, log: Path) -> float:
    """Let the run end; return the seconds that it took."""
    began = time.monotonic()
    assert run.start(log).wait(TIMEOUT) == 0, log.read_text()
    return time.monotonic() - began


def check_files(run: Run) -> None:
    """Check that all files with their final name are complete."""
    for path in run.workdir.glob("*.json"):
        json.loads(path.read_text())
    path = run.workdir / "metrics.jsonl"
    for line in path.read_text().splitlines()[:-1] if path.exists() else ():
        json.loads(line)
    path = run.workdir / "report.html"
    assert not path.exists() or path.read_text().rstrip().endswith("</html>")


def compare(run: Run, whole: Run) -> None:
    """Check that two finished runs differ in times only."""
    both = run, whole
    assert_same_arrays(run.workdir, whole.workdir, STEPS)
    assert not checkpoint.restore_arrays(run.workdir).damaged
    assert metric_lines(run.workdir) == metric_lines(whole.workdir)
    documents = [json.loads((x.workdir / "results.json").read_text()) for x in both]
    assert documents[0] == documents[1]
    assert (run.workdir / "report.html").exists()
    files = [{p.name for p in x.workdir.iterdir() if "tfevents" not in p.name} for x in both]
    assert files[0] == files[1]
    assert checkpoint.steps(run.workdir) == checkpoint.steps(whole.workdir)


def begin_again(run: Run, whole: Run) -> None:
    """Start a new run in place of a finished one."""
    compare(run, whole)
    shutil.rmtree(run.folder)
    run.folder.mkdir()


def survive(folder: Path, kills: int, seed: int, say: Callable[[str], None] = print) -> int:
    """Kill a run several times, in all phases in turn; return the number of kills that struck.

    Raises:
        AssertionError: if one did harm.
    """
    rng, log, phases = random.Random(seed), folder / "log.txt", tuple(PHASES)
    whole, run = Run(folder / "whole"), Run(folder / "killed")
    for one in (whole, run):
        one.folder.mkdir()
    longest = finish(whole, log)
    struck, attempts = 0, 0
    while struck < kills:
        phase = phases[attempts % len(phases)]
        attempts += 1
        if phase in TRAINING and STEPS in checkpoint.steps(run.workdir):
            finish(run, log)
            begin_again(run, whole)
        if phase == "preparation":
            shutil.rmtree(run.folder / "data", ignore_errors=True)
        how = kill(run, phase, rng, log, longest)
        check_files(run)
        struck += how == "killed"
        say(f"{struck:3d} {phase}: {how}, checkpoints of {checkpoint.steps(run.workdir)}")
        if how != "killed":
            begin_again(run, whole)
    finish(run, log)
    compare(run, whole)
    return struck


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        struck = survive(Path(folder), options.kills, options.seed)
    print(
        f"{struck} of {options.kills} kills survived to the bit, {time.monotonic() - began:.0f} s"
    )


if __name__ == "__main__":
    main()
