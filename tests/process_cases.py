"""The processes of a run as threads of one process, for code that gathers NumPy arrays."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from jaxssl import distributed


def in_processes(monkeypatch, number, function):
    """Return ``function(i)`` of each of ``number`` processes, or the exceptions that they raise."""
    local, arrays = threading.local(), [None] * number
    barrier = threading.Barrier(number, timeout=60)

    def gather(x):
        arrays[local.index] = np.asarray(x)
        barrier.wait()
        stacked = np.stack(arrays)
        barrier.wait()
        return stacked

    def process(index):
        local.index = index
        try:
            return function(index)
        except Exception as error:
            return error

    with monkeypatch.context() as patch, ThreadPoolExecutor(number) as pool:
        patch.setattr(distributed, "process_count", lambda: number)
        patch.setattr(distributed, "process_index", lambda: local.index)
        patch.setattr(distributed, "gather_processes", gather)
        return list(pool.map(process, range(number)))
