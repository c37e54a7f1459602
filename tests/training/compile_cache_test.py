"""The folder of compiled programs: unusable folders are named and not used."""

import errno
import os

import jax
import pytest

from jaxssl.training.output import compile_cache

pytestmark = pytest.mark.fast
FOLDER, ENABLED = "jax_compilation_cache_dir", "jax_enable_compilation_cache"


@pytest.fixture
def folder(tmp_path):
    """Return a folder that is named as the cache, and restore the settings of JAX afterwards."""
    names = (FOLDER, ENABLED, compile_cache.MIN_COMPILE_SECONDS)
    before = {name: getattr(jax.config, name) for name in names}
    jax.config.update(FOLDER, str(tmp_path / "programs"))
    jax.config.update(ENABLED, True)
    yield tmp_path / "programs"
    for name, value in before.items():
        jax.config.update(name, value)


def test_folder_of_compiled_programs_is_the_users_own(folder):
    compile_cache.enable()
    assert compile_cache.describe() == f"kept in {folder}"
    assert folder.stat().st_mode & 0o777 == 0o700 and not list(folder.iterdir())
    folder.chmod(0o777)
    assert "where every user can write, and thus run code as you" in compile_cache.describe()


def test_folder_that_cannot_hold_compiled_programs_is_not_used(folder, caplog, monkeypatch):
    folder.touch()
    compile_cache.enable()
    assert not getattr(jax.config, ENABLED)
    assert compile_cache.describe().startswith("not kept")
    folder.unlink()
    jax.config.update(ENABLED, True)

    def full(dir):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(compile_cache.tempfile, "TemporaryFile", full)
    compile_cache.enable()
    assert compile_cache.describe().startswith("not kept")
    reasons = [message.rpartition(": ")[2] for message in caplog.messages]
    assert reasons == ["File exists", "No space left on device"]
