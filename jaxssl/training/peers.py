"""Let the processes of a run watch each other, so that all of them end when one has ended.

JAX would end them too, but later and with a stack trace of its C++ code. JAX's key-value store,
which the first process of the run serves, holds a count for each process, which the process raises
while it is alive, and the errors of processes that end.
"""

import itertools
import os
import threading
import time
from contextlib import suppress
from typing import Any

from jaxssl.errors import one_line
from jaxssl.training.output.console import show_error

INTERVAL = 1.0  # seconds between two looks at the other processes
LIMIT = 20.0  # A process counts as lost after so many seconds without a new count.
# The first process ends later than the others, because JAX aborts them when its store is gone.
GRACE = 4.0
KEY, ALIVE, ENDED = "jaxssl/", "jaxssl/alive/", "jaxssl/ended/"


class Peers:
    """The other processes of this run, watched in threads.

    The first process watches all others. They watch the first one, which tells them about the
    rest, so that the work does not grow with the square of the number of processes.

    Args:
        store: the client of JAX's key-value store.
        process: index of this process.
        processes: number of processes.
    """

    def __init__(self, store: Any, process: int, processes: int) -> None:
        self._store, self._process = store, process
        self._counts: dict[int, str | None] = {}
        # Looks since the last new count. A clock would also count the time in which this process
        # was suspended itself.
        self._silent = dict.fromkeys(range(1, processes) if process == 0 else [0], 0)
        self._ending = threading.Event()  # This process ends, with a message of its own.
        for target in (self._listen, self._judge):
            threading.Thread(target=target, name=f"peer {process}", daemon=True).start()

    def tell_error(self, error: Exception, status: int = 1) -> None:
        """Tell the other processes that this one ends with an error, for them to end likewise."""
        self._ending.set()
        message = f"{status} process {self._process} of this run has ended: {one_line(error)}"
        self._put(f"{ENDED}{self._process}", message)

    def _listen(self) -> None:
        """Publish that this process is alive, and read the same of the others."""
        for count in itertools.count():
            self._put(f"{ALIVE}{self._process}", str(count))
            values = self._read()
            for other in self._silent:
                value = values.get(f"{ALIVE}{other}")
                if value not in (None, self._counts.get(other)):
                    self._counts[other], self._silent[other] = value, 0
                if message := values.get(f"{ENDED}{other}"):
                    # Errors that all processes find at once are reported by each of them.
                    self._ending.wait(INTERVAL)
                    status, _, text = message.partition(" ")
                    self._end(text, int(status))
            if self._ending.wait(INTERVAL):
                return

    def _judge(self) -> None:
        """Count the looks at silent processes. The store may not answer if its process is lost."""
        while not self._ending.wait(INTERVAL):
            for other in self._silent:
                self._silent[other] += 1
                if self._silent[other] > LIMIT / INTERVAL:
                    self._end(
                        f"process {other} of this run gives no sign of life: it has ended, was "
                        "suspended, or cannot be reached; start all processes again, and they "
                        "resume at the last checkpoint"
                    )

    def _read(self) -> dict[str, str]:
        if self._process == 0:
            with suppress(Exception):  # the exceptions of a store differ between JAX's versions
                return dict(self._store.key_value_dir_get(KEY))
        values = {}
        for key in (f"{ALIVE}0", f"{ENDED}0"):
            with suppress(Exception):
                values[key] = self._store.key_value_try_get(key)
        return values

    def _put(self, key: str, value: str) -> None:
        with suppress(Exception):
            self._store.key_value_set(key, value, allow_overwrite=True)

    def _end(self, message: str, status: int = 1) -> None:
        """End this process, unless it ends by itself."""
        if self._ending.is_set():
            return
        self._ending.set()
        show_error(f"error: {message}")
        if self._process == 0:
            self._put(f"{ENDED}0", f"{status} {message}")
            time.sleep(GRACE)
        os._exit(status)  # A normal exit would wait for the other processes.
