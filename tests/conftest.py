"""Strict settings for all tests, eight CPU devices, and shared fixtures."""

import os
from pathlib import Path

from xla_flags import DEVICES, QUICK_FLAGS

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
given = os.environ.get("XLA_FLAGS", "")
number = "" if DEVICES in given else f"{DEVICES}=8"
os.environ["XLA_FLAGS"] = " ".join((given, number, QUICK_FLAGS))
CACHE = Path(__file__).parents[1] / ".cache" / "jax"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")

import jax  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory) -> Path:
    """Return a data directory with the prepared digits."""
    from data_cases import data_config

    from jaxssl.data import source

    path = tmp_path_factory.mktemp("data")
    source.load(data_config(dir=str(path)), "train")
    return path


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Path:
    """Return the folder of prepared data sets of a test file."""
    return tmp_path_factory.mktemp("prepared")


@pytest.fixture(scope="module")
def load(prepared):
    """Return a function that opens a split of a folder or of another data set."""
    from file_cases import loader

    return loader(prepared)


@pytest.fixture(scope="module")
def labelled(tmp_path_factory) -> Path:
    """Return a folder of images in three classes."""
    from file_cases import LABELLED, unpack

    return unpack(tmp_path_factory.mktemp("labelled"), LABELLED)
