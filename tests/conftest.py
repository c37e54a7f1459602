"""Strict settings for all tests, eight CPU devices, lanes, and shared fixtures."""

import gc
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

from xla_flags import DEVICES, QUICK_FLAGS

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
given = os.environ.get("XLA_FLAGS", "")
number = "" if DEVICES in given else f"{DEVICES}=8"
os.environ["XLA_FLAGS"] = " ".join((given, number, QUICK_FLAGS))
CACHE = Path(__file__).parents[1] / ".cache" / "jax"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
# Keep the record of user components, which runs write, out of the home folder.
os.environ["XDG_STATE_HOME"] = str(CACHE.parent / "state")
# Leave Python source lines out of compiled programs, which saves a tenth of the time.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")

import jax  # noqa: E402
import pytest  # noqa: E402
from shared_folders import shared_folder  # noqa: E402

# Collect garbage rarely: traced programs have many objects, and this saves a tenth of the time.
gc.set_threshold(100_000, 20, 20)

# As in runs of several processes, programs of one device do not overlap.
jax.config.update("jax_cpu_enable_async_dispatch", False)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

from jaxssl.training.output import logs  # noqa: E402

logs.log_to_screen()  # as in a run, so that `caplog` does not depend on the order of the tests


def pytest_collection_modifyitems(items):
    """Put the largest file first, so that one worker compiles the programs that its tests share."""
    items.sort(key=lambda item: item.path.name != "contract_test.py")


def pytest_collection_finish():
    """Let reports show maps of few points: t-SNE of the digits' test images takes a second."""
    if gallery := sys.modules.get("jaxssl.evaluation.gallery"):
        gallery.MAP_POINTS = 60


def pytest_sessionfinish():
    """Exclude JAX's caches from garbage collection, which pytest repeats five times at the end."""
    gc.collect()
    gc.freeze()


def pytest_deselected(items):
    """Count the tests that the lane leaves out. pytest-xdist does not report them itself."""
    output = getattr(items[0].config, "workeroutput", None)
    if output is not None:
        output["deselected"] = output.get("deselected", 0) + len(items)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """Show the number of deselected tests, which is equal in all workers, in the summary."""
    number = getattr(node, "workeroutput", {}).get("deselected", 0)
    if number:
        reporter = node.config.pluginmanager.get_plugin("terminalreporter")
        reporter.stats["deselected"] = [SimpleNamespace() for _ in range(number)]


@pytest.fixture(autouse=True)
def no_processes_in_the_fast_lane(request, monkeypatch):
    """Let a test that is marked "fast" fail if it starts a process."""
    if request.node.get_closest_marker("fast"):

        def refuse(*args, **kwargs):
            raise AssertionError("a test marked 'fast' must not start a process")

        monkeypatch.setattr(subprocess.Popen, "__init__", refuse)


@pytest.fixture(scope="module", autouse=True)
def free_programs():
    """Free compiled programs before they need more memory maps than Linux grants a process.

    A single worker that runs all tests comes near the usual limit of 65 530.
    """
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > 40_000:
        jax.clear_caches()
        gc.collect()


@pytest.fixture
def run_command(capsys):
    """Return a function that runs a command line: the exit status, output and errors."""
    from jaxssl import cli

    def run(command: str, *arguments: object) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as stop:
            cli.run(command, [str(argument) for argument in arguments])
        return stop.value.code, *capsys.readouterr()

    return run


@pytest.fixture(scope="module")
def users_promotion():
    """Promote as JAX does by default, for examples and inputs of users."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture(scope="module")
def below(tmp_path_factory) -> Path:
    """Return the only folder that the inputs of a file's fuzz tests may write to."""
    return tmp_path_factory.mktemp("fuzz")


@pytest.fixture
def short_runs(monkeypatch):
    """Shorten runs to two steps and one protocol, after their settings have been checked."""
    from jaxssl.evaluation import pretrain

    train = pretrain.train

    def two_steps(config, *args, **options):
        with config.unlocked():
            config.total_steps, config.schedule.warmup_epochs = 2, 0.0
            config.eval.protocols = ("knn",) if config.eval.protocols else ()
        return train(config, *args, **options)

    monkeypatch.setattr(pretrain, "train", two_steps)


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory) -> Path:
    """Return a data directory with the prepared digits."""
    from data_cases import data_config

    from jaxssl.data import source

    def prepare(folder):
        source.load(data_config(dir=str(folder)), "train")

    return shared_folder(tmp_path_factory, "data", prepare)


@pytest.fixture(scope="module")
def tokenizer():
    """Skip the tests of a file if the package that splits captions into tokens is missing."""
    pytest.importorskip("instant_clip_tokenizer")


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
