"""Folders that are made once in a test session, whichever worker needs them first."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def shared_folder(
    factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]
) -> Path:
    """Return the folder that ``make(folder)`` fills once in this session, for all workers.

    The name must be unique among all tests. Tests must not change the folder.
    """
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # the folder of the session, which contains one folder per worker
    folder, finished = base / "shared" / name, base / "shared" / f"{name}.finished"
    folder.parent.mkdir(exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not finished.exists():
            shutil.rmtree(folder, ignore_errors=True)  # A failed `make` may have left the folder.
            make(folder)
            finished.touch()
    return folder


def shared_run(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return this worker's copy of a workdir that is trained once in the session.

    Workers take tests of one file, and some of these tests lock the run.
    """
    return shutil.copytree(shared_folder(factory, name, make), factory.mktemp(name) / name)
