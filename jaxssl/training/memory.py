"""Keep the working memory of programs in the process, on Linux with the C library glibc.

XLA allocates the working memory of each call of a program on the CPU anew. By default, glibc
returns large freed blocks to the system, and the page faults of the next call can take a third of
its time.
"""

import ctypes
import os
import sys
from importlib.util import find_spec

import jax

# Parameters of glibc's `mallopt`, from malloc.h.
TRIM_THRESHOLD, MMAP_MAX, ARENA_MAX = -1, -4, -8


def share_arena() -> None:
    """Let all threads allocate from one arena. Of several, only the first keeps blocks of 64 MB.

    Threads that have allocated memory before are not affected. Where a plug-in of JAX for
    accelerators is installed, nothing changes, because many threads may decode images there.
    """
    if not any(map(find_spec, ("jax_plugins", "libtpu"))):
        _set(ARENA_MAX, 1)


def keep_freed() -> None:
    """Keep freed memory for later allocations of the process if JAX computes on the CPU."""
    if jax.default_backend() == "cpu":
        _set(TRIM_THRESHOLD, -1)  # never
        _set(MMAP_MAX, 0)  # no blocks apart from the arena


def _set(parameter: int, value: int) -> None:
    """Set a parameter of glibc's allocator, unless the environment sets the allocator."""
    if sys.platform == "linux" and "GLIBC_TUNABLES" not in os.environ:
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # Other C libraries lack it.
        if mallopt:
            mallopt(parameter, value)
