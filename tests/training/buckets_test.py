"""Runs in a bucket, with an emulator of Google Cloud Storage."""

import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import fsspec.config
import jax
import numpy as np
import pytest
from file_cases import LABELLED, files_of, nothing_is_prepared, pack, refused, unpack
from process_cases import free_port
from tiny import SAVED, SETTINGS, STEPS, flags
from workdir_cases import ROW, assert_same_run

from jaxssl import buckets
from jaxssl.buckets import as_path
from jaxssl.data import source
from jaxssl.data.fingerprint import fingerprint
from jaxssl.errors import UserError
from jaxssl.evaluation import pretrain, suite
from jaxssl.report import results
from jaxssl.report.run_report import write_report
from jaxssl.training import config, profiling
from jaxssl.training.output import bucket_files, file_io, loggers, logs, metrics_writer
from jaxssl.training.workdir import checkpoint, opening, run_lock

INSTALLED = all(map(importlib.util.find_spec, ("gcsfs", "gcp_storage_emulator")))
pytestmark = [
    pytest.mark.skipif(not INSTALLED, reason="needs gcsfs and gcp-storage-emulator"),
]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", autouse=True)
def emulator(tmp_path_factory):
    """Start the emulator with the bucket gs://bucket, and return its process."""
    port = free_port()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("STORAGE_EMULATOR_HOST", "TENSORSTORE_GCS_HTTP_URL"):
            patch.setenv(name, f"http://localhost:{port}")  # used by gcsfs and by Orbax
        # Avoid requests to Google for the type of the bucket and for credentials.
        patch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        patch.setenv("FSSPEC_GCS_TOKEN", "anon")
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setitem(fsspec.config.conf, "gcs", {"token": "anon"})
        command = [sys.executable, ROOT / "tests" / "bucket_emulator.py", str(port)]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        for _ in range(100):
            with socket.socket() as probe:
                if probe.connect_ex(("localhost", port)) == 0:
                    break
            time.sleep(0.1)
        yield process
        process.kill()
        process.wait()


@pytest.fixture
def workdir(request):
    """A workdir in the bucket."""
    return as_path(f"gs://bucket/{re.sub('[^a-z0-9_]', '-', request.node.name)}")


@pytest.mark.long
def test_run_in_a_bucket_equals_a_local_run(tiny, whole, workdir):
    pretrain.train(tiny(**{"eval.protocols": "('knn',)"}), workdir)
    assert checkpoint.steps(workdir) == [SAVED, STEPS]
    assert_same_run(workdir, whole)
    assert "finished 12 steps" in b"".join(file_io.read_lines(workdir / "train.log")).decode()
    assert "vote of the nearest" in write_report(workdir).read_text()
    assert {row["protocol"] for row in results.read_results(workdir)} == {"knn", "online"}


@pytest.mark.fast
@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("gs://missing/run", "cannot read gs://missing/run: the bucket 'missing' does not exist"),
        ("gs://forbidden/run", "cannot read gs://forbidden/run: Forbidden"),
        ("gs://slow/run", "cannot read gs://slow/run: no answer within 1 s"),
        ("s3://bucket/run", "s3://bucket/run must be a local path or gs://BUCKET/PATH"),
        ("gs://", "gs:// must be a local path or gs://BUCKET/PATH"),
        (Path("gs://bucket/run"), "gs:/bucket/run must be gs://BUCKET/PATH; pass a str"),
    ],
)
def test_bucket_that_cannot_be_read_is_named_in_one_line(path, message, monkeypatch):
    monkeypatch.setattr(buckets, "SECONDS", 1)
    monkeypatch.setitem(fsspec.config.conf["gcs"], "requests_timeout", 1)
    buckets._file_system.cache_clear()
    with refused(message):
        as_path(path)
    buckets._file_system.cache_clear()


def hold(workdir):
    with run_lock.lock(workdir):
        pass


@pytest.mark.fast
def test_bucket_that_cannot_be_written_is_named_in_one_line():
    workdir = as_path("gs://readonly/run")
    with refused("cannot write gs://readonly/run/lock/00000001: Forbidden"):
        hold(workdir)
    assert not workdir.exists()


