"""From the examples of a batch to its arrays, on the host."""

from typing import Any, NamedTuple

import numpy as np

from jaxssl.data import decoding
from jaxssl.data.formats import video
from jaxssl.data.source import Source

Batch = dict[str, Any]


class Reader(NamedTuple):
    """Reads the examples of a batch; worker processes get a copy.

    Attributes:
        source: the training split.
        crops: what to cut; None leaves the images, all of one size, as they are.
        seed: of the crops, together with the batch's number and the example's place.
        captions: whether the images come with the tokens of their captions.
    """

    source: Source
    crops: decoding.Crops | None
    seed: int
    captions: bool = False

    def __call__(self, step: int, places: np.ndarray) -> Batch:
        """The examples at ``places`` [b] int32 for batch number ``step``."""
        examples = self.source.read(places, self.captions)
        image = self._images(step, places, [example.picture for example in examples])
        if self.captions:
            image = {"image": image, "text": np.stack([example.text for example in examples])}
        labels = np.array([example.label for example in examples], np.int32)
        return {"input": image, "label": labels, "index": places}

    def _images(self, step: int, places: np.ndarray, found: list[Any]) -> Any:
        if self.source.kind == "video":
            return self._clips(step, places, found)
        if self.crops is None:
            return np.stack([decoding.pixels(picture) for picture in found])
        if not self.crops.views:
            return np.stack([decoding.centre(picture, self.crops.size) for picture in found])
        groups: dict[str, list[np.ndarray]] = {"views": [], "crops": []}
        for place, picture in zip(places, found, strict=True):
            rng = np.random.default_rng((self.seed, step, int(place)))
            groups["views"].append(np.stack(decoding.random_crops(picture, self.crops.views, rng)))
            if self.crops.crops:
                small = decoding.random_crops(picture, self.crops.crops, rng)
                groups["crops"].append(np.stack(small))
        return {name: np.stack(images) for name, images in groups.items() if images}

    def _clips(self, step: int, places: np.ndarray, found: list[np.ndarray]) -> Any:
        if self.crops is None:
            return np.stack(found)
        groups = []
        for place, clip in zip(places, found, strict=True):
            rng = np.random.default_rng((self.seed, step, int(place)))
            groups.append([video.window(clip, n, 1, rng) for n in self.crops.frames])
        return {"views": np.stack([np.stack(views) for views in groups])}
