"""Keep compiled programs on disk, so that the next run need not compile them."""

import hashlib
import os
import platform
import re
import stat
import tempfile
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax

from jaxssl.errors import printable
from jaxssl.training.output.file_io import user_folder
from jaxssl.training.output.logs import log

OPTIMISATION = "xla_backend_optimization_level"
MIN_COMPILE_SECONDS = "jax_persistent_cache_min_compile_time_secs"
DEFAULT_MIN_COMPILE_SECONDS = 1.0  # JAX's default
ROOM = 2**22  # bytes written as a test: a folder with less free space is not used
# JAX's warning for each program that it cannot read or write: the program's name and the reason.
UNUSABLE = re.compile(r"(?s)Error \w+ persistent compilation cache entry for '([\w.-]+)': (.*)")


def enable() -> None:
    """Enable JAX's persistent compilation cache in a folder of the user.

    JAX_COMPILATION_CACHE_DIR sets another folder, and JAX_ENABLE_COMPILATION_CACHE=false disables
    the cache. A small run compiles a hundred programs in less than a second each. Programs of any
    compile time are therefore kept, unless JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS or its
    setting in `jax.config` is changed. A folder that cannot be written is not used.
    """
    if not _setting("jax_enable_compilation_cache"):
        return
    is_default = _setting(MIN_COMPILE_SECONDS) == DEFAULT_MIN_COMPILE_SECONDS
    if is_default and MIN_COMPILE_SECONDS.upper() not in os.environ:
        jax.config.update(MIN_COMPILE_SECONDS, 0.0)
    folder, home = _setting("jax_compilation_cache_dir"), user_folder("XDG_CACHE_HOME", "~/.cache")
    if folder is None and home:
        folder = str(home / "jaxssl" / f"jax-{jax.__version__}-{_machine()}")
        jax.config.update("jax_compilation_cache_dir", folder)
    if not folder or "://" in folder:
        return
    try:
        Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(ROOM))
        if Path(folder).stat().st_mode & stat.S_IWOTH:
            log.warning("every user can write to %s, and thus run code as you", folder)
    except OSError as error:
        log.warning("compiled programs are not kept in %s: %s", folder, error.strerror)
        jax.config.update("jax_enable_compilation_cache", False)
        return
    if not isinstance(warnings.showwarning, _ShowWarning):
        warnings.showwarning = _ShowWarning(warnings.showwarning)


class _ShowWarning:
    """Show warnings, but only the first about programs that JAX cannot read or write.

    JAX never replaces a file that exists. Its warning names the function and not the file, so all
    programs of that function are deleted, and JAX writes them again.

    Args:
        show: shows any other warning.
    """

    def __init__(self, show: Callable) -> None:
        self._show, self._is_first = show, True

    def __call__(self, message: object, *args: Any, **kwargs: Any) -> None:
        match = UNUSABLE.match(str(message))
        if not match:
            return self._show(message, *args, **kwargs)
        folder = Path(_setting("jax_compilation_cache_dir"))
        for path in folder.glob(f"{match[1]}-*"):
            with suppress(OSError):
                path.unlink()
        if self._is_first:
            text = "some programs in %s cannot be read or written, and are compiled again (%s)"
            log.warning(text, folder, printable(match[2][:200]))
        self._is_first = False


def fast_compile_options(level: int = 1) -> dict[str, int]:
    """Return `jax.jit` compiler options for a program that runs once, such as an initialiser.

    On a CPU, a lower optimisation level compiles five times as fast and gives the same numbers. An
    optimisation level in XLA_FLAGS is respected.

    Args:
        level: optimisation level, 0 if the speed of the program does not matter.
    """
    if jax.default_backend() != "cpu" or OPTIMISATION in os.environ.get("XLA_FLAGS", ""):
        return {}
    return {OPTIMISATION: level}


def describe() -> str:
    """Describe in words where compiled programs are kept."""
    folder = _setting("jax_compilation_cache_dir")
    if not folder or not _setting("jax_enable_compilation_cache"):
        return (
            "not kept (JAX_ENABLE_COMPILATION_CACHE is false, or no folder can be written; set "
            "JAX_COMPILATION_CACHE_DIR)"
        )
    return f"kept in {folder}"


def _setting(name: str) -> Any:
    return getattr(jax.config, name)  # JAX defines its settings at run time.


def _machine() -> str:
    """Return a name of the CPU's instruction set.

    Hosts with different CPUs may share a home folder, and a program compiled for one may not run on
    another.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        features = next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        features = platform.processor()
    return f"{platform.machine()}-{hashlib.sha256(features.encode()).hexdigest()[:8]}"