@pytest.mark.fast
def test_missing_gcsfs_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    buckets._file_system.cache_clear()
    with pytest.raises(UserError, match=r"pip install 'jaxssl\[gcs\]'"):
        as_path("gs://bucket/run")


@pytest.mark.fast
def test_failed_bucket_requests_do_not_count_as_missing_files(workdir, monkeypatch):
    fail = Mock(side_effect=OSError("Forbidden: token expired"))
    monkeypatch.setattr(buckets._file_system(), "info", fail)
    for method in (workdir.exists, workdir.is_dir, workdir.is_file):
        with pytest.raises(buckets.BucketError, match=f"cannot read {workdir}: Forbidden"):
            method()


def test_failed_bucket_request_does_not_count_as_a_damaged_checkpoint(workdir, monkeypatch):
    manager = checkpoint.Manager(workdir)
    manager.save(3, {"w": np.ones(2, np.float32)}, {}, {}, 50.0)
    manager.close()
    fail = Mock(side_effect=OSError("Forbidden: token expired"))
    monkeypatch.setattr(buckets._file_system(), "cat_file", fail)
    for read in (checkpoint.restore_arrays, checkpoint.best_step, checkpoint.read_all_facts):
        with pytest.raises(buckets.BucketError, match=f"cannot read {workdir}/.*: Forbidden"):
            read(workdir)


@pytest.mark.fast
def test_moving_a_missing_object_of_a_bucket_says_that_it_does_not_exist(workdir):
    with pytest.raises(FileNotFoundError, match="it does not exist"):
        (workdir / "nothing").replace(workdir / "there")


@pytest.mark.fast
def test_text_appended_to_a_bucket_file_is_stored_in_part_files(workdir, tmp_path, monkeypatch):
    monkeypatch.setattr(bucket_files, "PART_BYTES", 10)
    path = workdir / "train.log"
    for start in range(0, 6, 3):  # the first start and a resumed run
        text = bucket_files.Parts(path)
        for line in range(start, start + 3):
            text.write(f"line {line}\n")
            text.sync()
        text.close()
    assert len(list(path.iterdir())) == 4
    lines = list(file_io.read_lines(path))
    assert lines == [f"line {i}\n".encode() for i in range(6)]
    copy = tmp_path / "train.log"
    copy.mkdir()
    for part in path.iterdir():
        (copy / part.name).write_bytes(part.read_bytes())
    assert list(file_io.read_lines(copy)) == lines


@pytest.mark.fast
def test_empty_object_that_stands_for_a_folder_is_not_listed_in_it(workdir, monkeypatch):
    path, listed = workdir / "runs", buckets._file_system().ls
    (path / "train.log").write_text("line")
    marker = str(path).removeprefix("gs://") + "/"  # The emulator cannot store this name.
    both = lambda *args, **how: [marker, *listed(*args, **how)]  # noqa: E731
    monkeypatch.setattr(buckets._file_system(), "ls", both)
    assert [child.name for child in path.iterdir()] == ["train.log"]


@pytest.mark.fast
def test_profile_is_copied_to_a_bucket_and_its_folder_on_disk_removed(
    workdir, tmp_path, monkeypatch
):
    def stop():
        (tmp_path / "trace" / "plugins").mkdir()
        (tmp_path / "trace" / "plugins" / "events.pb").write_bytes(b"events")

    monkeypatch.setattr(profiling.tempfile, "mkdtemp", lambda: tmp_path / "trace")
    monkeypatch.setattr(jax.profiler, "start_trace", lambda folder, **_: folder.mkdir())
    monkeypatch.setattr(jax.profiler, "stop_trace", stop)
    profiler = profiling.Profiler(range(1), workdir)
    profiler.begin(0, ())
    profiler.end(1, ())
    assert (workdir / "profile" / "plugins" / "events.pb").read_bytes() == b"events"
    assert not (tmp_path / "trace").exists()


