"""One run at a time in a workdir; a run that has died blocks nobody."""

import errno
import fcntl
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from unittest.mock import Mock

import filelock
import pytest
from file_cases import refused
from filelock import SoftFileLease
from tiny import SAVED
from workdir_cases import at_batch

from jaxssl.errors import UserError
from jaxssl.evaluation import pretrain
from jaxssl.training import config as config_lib
from jaxssl.training.output import metrics_writer
from jaxssl.training.workdir import checkpoint, run_lock
from jaxssl.training.workdir import opening as workdir

HOLD = """
import sys, time
from pathlib import Path
from jaxssl.training.workdir.run_lock import lock
with lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock."""
    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def hold(workdir: Path) -> None:
    with run_lock.lock(workdir):
        assert owner(workdir).pid == os.getpid()


def owner(workdir: Path):
    return SoftFileLease(workdir / run_lock.OWNER).owner


def test_second_run_in_a_workdir_is_refused_until_the_first_has_ended(holder, tmp_path):
    before = (tmp_path / run_lock.OWNER).read_text()
    message = f"in use by another run .process {holder.pid} on {socket.gethostname()}"
    with pytest.raises(UserError, match=message):
        hold(tmp_path)
    assert (tmp_path / run_lock.OWNER).read_text() == before
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    hold(tmp_path)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_zombie_process_does_not_hold_the_lock_of_a_workdir(holder, tmp_path, monkeypatch):
    times = itertools.count()  # the owner file changes, as that of a live run does
    monkeypatch.setattr(run_lock, "_modified", lambda path: next(times))
    holder.send_signal(signal.SIGKILL)
    # The process ended, but was not reaped.
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)
    hold(tmp_path)


def test_suspended_process_keeps_the_lock_of_its_workdir(holder, tmp_path, monkeypatch):
    monkeypatch.setattr(run_lock, "LEASE", 0.2)
    monkeypatch.setattr(run_lock, "HEARTBEAT", 0.1)
    holder.send_signal(signal.SIGSTOP)
    time.sleep(0.5)
    with pytest.raises(UserError, match=f"process {holder.pid}"):
        hold(tmp_path)


def test_workdir_lock_is_released_on_exit_and_after_an_error(tmp_path):
    for _ in range(2):
        with run_lock.lock(tmp_path):
            assert owner(tmp_path).pid == os.getpid()
        assert owner(tmp_path) is None
    with pytest.raises(KeyboardInterrupt), run_lock.lock(tmp_path):
        raise KeyboardInterrupt
    hold(tmp_path)


DAMAGED = ['{"pid": 1e400}', "[" * 100_000, "", "{", "[1]", '{"host": "elsewhere"}', "\0", "9\n"]


@pytest.mark.parametrize(
    "text", [*DAMAGED[:2], *(pytest.param(text, marks=pytest.mark.long) for text in DAMAGED[2:])]
)
@pytest.mark.parametrize("name", [run_lock.NAME, run_lock.OWNER])
def test_lock_file_with_unexpected_content_does_not_block_a_run(tmp_path, monkeypatch, name, text):
    monkeypatch.setattr(run_lock, "PATIENCE", 0.05)
    (tmp_path / name).write_text(text)
    hold(tmp_path)


def test_lock_does_not_follow_symbolic_links(tmp_path):
    target = tmp_path / "target"
    target.write_text("kept")
    workdir = tmp_path / "run"
    workdir.mkdir()
    (workdir / run_lock.OWNER).symlink_to(target)
    hold(workdir)
    (workdir / run_lock.NAME).unlink()
    (workdir / run_lock.NAME).symlink_to(target)
    with pytest.raises(UserError, match="lock is a symbolic link; delete it"):
        hold(workdir)
    assert target.read_text() == "kept"


@pytest.mark.parametrize("name", [run_lock.NAME, run_lock.OWNER])
def test_deleting_a_lock_file_does_not_let_a_second_run_in(tmp_path, monkeypatch, name):
    monkeypatch.setattr(run_lock, "HEARTBEAT", 0.1)
    with run_lock.lock(tmp_path):
        (tmp_path / name).unlink()
        with pytest.raises(UserError, match="in use by another run"):
            hold(tmp_path)


def write_owner(workdir: Path, *, pid: int = 1, host: str = "elsewhere") -> Path:
    """Write the owner file of a run, which nobody touches afterwards."""
    path = workdir / run_lock.OWNER
    record = ("filelock/2", f"pid={pid}", f"host={host}", "mode=lease", "token=0")
    path.write_text("\n".join((*record, f"duration={run_lock.LEASE}\n")))
    return path


