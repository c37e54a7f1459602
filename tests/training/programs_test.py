"""Compiled programs: which runs share them, and the folder that keeps them."""

import logging
import re
import warnings
from contextlib import closing
from unittest.mock import Mock, call

import jax
import pytest
from file_cases import full_disk
from jax import lax
from jax.experimental.compilation_cache import compilation_cache
from tiny import DIGITS, TINY

from jaxssl import distributed
from jaxssl.api import python_objects
from jaxssl.data import kind, source
from jaxssl.evaluation import pretrain
from jaxssl.losses.nt_xent import nt_xent_loss
from jaxssl.training import config, programs
from jaxssl.training.build import build, make_batches, shared_numbers
from jaxssl.training.output import compile_cache, metrics_writer
from jaxssl.training.workdir import checkpoint


def load(data_dir, **changes):
    values = {**TINY, "data.dir": str(data_dir), "total_steps": "6", "log_every": "2"}
    values |= {"schedule.warmup_epochs": "0.01", "eval.every": "100", "checkpoint.every": "100"}
    return config.load(DIGITS, list({**values, **changes}.items()))


def losses(workdir):
    return [row["loss"] for row in metrics_writer.read_metrics(workdir / "metrics.jsonl")]


@pytest.mark.long
def test_runs_that_differ_in_seed_and_numbers_share_their_programs(data_dir, tmp_path, caplog):
    first = {"eval.online_linear": "True"}
    other = {**first, "seed": "1", "loss.alpha": "0.3", "optim.lr": "0.0007"}
    programs._cache.clear()
    pretrain.train(load(data_dir, **other), tmp_path / "alone")
    programs._cache.clear()
    pretrain.train(load(data_dir, **first), tmp_path / "first")
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        pretrain.train(load(data_dir, **other), tmp_path / "second")
    assert not re.search(r"Compiling jit\((steps|update)\)", caplog.text)
    assert losses(tmp_path / "second") == losses(tmp_path / "alone") != losses(tmp_path / "first")
    keys = [checkpoint.restore_arrays(tmp_path / run).state["key"] for run in ("first", "second")]
    assert (keys[0] != keys[1]).any()  # The runs also have different keys.


def programs_of(settings, **changes):
    """Return the programs of a run, which are not compiled before they are called."""
    mesh, train_set = distributed.make_mesh(), source.load(settings.data, "train")
    with closing(make_batches(settings, train_set, mesh)) as batches:
        vars(batches).update(changes)
        setup = build(settings, len(train_set), mesh.size, crops=batches.plan.crops)
        inputs = kind.of(settings).inputs(settings, train_set.shape)
        return programs.make_programs(settings, setup, batches, inputs, mesh)


def test_runs_with_different_static_settings_have_separate_compiled_programs(data_dir):
    def steps(**changes):
        return programs_of(load(data_dir, **changes)).steps.func

    first = steps()
    assert steps(**{"loss.alpha": "0.3"}) is first
    assert steps(**{"loss.negative_reduction": "sum"}) is not first


def test_closures_with_the_same_source_have_separate_compiled_programs(data_dir):
    def scaled(factor):
        return lambda pairs: factor * nt_xent_loss(pairs)

    one, two = scaled(1.0), scaled(2.0)
    steps = [
        programs_of(
            load(data_dir, **{"loss.name": python_objects.register("loss", loss)})
        ).steps.func
        for loss in (one, one, two)
    ]
    assert steps[0] is steps[1] and steps[1] is not steps[2]


def test_training_sets_of_different_sizes_have_separate_compiled_programs(data_dir):
    """Memory with a row per example has the size of the training set."""
    first = programs_of(load(data_dir)).steps.func
    assert programs_of(load(data_dir), num_examples=1000).steps.func is not first


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        # The parameter b is trained and therefore no argument.
        ("auc_cl", {"loss.a", "loss.alpha", "loss.negative_weight"}),
        ("nt_xent", {"loss.temperature"}),
        ("decl", {"loss.temperature", "loss.momentum"}),  # noise is 0.0, so no argument
        ("clip", {"loss.max_scale"}),  # the scale is trained
    ],
)
def test_settings_that_accept_a_schedule_are_arguments_of_the_compiled_step(loss, expected):
    settings = config.load(DIGITS, [("loss.name", loss)])
    actual = shared_numbers(settings.loss, settings.optim.lr)
    assert set(actual) == expected | {"optim.lr"}


@pytest.mark.parametrize(("net", "most_steps"), [("convnet", 4), ("resnet", 1)])
def test_networks_with_convolutions_run_one_step_per_call_on_cpus(net, most_steps, data_dir):
    overrides = {"data.dir": str(data_dir), "batch_size": "16", "log_every": "4", "net.name": net}
    assert programs_of(config.load(DIGITS, list(overrides.items()))).most_steps == most_steps