@pytest.mark.fast
@pytest.mark.parametrize("step", [0, 3, 4, 9])
def test_resumed_run_in_a_bucket_drops_metrics_after_its_checkpoint(workdir, step, monkeypatch):
    monkeypatch.setattr(bucket_files, "PART_BYTES", 25)  # a part holds two rows
    for start in (0, step):
        writer = metrics_writer.MetricsWriter(workdir, start, ())
        for number in range(start + 1, 10):
            writer.write(number, {"x": 1.0})
            writer.sync()
        writer.close()
    rows = metrics_writer.read_metrics(workdir / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, 10))


@pytest.mark.fast
def test_logger_of_a_service_stores_its_last_step_in_a_bucket_only_when_it_is_synced(workdir):
    path = workdir / "service.json"
    logger = loggers.ServiceLogger(Mock(), loggers.ServiceState(path, "a"))
    stored = []
    for step, action in ((1, logger.sync), (2, logger.close)):
        logger.write(step, {"loss": 1.0})
        stored.append(file_io.read_json(path)["last_step"])
        action()
        stored.append(file_io.read_json(path)["last_step"])
    # The lock of the workdir may be lost when a logger is closed, so that it writes nothing.
    assert stored == [0, 1, 1, 1]


@pytest.fixture
def quick_lease(monkeypatch):
    """Let leases expire after a second."""
    monkeypatch.setattr(bucket_files, "HEARTBEAT", 0.2)
    monkeypatch.setattr(bucket_files, "LEASE", 1.0)


def write_owner(workdir, number, **values):
    """Let another process own the lease of a workdir."""
    owner = bucket_files.Owner("token", 1, "elsewhere")._replace(**values)
    (workdir / "lock" / f"{number:08}").write_bytes(json.dumps(owner).encode())


@pytest.mark.fast
def test_second_run_in_a_workdir_is_refused_until_the_first_has_ended(workdir, quick_lease):
    with run_lock.lock(workdir) as check:
        with refused(f"in use by another run (process {os.getpid()}"):
            hold(workdir)
        time.sleep(1.5)  # an unrenewed lease would have expired
        check()
    hold(workdir)
    assert len(list((workdir / "lock").iterdir())) == 1


DEAD_HERE = {"pid": 2**22 + 1, "hostname": None}


@pytest.mark.fast
@pytest.mark.parametrize(("owner", "wait"), [({}, 1.0), (DEAD_HERE, 0.0)])
def test_bucket_lease_of_a_dead_run_is_taken_over(workdir, quick_lease, monkeypatch, owner, wait):
    """It has expired if its host is another one. A dead process of this host is known at once."""
    owner = {**owner, "hostname": bucket_files._host()} if owner else {}
    write_owner(workdir, 7, **owner)
    start, sleep, pauses = time.monotonic(), time.sleep, []
    monkeypatch.setattr(time, "sleep", lambda pause: pauses.append(pause) or sleep(pause))
    with run_lock.lock(workdir):
        assert time.monotonic() - start >= wait
        assert [path.name for path in (workdir / "lock").iterdir()] == ["00000008"]
    assert max(pauses, default=0) <= bucket_files.HEARTBEAT  # so that its end is noticed soon


@pytest.mark.fast
def test_run_in_a_bucket_that_has_lost_its_lease_stops(workdir, quick_lease):
    with refused("another run (process 1 on elsewhere) has taken over"), run_lock.lock(workdir):
        write_owner(workdir, 2)
        raise OSError("a fault that follows from two writers")
    assert [path.name for path in (workdir / "lock").iterdir()] == ["00000001", "00000002"]


@pytest.mark.fast
def test_only_one_of_many_concurrent_runs_gets_a_free_lease(workdir, monkeypatch):
    monkeypatch.setattr(bucket_files, "HEARTBEAT", 0.5)
    write_owner(workdir, 1, released=True)
    leases, won = [bucket_files.Lease(workdir / "lock") for _ in range(8)], []

    def acquire(lease):
        with contextlib.suppress(bucket_files.InUse):
            lease.acquire()
            won.append(lease)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(acquire, leases))
    assert len(won) == 1 and won[0].owner() == won[0].me
    won[0].release()


