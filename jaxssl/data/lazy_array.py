"""The images, or clips, of a split as one array, decoded when they are asked for."""

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxssl.data import decoding, files
from jaxssl.data.formats import video

if TYPE_CHECKING:
    from jaxssl.data.source import Source

BLOCK = 256  # records read at a time
SMALL = 64  # pixels; threads decoding smaller images would only wait for Python's lock


class Images:
    """The images of a source as an array [n, h, w, c] that decodes what it is asked for."""

    def __init__(self, source: "Source", shape: tuple[int, int, int]) -> None:
        self._source = source
        self.shape = (len(source), *shape)

    def __len__(self) -> int:
        """How many images there are."""
        return self.shape[0]

    def __getitem__(self, key: Any) -> np.ndarray:
        """A slice, or the images at an array of places."""
        places = np.arange(len(self))[key]
        out = np.empty((places.size, *self.shape[1:]), np.uint8)
        whole, size = self._source.one_size, self.shape[1]
        threads = 1 if out.shape[1] <= SMALL else files.cores()
        rows = min(BLOCK, -(-len(out) // threads))

        def fill(first: int) -> None:
            block = slice(first, first + rows)
            for i, example in enumerate(self._source.read(places.ravel()[block]), first):
                picture = example.picture
                out[i] = decoding.pixels(picture) if whole else decoding.centre(picture, size)

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(fill, range(0, len(out), rows or 1)))
        return out.reshape(*places.shape, *self.shape[1:])


class Videos:
    """The clips of a source as an array [n, t, h, w, c], the middle frames of each."""

    def __init__(self, source: "Source", frames: int) -> None:
        self._source = source
        self.shape = (len(source), frames, *source.shape[1:])

    def __len__(self) -> int:
        """How many clips there are."""
        return self.shape[0]

    def __getitem__(self, key: Any) -> np.ndarray:
        """A slice, or the clips at an array of places."""
        places = np.arange(len(self))[key]
        found = self._source.read(places.ravel())
        cut = [video.window(example.picture, self.shape[1], 1) for example in found]
        return np.stack(cut).reshape(*places.shape, *self.shape[1:])
