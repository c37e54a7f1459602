"""Compiled programs are kept between runs, so that the next one starts at once."""

import hashlib
import os
import platform
from pathlib import Path

import jax

OPTIMISATION = "xla_backend_optimization_level"
SHORTEST = "jax_persistent_cache_min_compile_time_secs"


def enable() -> None:
    """Let JAX keep what it compiles in a folder of the user, unless told of a place already.

    JAX_COMPILATION_CACHE_DIR names another place; JAX_ENABLE_COMPILATION_CACHE=false keeps nothing.
    A small run compiles a hundred programs that take less than a second each: they are kept too,
    unless JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS says otherwise.
    """
    if SHORTEST.upper() not in os.environ:
        jax.config.update(SHORTEST, 0.0)
    if jax.config.jax_compilation_cache_dir is None:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(home) / "jaxssl" / f"jax-{jax.__version__}-{_machine()}"
        jax.config.update("jax_compilation_cache_dir", str(folder))


def fast_compile_options() -> dict[str, int]:
    """Options for `jax.jit` of what runs once, such as drawing parameters.

    Compiling that takes a CPU long: a fifth of it is enough for the same numbers. What XLA_FLAGS
    says is left alone.
    """
    if jax.default_backend() != "cpu" or OPTIMISATION in os.environ.get("XLA_FLAGS", ""):
        return {}
    return {OPTIMISATION: 1}


def describe() -> str:
    """The place, in words."""
    if not jax.config.jax_enable_compilation_cache or not jax.config.jax_compilation_cache_dir:
        return "not kept (JAX_COMPILATION_CACHE_DIR names a folder)"
    return f"kept in {jax.config.jax_compilation_cache_dir}"


def _machine() -> str:
    """Programs for a CPU are compiled for its instructions: hosts that share a home may differ."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        flags = next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        flags = platform.processor()
    return f"{platform.machine()}-{hashlib.sha256(flags.encode()).hexdigest()[:8]}"