@pytest.mark.fast
def test_lease_is_acquired_although_its_object_is_deleted_between_two_requests(
    workdir, quick_lease, monkeypatch
):
    write_owner(workdir, 1)
    modified = buckets.BucketPath.modified

    def change_owner_first(path):
        if path.name == f"{1:08}":  # Another process has acquired and released the lease.
            write_owner(workdir, 2, released=True)
            path.unlink()
        return modified(path)

    monkeypatch.setattr(buckets.BucketPath, "modified", change_owner_first)
    lease = bucket_files.Lease(workdir / "lock")
    lease.acquire(wait=True)
    assert [path.name for path in (workdir / "lock").iterdir()] == [f"{3:08}"]
    lease.release()


# Files of a workdir that are folders in a bucket.
CHANGING = ("metrics.jsonl", "train.log", "lock", "results.json.lock")


def log_steps(workdir, resumed, steps):
    """Write the logs and a result of a run, as training and evaluation do."""
    settings = config.load("digits")
    with opening.open_workdir(settings, workdir):
        writer = metrics_writer.MetricsWriter(workdir, resumed, ())
        for step in steps:
            logs.log.info("step %d", step)
            writer.write(step, {"x": 1.0})
        writer.close()
    results.add_results(workdir, [{**ROW, "seed": resumed}])


@pytest.mark.fast
@pytest.mark.parametrize("origin", ["disk", "bucket"])
def test_run_goes_on_in_a_copy_of_its_workdir_between_disk_and_bucket(workdir, tmp_path, origin):
    first, copy = (tmp_path / "run", workdir) if origin == "disk" else (workdir, tmp_path / "run")
    log_steps(first, 0, [1, 2, 3])
    if origin == "disk":
        for path in first.iterdir():
            (copy / path.name).write_bytes(path.read_bytes())
    else:
        shutil.copytree(buckets.fetch(first), copy)
    log_steps(copy, 2, [3, 4])
    rows = metrics_writer.read_metrics(copy / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    lines = list(file_io.read_lines(copy / "train.log"))
    assert [int(line.split()[-1]) for line in lines] == [1, 2, 3, 3, 4]
    assert {row["seed"] for row in results.read_results(copy)} == {0, 2}
    forms = {(copy / name).is_dir() for name in CHANGING}
    assert forms == {origin == "disk"}


@pytest.mark.fast
def test_run_that_is_copied_to_a_disk_and_back_has_each_step_once(workdir, tmp_path):
    for resumed, steps in ((0, [1, 2]), (2, [3])):  # two parts of each log
        log_steps(workdir, resumed, steps)
    shutil.copytree(buckets.fetch(workdir), tmp_path / "run")
    log_steps(tmp_path / "run", 3, [4])
    for path in (tmp_path / "run").iterdir():
        (workdir / path.name).write_bytes(path.read_bytes())
    log_steps(workdir, 4, [5])
    rows = metrics_writer.read_metrics(workdir / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]


@pytest.mark.fast
def test_interrupted_conversion_of_a_copied_log_loses_no_line(workdir, tmp_path, monkeypatch):
    fail = Mock(side_effect=OSError("stopped"))
    (workdir / "train.log").write_bytes(b"in a bucket\n")
    parts = tmp_path / "train.log"
    parts.mkdir()
    (parts / "00000000.log").write_bytes(b"on a disk\n")
    for path, owner, name in (
        (workdir / "train.log", buckets.BucketPath, "unlink"),
        (parts, file_io, "write_chunks"),
        (parts, shutil, "rmtree"),
    ):
        with monkeypatch.context() as patch, pytest.raises(UserError, match="stopped"):
            patch.setattr(owner, name, fail)
            file_io.convert_copied_log(path)
    for path, line in ((workdir / "train.log", b"in a bucket\n"), (parts, b"on a disk\n")):
        file_io.convert_copied_log(path)
        assert list(file_io.read_lines(path)) == [line]


@pytest.mark.fast
def test_results_added_to_a_bucket_by_concurrent_writers_are_all_kept(workdir, quick_lease):
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda seed: results.add_results(workdir, [{**ROW, "seed": seed}]), range(4)))
    assert {row["seed"] for row in results.read_results(workdir)} == {0, 1, 2, 3}