def test_lock_of_a_dead_run_on_another_host_is_taken_over(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(run_lock, "LEASE", 0.2)
    monkeypatch.setattr(run_lock, "HEARTBEAT", 0.1)
    write_owner(tmp_path)
    hold(tmp_path)
    assert "took over the lock of process 1 on elsewhere, which has ended" in caplog.messages


def test_lock_of_a_live_run_on_another_host_is_respected(tmp_path):
    path = write_owner(tmp_path)
    done = threading.Event()

    def touch():
        while not done.wait(0.1):
            os.utime(path, ns=(time.time_ns(), time.time_ns()))

    thread = threading.Thread(target=touch)
    thread.start()
    try:
        with pytest.raises(UserError, match="process 1 on elsewhere"):
            hold(tmp_path)
    finally:
        done.set()
        thread.join()


def test_lock_whose_owner_has_another_lease_time_is_respected(tmp_path):
    path = write_owner(tmp_path)
    path.write_text(path.read_text().replace("duration=", "duration=7"))
    with refused("process 1 on elsewhere"):
        hold(tmp_path)


def test_file_system_without_locks_relies_on_the_owner_file(tmp_path, monkeypatch):
    unsupported = Mock(side_effect=OSError(errno.ENOSYS, "Function not implemented"))
    monkeypatch.setattr(fcntl, "flock", unsupported)
    monkeypatch.setattr(run_lock, "HEARTBEAT", 0.1)
    with run_lock.lock(tmp_path), pytest.raises(UserError, match=f"process {os.getpid()}"):
        hold(tmp_path)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    write_owner(tmp_path, pid=ended.pid, host=filelock._identity.host_name())
    hold(tmp_path)


def test_run_updates_the_modification_time_of_its_owner_file(tmp_path, monkeypatch):
    monkeypatch.setattr(run_lock, "HEARTBEAT", 0.02)
    with run_lock.lock(tmp_path):
        path = tmp_path / run_lock.OWNER
        os.utime(path, ns=(0, 0))
        end = time.monotonic() + 5
        while path.stat().st_mtime_ns == 0 and time.monotonic() < end:
            time.sleep(0.01)
        assert path.stat().st_mtime_ns > 0


@pytest.mark.parametrize(
    ("lose", "message"),
    [
        (write_owner, "another run (process 1 on elsewhere) has taken over"),
        pytest.param(
            lambda folder: (folder / run_lock.OWNER).unlink(),
            "lock.owner was deleted during the run",
            marks=pytest.mark.long,
        ),
        (shutil.rmtree, "was deleted or moved during the run, which stops; if it was moved"),
    ],
)
def test_run_without_its_lock_stops_and_saves_nothing(tiny, tmp_path, monkeypatch, lose, message):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "run"
    at_batch(monkeypatch, SAVED, lambda: lose(folder))
    with refused(message):
        pretrain.train(tiny(), Path("run"))
    assert checkpoint.steps(folder) == []
    rows = metrics_writer.read_metrics(folder / "metrics.jsonl")
    assert all(row["step"] < SAVED for row in rows)


def test_error_after_the_lock_was_lost_is_reported_as_loss_of_the_lock(tmp_path):
    with refused("has taken over"), run_lock.lock(tmp_path):
        write_owner(tmp_path)
        raise OSError("Orbax cannot write")


def test_metrics_of_another_program_in_the_workdir_are_not_changed(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 100}\n{"iter": 5}\n')
    with refused("has a metrics.jsonl, but no config.json of a run"):
        with workdir.open_workdir(config_lib.load("digits"), tmp_path):
            pytest.fail("the run must not start")
    assert path.read_text() == '{"step": 100}\n{"iter": 5}\n'
    assert not (tmp_path / "config.json").exists()


def test_config_json_of_another_run_in_the_workdir_is_not_overwritten(tmp_path):
    ours, theirs = (config_lib.load("digits", [("seed", str(seed))]) for seed in (0, 1))
    with workdir.open_workdir(theirs, tmp_path):
        pass
    written = (tmp_path / "config.json").read_bytes()
    with refused("run of another config (seed: 1 -> 0)"), workdir.open_workdir(ours, tmp_path):
        pytest.fail("the run must not start")
    assert (tmp_path / "config.json").read_bytes() == written


def test_run_removes_partial_files_of_killed_runs_and_none_of_other_commands(tmp_path):
    theirs = ["results.json.0.partial", "report.html.0.partial"]
    for name in ("metrics.jsonl.0.partial", "config.json.0.partial", *theirs):
        (tmp_path / name).touch()
    with workdir.open_workdir(config_lib.load("digits"), tmp_path):
        assert {path.name for path in tmp_path.glob("*.partial")} == {*theirs}
