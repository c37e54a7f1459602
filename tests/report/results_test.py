"""results.json under several writers, full disks and damage."""

import errno
import fcntl
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest
from file_cases import full_disk
from workdir_cases import ROW, changed

from jaxssl.errors import UserError
from jaxssl.report import results
from jaxssl.training.output import file_io

ADDITIONS = 15
ADD = f"""
import sys
from pathlib import Path
from workdir_cases import ROW, changed
from jaxssl.report import results
writer = sys.argv[2]
print("ready", flush=True)
input()
for i in range({ADDITIONS}):
    results.add_results(Path(sys.argv[1]), [changed(ROW, seed=f"{{writer}}-{{i}}")])
"""


@pytest.mark.long
def test_results_of_several_processes_and_threads_are_all_kept(tmp_path):
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (root, root / "tests")))}
    command = [sys.executable, "-c", ADD, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [
        subprocess.Popen([*command, f"process {i}"], env=environment, **pipes) for i in range(2)
    ]
    # All writers start together, once the processes have imported what they need.
    assert [process.stdout.readline() for process in processes] == ["ready\n"] * 2

    def add(writer):
        for i in range(ADDITIONS):
            results.add_results(tmp_path, [changed(ROW, seed=f"{writer}-{i}")])

    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(process.communicate, "\n") for process in processes]
        running += [pool.submit(add, f"thread {i}") for i in range(2)]
    assert [one.exception() for one in running] == [None] * 4
    assert [process.returncode for process in processes] == [0, 0]
    writers = "process 0", "process 1", "thread 0", "thread 1"
    expected = {f"{writer}-{i}" for writer in writers for i in range(ADDITIONS)}
    rows = results.read_results(tmp_path)
    assert len(rows) == len(expected) and {row["seed"] for row in rows} == expected
    assert {path.name for path in tmp_path.iterdir()} == {"results.json", "results.json.lock"}


def test_concurrent_writers_of_a_file_leave_the_content_of_one_of_them(tmp_path, monkeypatch):
    """The second writer begins and ends before the first one has replaced the file."""
    path, flush = tmp_path / "report.html", os.fsync

    def interrupted_flush(number):
        monkeypatch.setattr(os, "fsync", flush)
        file_io.write_text(path, "second")
        assert path.read_text() == "second"
        flush(number)

    monkeypatch.setattr(os, "fsync", interrupted_flush)
    file_io.write_text(path, "first")
    assert path.read_text() == "first" and list(tmp_path.iterdir()) == [path]


def test_later_results_keep_the_step_of_the_last_complete_evaluation(tmp_path):
    assert results.read_evaluated_step(tmp_path) is None
    for rows, step in (([], 8), ([ROW], None)):
        results.add_results(tmp_path, rows, evaluated_step=step)
        assert results.read_evaluated_step(tmp_path) == 8
    assert results.read_results(tmp_path) == [ROW]


def test_partial_file_of_a_killed_writer_is_removed_by_the_next_one(tmp_path):
    (tmp_path / "results.json.0.partial").touch()
    results.add_results(tmp_path, [ROW])
    assert {path.name for path in tmp_path.iterdir()} == {"results.json", "results.json.lock"}


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_failed_write_keeps_the_old_file_and_leaves_no_partial_file(tmp_path, monkeypatch, call):
    results.add_results(tmp_path, [ROW])
    before = (tmp_path / "results.json").read_bytes()

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full_disk)
        with pytest.raises(UserError, match="No space left"):
            results.add_results(tmp_path, [changed(ROW, seed=1)])
    assert (tmp_path / "results.json").read_bytes() == before
    assert not list(tmp_path.glob("*.partial"))
    results.add_results(tmp_path, [changed(ROW, seed=1)])
    assert len(results.read_results(tmp_path)) == 2


DAMAGED = ["{", "[]", '{"results": 3}', '{"results": [1]}', '{"results": [{}]}']
NO_FLOATS = ({"value": 10**400}, {"std": -(10**400)}, {"details__ci95": 10**400}, {"value": None})
DAMAGED += [json.dumps({"results": [changed(ROW, **x)]}) for x in ({"loss": 3}, *NO_FLOATS)]


@pytest.mark.parametrize("text", DAMAGED)
def test_damaged_results_json_is_refused_and_kept_when_results_are_added(tmp_path, text):
    (tmp_path / "results.json").write_text(text)
    for act in (results.read_results, lambda folder: results.add_results(folder, [ROW])):
        with pytest.raises(UserError, match="results.json is damaged .*; move it away"):
            act(tmp_path)
    assert (tmp_path / "results.json").read_text() == text


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_results_use_a_lock_file_on_file_systems_without_flock(tmp_path, monkeypatch, number):
    unsupported = Mock(side_effect=OSError(number, os.strerror(number)))
    monkeypatch.setattr(fcntl, "flock", unsupported)
    path = tmp_path / "results.json"
    with file_io.locked(path):
        assert (tmp_path / "results.json.held").exists()
    results.add_results(tmp_path, [ROW])
    assert len(results.read_results(tmp_path)) == 1
    assert unsupported.called and not (tmp_path / "results.json.held").exists()


def test_lock_that_is_a_symbolic_link_is_not_followed(tmp_path):
    target = tmp_path / "target"
    target.write_text("kept")
    (tmp_path / "results.json.lock").symlink_to(target)
    with pytest.raises(UserError, match="symbolic links"):
        results.add_results(tmp_path, [ROW])
    assert target.read_text() == "kept"


def test_own_results_are_those_on_the_content_of_the_online_metrics_or_on_equal_settings():
    online = changed(ROW, protocol="online")
    moved, other = changed(ROW, data="y"), changed(ROW, content="5e11f9")
    assert results.own_rows([online, ROW, moved, other]) == [online, ROW, moved]
    assert results.own_rows([ROW, other]) == [ROW, other]
    without = [{k: v for k, v in row.items() if k != "content"} for row in (online, ROW, moved)]
    assert results.own_rows(without) == without[:2]
    assert results.own_rows([online, changed(ROW, seed=1)]) == [online]


def test_results_of_an_earlier_version_get_the_content_of_those_with_equal_settings(tmp_path):
    old = {k: v for k, v in ROW.items() if k != "content"}
    other = changed(old, data="y")
    results.add_results(tmp_path, [changed(old, seed=1), other, ROW])
    rows = results.read_results(tmp_path)
    assert [row.get("content") for row in rows] == ["3b9ac1", None, "3b9ac1"]
