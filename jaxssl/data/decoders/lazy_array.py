"""An array whose rows are decoded when they are indexed."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

BLOCK = 256  # rows that a thread decodes in one task


class LazyArray:
    """A uint8 array [n, ...] that decodes its rows when they are indexed.

    Attributes:
        shape: shape of the whole array.
    """

    def __init__(
        self,
        decode: Callable[[np.ndarray], Iterable[np.ndarray]],
        shape: tuple[int, ...],
        threads: int = 1,
    ) -> None:
        """Wrap a function that decodes rows by index.

        Args:
            decode: maps indices [k] to the k rows.
            shape: shape of the whole array.
            threads: number of threads that decode blocks of rows.
        """
        self._decode, self._threads = decode, threads
        self.shape = shape

    def __len__(self) -> int:
        """Return the number of rows of the array."""
        return self.shape[0]

    def __getitem__(self, key: Any) -> np.ndarray:
        """Decode the rows that a slice, an index, a mask or an array of indices selects."""
        indices = np.arange(len(self))[key]
        flat = indices.ravel()
        out = np.empty((len(flat), *self.shape[1:]), np.uint8)
        block = max(1, min(BLOCK, -(-len(flat) // self._threads)))

        def fill(start: int) -> None:
            for i, row in enumerate(self._decode(flat[start : start + block]), start):
                out[i] = row

        with ThreadPoolExecutor(self._threads) as pool:
            list(pool.map(fill, range(0, len(flat), block)))
        return out.reshape(*indices.shape, *self.shape[1:])
