"""Commands that are started again after they were killed or have lost another process."""

import os
import signal
import subprocess
import sys

import pytest

from jaxssl.training import retry

SCRIPT = """
import os, signal, sys
with open(sys.argv[1], "a+") as file:
    file.write("x")
    file.seek(0)
    status = int(sys.argv[2:][len(file.read()) - 1])
if status == 128 + signal.SIGTERM:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(status))
    os.kill(os.getppid(), signal.SIGTERM)
    signal.pause()
os.kill(os.getpid(), status - 128) if status > 128 else sys.exit(status)
"""


@pytest.mark.parametrize(
    ("statuses", "retries", "expected"),
    [
        ((0,), 3, 0),
        ((2, 0), 3, 2),  # status 2, a user's error, is not retried
        ((1, 134, 137, 0), 3, 0),  # another process is lost, SIGABRT, SIGKILL
        ((1, 1, 1), 1, 1),
        ((1, 143, 0), 3, 143),  # status 143, SIGTERM, is not retried
    ],
)
def test_failed_command_is_retried_unless_the_exit_status_is_final(
    monkeypatch, capfd, tmp_path, statuses, retries, expected
):
    monkeypatch.setattr(retry, "PAUSE", 0)
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    calls = tmp_path / "calls"
    command = [sys.executable, "-S", "-c", SCRIPT, str(calls), *map(str, statuses)]
    assert retry.run(command, retries) == expected
    number = len(calls.read_text())
    assert statuses[number - 1] == expected
    lines = [line for line in capfd.readouterr().err.splitlines() if "retry" in line]
    assert lines == [
        f"the run ended with status {status}; retry {i} of {retries}"
        for i, status in enumerate(statuses[: number - 1], 1)
    ]
    assert before == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


def test_signal_between_two_attempts_ends_the_retries(monkeypatch):
    monkeypatch.setattr(retry.time, "sleep", lambda _: os.kill(os.getpid(), signal.SIGTERM))
    assert retry.run([sys.executable, "-S", "-c", "raise SystemExit(1)"], 5) == 143


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_during_the_start_of_the_command_is_passed_on(monkeypatch, number):
    popen = subprocess.Popen

    def start(command):
        os.kill(os.getpid(), number)
        return popen(command)

    monkeypatch.setattr(retry.subprocess, "Popen", start)
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); signal.pause()"
    assert retry.run([sys.executable, "-S", "-c", code], 5) == 128 + number


# It signals its parent, and ends with the status 3 if it gets the signal too, otherwise with 4.
SIGNALLING = """
import os, signal, sys, time
signal.signal(signal.SIGINT, lambda *_: sys.exit(3))
os.kill(os.getppid(), signal.SIGINT)
time.sleep(float(sys.argv[1]))
sys.exit(4)
"""


@pytest.mark.parametrize(("terminal", "seconds", "status"), [(False, 60, 3), (True, 0.5, 4)])
def test_sigint_is_passed_on_unless_a_terminal_does_so(monkeypatch, terminal, seconds, status):
    monkeypatch.setattr(retry, "_has_terminal", lambda: terminal)
    command = [sys.executable, "-S", "-c", SIGNALLING, str(seconds)]
    assert retry.run(command, 5) == status