@pytest.mark.fast
def test_bucket_folder_is_copied_once_and_again_after_a_change(workdir):
    for name in ("a.txt", "deep/b.txt"):
        (workdir / name).write_bytes(name.encode())
    copies = []
    for content in (b"a.txt", b"a.txt", b"new!!"):
        if content == b"new!!":
            (workdir / "a.txt").write_bytes(content)
        buckets.fetch.cache_clear()
        copies.append(buckets.fetch(workdir))
        assert (copies[-1] / "a.txt").read_bytes() == content
        assert (copies[-1] / "deep" / "b.txt").read_bytes() == b"deep/b.txt"
    assert copies[0] == copies[1] != copies[2] and copies[0].name == workdir.name
    assert buckets.fetch(workdir / "deep" / "b.txt").read_bytes() == b"deep/b.txt"
    (workdir / "only" / "below").mkdir(parents=True, exist_ok=True)
    (workdir / "only" / "below" / "c.txt").write_bytes(b"c")
    assert (buckets.fetch(workdir / "only") / "below" / "c.txt").read_bytes() == b"c"
    assert (buckets.fetch(workdir / "only" / "below") / "c.txt").read_bytes() == b"c"
    with pytest.raises(UserError, match=f"{workdir}/nothing does not exist"):
        buckets.fetch(workdir / "nothing")


@pytest.mark.fast
@pytest.mark.parametrize(
    ("name", "message"),
    [
        # The emulator stores no such name, but a bucket does.
        ("../../../b", "{0} has an object named {0}/../../../b; rename it, without '..'"),
        ("deleted", "cannot copy {0}: an object was deleted meanwhile; run the command again"),
    ],
)
def test_listed_object_that_cannot_be_copied_is_named(name, message, workdir, monkeypatch):
    objects = {f"bucket/{workdir.name}/{name}": {"size": 1}}
    monkeypatch.setattr(buckets._file_system(), "find", lambda *_, **__: objects)
    with refused(message.format(workdir)):
        buckets.fetch(workdir)


@pytest.mark.fast
def test_interrupted_copy_of_a_bucket_folder_is_not_used(workdir, monkeypatch):
    (workdir / "a.txt").write_bytes(b"a")

    def cut_off(names, files):
        os.makedirs(os.path.dirname(files[0]))
        Path(files[0]).write_bytes(b"")
        raise ConnectionError("reset")

    with monkeypatch.context() as patch:
        patch.setattr(buckets._file_system(copying=True), "get", cut_off)
        with pytest.raises(buckets.BucketError, match=f"cannot read {workdir}: reset"):
            buckets.fetch(workdir)
    folder = buckets.fetch(workdir).parent
    # What a copy leaves that was killed is removed by the next one.
    leftover = folder.rename(f"{folder}.tmp")
    buckets.fetch.cache_clear()
    assert (buckets.fetch(workdir) / "a.txt").read_bytes() == b"a"
    assert not leftover.exists()


@pytest.mark.fast
def test_configs_and_suites_are_read_from_a_bucket(workdir):
    for file in ("digits.py", "suites/transfer.py"):
        (workdir / Path(file).name).write_bytes((ROOT / "configs" / file).read_bytes())
    assert config.load(f"{workdir}/digits.py").to_dict() == config.load("digits").to_dict()
    assert config.run_name(f"{workdir}/digits.py") == "digits"
    run = workdir / "seed:0"  # no variant
    (run / "config.json").write_bytes(config.load("digits").to_json().encode())
    assert config.load(run / "config.json").to_json() == config.load("digits").to_json()
    assert suite.read(f"{workdir}/transfer.py") == suite.read("transfer")