@pytest.mark.parametrize("devices", [1, 8])
def test_calls_on_several_cpu_devices_wait_for_their_results(devices, data_dir, monkeypatch):
    mesh = distributed.make_mesh(jax.devices()[:devices])
    monkeypatch.setattr(distributed, "make_mesh", lambda: mesh)
    monkeypatch.setattr(programs, "make_train_steps", lambda *_, **__: lambda *_, **__: "results")
    monkeypatch.setattr(programs, "_cache", {})
    steps, wait = programs_of(load(data_dir)).steps, Mock(side_effect=lambda results: results)
    monkeypatch.setattr(jax, "block_until_ready", wait)
    assert steps("state", "data", "indices", 1) == "results"
    assert wait.mock_calls == [call("results")] * (devices > 1)


def test_compiled_step_has_sharding_and_max_skipped_of_the_config(data_dir, monkeypatch):
    monkeypatch.setattr(programs, "make_train_steps", lambda make_step, *_, **__: make_step)
    monkeypatch.setattr(programs, "make_train_step", lambda *_, **options: options)
    programs._cache.clear()
    settings = load(data_dir, **{"optim.sharding": "all", "max_skipped": "5"})
    options = programs_of(settings).steps.func(shared_numbers(settings.loss, settings.optim.lr))
    assert options == {"max_skipped": 5, "sharding": "all"}
    programs._cache.clear()


FOLDER, ENABLED = "jax_compilation_cache_dir", "jax_enable_compilation_cache"


@pytest.fixture
def folder(tmp_path):
    """Return a folder that is named as the cache, and restore the settings of JAX afterwards."""
    names = (FOLDER, ENABLED, compile_cache.MIN_COMPILE_SECONDS)
    before = {name: getattr(jax.config, name) for name in names}
    jax.config.update(FOLDER, str(tmp_path / "programs"))
    jax.config.update(ENABLED, True)
    jax.config.update(compile_cache.MIN_COMPILE_SECONDS, 0.0)
    yield tmp_path / "programs"
    compilation_cache.reset_cache()
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.mark.fast
def test_folder_of_compiled_programs_is_private_to_the_user(folder, caplog):
    compile_cache.enable()
    assert compile_cache.describe() == f"kept in {folder}"
    assert folder.stat().st_mode & 0o777 == 0o700 and not list(folder.iterdir())
    assert not caplog.messages
    folder.chmod(0o777)
    compile_cache.enable()
    assert caplog.messages == [f"every user can write to {folder}, and thus run code as you"]


@pytest.mark.fast
def test_settings_of_the_compilation_cache_that_the_user_made_are_kept(folder):
    jax.config.update(compile_cache.MIN_COMPILE_SECONDS, 5.0)
    jax.config.update(ENABLED, False)
    compile_cache.enable()
    assert not folder.exists() and compile_cache.describe().startswith("not kept")
    jax.config.update(ENABLED, True)
    compile_cache.enable()
    assert getattr(jax.config, compile_cache.MIN_COMPILE_SECONDS) == 5.0 and folder.exists()


@pytest.mark.long
@pytest.mark.fast
def test_damaged_compiled_programs_are_compiled_again_with_one_warning(folder, caplog, monkeypatch):
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)

    def run():
        compilation_cache.reset_cache()
        jax.clear_caches()
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            compile_cache.enable()
            return [int(jax.jit(f)(3)) for f in (lax.neg, lax.sign)]

    assert run() == [-3, 1]
    programs = sorted(folder.glob("*-cache"))
    assert len(programs) == 2
    for path in programs:
        path.write_bytes(path.read_bytes()[:50])
    assert run() == [-3, 1]
    assert all(path.stat().st_size > 1000 for path in programs)
    [line] = caplog.messages
    assert line.startswith(f"some programs in {folder} cannot be read or written, and are compiled")


@pytest.mark.fast
def test_unwritable_folder_is_not_used_for_compiled_programs(folder, caplog, monkeypatch):
    folder.touch()
    compile_cache.enable()
    assert not getattr(jax.config, ENABLED)
    assert compile_cache.describe().startswith("not kept")
    folder.unlink()
    jax.config.update(ENABLED, True)
    monkeypatch.setattr(compile_cache.tempfile, "TemporaryFile", full_disk)
    compile_cache.enable()
    assert compile_cache.describe().startswith("not kept")
    reasons = [message.rpartition(": ")[2] for message in caplog.messages]
    assert reasons == ["File exists", "No space left on device"]


@pytest.mark.fast
def test_compiled_programs_are_not_kept_for_a_user_without_a_home_folder(folder, monkeypatch):
    def no_home(path):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(compile_cache.Path, "expanduser", no_home)
    monkeypatch.setattr(compile_cache.Path, "home", classmethod(no_home))
    jax.config.update(FOLDER, None)
    compile_cache.enable()
    assert compile_cache.describe().endswith("set JAX_COMPILATION_CACHE_DIR)")
