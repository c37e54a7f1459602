"""Runs in a bucket, with an emulator of Google Cloud Storage."""

import importlib.util
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import fsspec.config
import pytest
from tiny import SAVED, SETTINGS, STEPS
from workdir_cases import assert_same_arrays, metric_lines

from jaxssl.buckets import as_path
from jaxssl.evaluation import pretrain
from jaxssl.report import results
from jaxssl.report.run_report import write_report
from jaxssl.training.output import file_io
from jaxssl.training.workdir import checkpoint

INSTALLED = all(map(importlib.util.find_spec, ("gcsfs", "gcp_storage_emulator")))
pytestmark = [
    pytest.mark.skipif(not INSTALLED, reason="needs gcsfs and gcp-storage-emulator"),
    pytest.mark.usefixtures("standard_promotion"),
]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", autouse=True)
def emulator():
    """Start the emulator with the bucket gs://bucket, and return its process."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    with pytest.MonkeyPatch.context() as patch:
        for name in ("STORAGE_EMULATOR_HOST", "TENSORSTORE_GCS_HTTP_URL"):
            patch.setenv(name, f"http://localhost:{port}")  # for gcsfs and for Orbax
        # No requests to Google: for the kind of a bucket, and for credentials.
        patch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        patch.setenv("FSSPEC_GCS_TOKEN", "anon")
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


def test_run_in_a_bucket_equals_a_local_run(tiny, whole, workdir):
    pretrain.train(tiny(**{"eval.protocols": "('knn',)"}), workdir)
    assert checkpoint.steps(workdir) == [SAVED, STEPS]
    assert_same_arrays(workdir, whole)
    assert metric_lines(workdir) == metric_lines(whole)
    assert "finished 12 steps" in b"".join(file_io.read_lines(workdir / "train.log")).decode()
    assert "vote of the nearest" in write_report(workdir).read_text()
    assert {row["protocol"] for row in results.read_results(workdir)} == {"knn", "online"}


# Trains, and kills itself when it is about to write an object whose name has a text, or to write
# it again.
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
def test_killed_run_resumes_bit_for_bit(tiny, whole, data_dir, workdir, name, times, steps):
    values = {**SETTINGS, "data.dir": str(data_dir)}
    flags = [f"--config.{key}={value}" for key, value in values.items()]
    command = [sys.executable, "-c", KILLED, name, str(times), "--workdir", str(workdir), *flags]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == -signal.SIGKILL, process.stderr
    assert checkpoint.steps(workdir) == steps
    pretrain.train(tiny(), workdir)
    assert_same_arrays(workdir, whole)
    assert metric_lines(workdir) == metric_lines(whole)
    assert checkpoint.steps(workdir) == [SAVED, STEPS]
