"""Two runs never share a workdir; what a dead run left behind stops nobody."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from jaxssl.errors import UserError
from jaxssl.training import run_lock

HOLD = """
import sys, time
from pathlib import Path
from jaxssl.training.run_lock import lock
with lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock."""
    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    process = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def hold(workdir: Path) -> None:
    with run_lock.lock(workdir):
        pass


def test_a_second_run_is_refused_until_the_first_is_no_more(holder, tmp_path):
    written = (tmp_path / run_lock.NAME).read_text()
    who = f"in use by another run .process {holder.pid} on {socket.gethostname()}"
    with pytest.raises(UserError, match=who):
        hold(tmp_path)
    assert (tmp_path / run_lock.NAME).read_text() == written
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    hold(tmp_path)


def test_a_lock_is_given_back(tmp_path):
    for _ in range(2):
        with run_lock.lock(tmp_path):
            found = json.loads((tmp_path / run_lock.NAME).read_text())
            assert found == {"host": socket.gethostname(), "pid": os.getpid()}
    assert (tmp_path / run_lock.NAME).read_text() == ""


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"host": "elsewhere"}'])
def test_a_lock_that_was_cut_off_is_nobodys(tmp_path, text):
    (tmp_path / run_lock.NAME).write_text(text)
    hold(tmp_path)


def elsewhere(workdir: Path) -> Path:
    path = workdir / run_lock.NAME
    path.write_text(json.dumps({"host": "elsewhere", "pid": 1}))
    return path


def test_the_lock_of_a_dead_run_on_another_host_is_taken_over(tmp_path, monkeypatch):
    monkeypatch.setattr(run_lock, "PATIENCE", 0.2)
    elsewhere(tmp_path)
    hold(tmp_path)


def test_the_lock_of_a_live_run_on_another_host_is_respected(tmp_path, monkeypatch):
    monkeypatch.setattr(run_lock, "PATIENCE", 10.0)
    path = elsewhere(tmp_path)
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


def test_without_locks_of_the_file_system_a_live_process_is_respected(tmp_path, monkeypatch):
    def unsupported(*args):
        raise OSError("Function not implemented")

    monkeypatch.setattr(run_lock.fcntl, "flock", unsupported)
    path = tmp_path / run_lock.NAME
    path.write_text(json.dumps({"host": socket.gethostname(), "pid": os.getppid()}))
    with pytest.raises(UserError, match=f"process {os.getppid()}"):
        hold(tmp_path)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    path.write_text(json.dumps({"host": socket.gethostname(), "pid": ended.pid}))
    hold(tmp_path)


def test_a_run_shows_that_it_is_alive(tmp_path, monkeypatch):
    monkeypatch.setattr(run_lock, "BEAT", 0.02)
    with run_lock.lock(tmp_path):
        path = tmp_path / run_lock.NAME
        os.utime(path, ns=(0, 0))
        end = time.monotonic() + 5
        while path.stat().st_mtime_ns == 0 and time.monotonic() < end:
            time.sleep(0.01)
        assert path.stat().st_mtime_ns > 0
