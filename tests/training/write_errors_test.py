"""Each writer of a run names what it cannot write in a full, a read-only and a vanished folder."""

import gc
import os
import resource
import shutil
import tempfile
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest
from jax import numpy as jnp

from jaxssl import buckets
from jaxssl.errors import TransientError, UserError, WriteError
from jaxssl.evaluation import embedding
from jaxssl.report import results
from jaxssl.training import config as config_lib
from jaxssl.training.output import file_io, loggers, logs
from jaxssl.training.output.metrics_writer import MetricsWriter
from jaxssl.training.workdir import checkpoint
from jaxssl.training.workdir import opening as workdir

NOBODY = 65534
LONG = "x" * 10_000
METRICS = {f"metric_{i}": float(i) for i in range(300)}


def write_lock(folder: Path) -> None:
    with file_io.locked(folder / "results.json"):
        pass


def write_log(folder: Path) -> None:
    with logs.log_to_file(folder / "train.log"):
        logs.log.warning(LONG)


def write_metrics(folder: Path, names: tuple[str, ...] = ()) -> None:
    with closing(MetricsWriter(folder, 0, names)) as writer:
        writer.write(1, METRICS)


def write_tensorboard(folder: Path) -> None:
    with closing(loggers.open_logger("tensorboard", folder, 0, {})) as writer:
        writer.write(1, METRICS)


def write_checkpoint(folder: Path) -> None:
    with closing(checkpoint.Manager(folder)) as manager:
        manager.save(1, {"w": jnp.arange(5000.0)}, {}, {}, None)
        manager.wait_until_finished()


def write_results(folder: Path) -> None:
    results.add_results(folder, [{"protocol": LONG, "metric": "top1", "details": {}}])


def write_workdir(folder: Path) -> None:
    with workdir.open_workdir(config_lib.load("digits"), folder):
        pass


# Kind of file -> function that writes one
WRITERS = {
    "file": lambda folder: file_io.write_text(folder / "config.json", LONG),
    "lock": write_lock,
    "log": write_log,
    "metrics": write_metrics,
    "tensorboard": write_tensorboard,
    "checkpoint": write_checkpoint,
    "results": write_results,
    "embeddings": lambda folder: embedding._write(folder / "x.npy", np.ones((99, 99)), None),
    "workdir": write_workdir,
}


@contextmanager
def full(folder: Path, size: int = 100):
    """No file may have more than ``size`` bytes."""
    folder.mkdir()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def read_only(folder: Path):
    """The folder may not be changed. Permissions do not bind root, which becomes another user."""
    folder.mkdir(mode=0o555)
    user = os.geteuid()
    if user == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)


@contextmanager
def vanished(folder: Path):
    """A file has taken the place of the folder."""
    folder.write_text("")
    yield


PLACES = {
    full: "File too large",
    read_only: "Permission denied",
    vanished: "Not a directory|File exists",
}


@pytest.fixture
def folder():
    """Yield a new folder that every user may enter."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)  # Orbax may still write in the background.


SLOW = ("checkpoint", "tensorboard")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("name", "place"),
    # A lock file is empty, so a full disk has room for it.
    [
        # Checkpoints and TensorBoard are written in the background, which takes seconds.
        pytest.param(name, place, marks=pytest.mark.long if name in SLOW and place != full else ())
        for name in WRITERS
        for place in PLACES
        if (name, place) != ("lock", full)
    ],
    ids=lambda x: x if isinstance(x, str) else x.__name__,
)
def test_write_error_names_the_path_and_the_reason(folder, name, place, monkeypatch):
    monkeypatch.setattr(logs.log, "handlers", [])  # Standard error may be a file on the full disk.
    good, bad = folder / "good", folder / "bad"
    good.mkdir()
    WRITERS[name](good)
    with place(bad), pytest.raises(UserError) as caught:
        WRITERS[name](bad)
    assert caught.match(f"cannot write {bad}.*: ({PLACES[place]}); fix this or choose another")
    del caught
    if name in ("tensorboard", "checkpoint"):
        gc.collect()  # Close files and tasks that TensorBoard and Orbax left open.


def test_embeddings_of_which_the_last_bytes_do_not_fit_on_the_disk_are_not_written(folder):
    rows = np.ones((10, 100), np.float32)  # 4128 bytes as an .npy file
    with full(folder / "bad", 4096), pytest.raises(UserError, match="File too large"):
        embedding._write(folder / "bad" / "x.npy", rows, None)
    assert not list((folder / "bad").iterdir())


def test_unrelated_errors_inside_open_workdir_are_not_reported_as_write_errors(
    tmp_path, monkeypatch
):
    settings = config_lib.load("digits")
    for error in (OSError("truncated"), ConnectionResetError(104, "Connection reset by peer")):
        with pytest.raises(OSError) as caught, workdir.open_workdir(settings, tmp_path):
            raise error
        assert caught.value is error
    for steps, message in (([], "disk is full$"), ([3], "disk is full; the same command resumes")):
        monkeypatch.setattr(checkpoint, "steps", lambda workdir, steps=steps: steps)
        with pytest.raises(UserError, match=message):
            with workdir.open_workdir(settings, tmp_path):
                raise WriteError("disk is full")
    with pytest.raises(TransientError, match="no answer; the same command resumes"):
        with workdir.open_workdir(settings, tmp_path):
            raise buckets.LostBucket("no answer")