@pytest.mark.fast
def test_prepared_data_sets_are_read_from_a_bucket(workdir, data_dir):
    for path in (data_dir / "digits").rglob("*"):
        if path.is_file():
            (workdir / "tfds" / path.relative_to(data_dir)).write_bytes(path.read_bytes())
    overrides = [("data.name", "digits"), ("data.dir", f"{workdir}/tfds")]
    splits = source.load_splits(config.load("digits", overrides).data)
    local = source.load_splits(config.load("digits", [("data.dir", str(data_dir))]).data)
    assert fingerprint(splits.train) == fingerprint(local.train)


@pytest.mark.parametrize("archive", ["", "pictures.zip", "pictures.tar.gz"])
def test_pictures_and_archives_in_a_bucket_are_read(workdir, tmp_path, load, monkeypatch, archive):
    if archive:
        file = pack(tmp_path / archive, LABELLED)
        (workdir / archive).write_bytes(file.read_bytes())
    else:
        file = unpack(tmp_path / "pictures", LABELLED)
        for name, content in LABELLED.items():
            (workdir / "pictures" / name).write_bytes(content)
    expected = load(file)
    actual = load(workdir / file.name)
    assert actual.name == expected.name == file.name
    assert fingerprint(actual) == fingerprint(expected)
    assert files_of(actual) == files_of(expected)
    np.testing.assert_array_equal(actual.images(30), expected.images(30))
    nothing_is_prepared(monkeypatch)
    assert fingerprint(load(workdir / file.name)) == fingerprint(expected)


@pytest.mark.fast
@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("gs://bucket/nothing", "does not exist"),
        ("gs://forbidden/pictures", "cannot read gs://forbidden/pictures: Forbidden"),
        ("s3://bucket/pictures", "s3://bucket/pictures must be a local path or gs://BUCKET/PATH"),
    ],
)
def test_pictures_that_cannot_be_read_from_a_bucket_are_named(load, path, message):
    for changes in ({"path": path}, {"name": "digits", "path": "", "dir": path}):
        with refused(message):
            load(**changes)


@pytest.mark.long
def test_run_on_pictures_of_a_bucket_trains_and_resumes(tiny, workdir, tmp_path, prepared):
    for name, content in LABELLED.items():
        (workdir / "pictures" / name).write_bytes(content)
    changes = {"data.name": "folder", "data.path": f"{workdir}/pictures"}
    changes |= {"data.dir": str(prepared), "data.test_split": "train", "eval.protocols": "('knn',)"}
    for steps in ("1", "2"):
        pretrain.train(tiny(**changes, total_steps=steps), tmp_path / steps)
    pretrain.train(tiny(**changes, total_steps="2"), tmp_path / "2")
    # Results name a folder of pictures by the last part of its path, as on a disk.
    assert {row["dataset"] for row in results.read_results(tmp_path / "2")} == {"pictures"}


# Program that trains, and kills itself before it writes for the given time (first, second) an
# object whose name contains a text.
KILLED = """
import os, signal, sys
from gcsfs.core import GCSFileSystem
from jaxssl import cli

request, name, times = GCSFileSystem._request, sys.argv.pop(1), [int(sys.argv.pop(1))]

async def kill(self, method, path, *args, **options):
    if method == "POST" and name in f"{path} {options.get('data')!r:.300}":
        times[0] -= 1
        if not times[0]:
            os.kill(os.getpid(), signal.SIGKILL)
    return await request(self, method, path, *args, **options)

GCSFileSystem._request = kill
cli.main("train")
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "times", "steps"),
    [
        (f"checkpoints/{SAVED}/commit", 1, []),
        (f"checkpoints/{STEPS}/facts", 1, [SAVED]),
        ("metrics.jsonl", 2, []),
    ],
)
def test_killed_bucket_run_resumes_bit_for_bit(tiny, whole, data_dir, workdir, name, times, steps):
    settings = flags({**SETTINGS, "data.dir": str(data_dir)})
    command = [sys.executable, "-c", KILLED, name, str(times), "--workdir", str(workdir), *settings]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == -signal.SIGKILL, process.stderr
    assert checkpoint.steps(workdir) == steps
    pretrain.train(tiny(), workdir)
    assert_same_run(workdir, whole)
    assert checkpoint.steps(workdir) == [SAVED, STEPS]
