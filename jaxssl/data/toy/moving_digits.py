"""Clips that are made, not collected: digits that move, for demos and tests."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow_datasets as tfds

from jaxssl.data.toy.digits import NUM_TRAIN

SIZES = {"train": 600, "test": 200}
FRAMES, SIDE = 12, 32
LARGER = 2  # times, than scikit-learn's 8 pixels a side
SPEED = 2.0, 3.0  # pixels a frame along the path, the least and the most
RADIUS = 3.0, 4.5  # pixels, of what goes round, and of what goes to and fro


class Draw(NamedTuple):
    """What a path depends on beside its motion.

    Attributes:
        way: [t] pixels along the path since the first frame.
        turn: [t] radians, of a circle with that way.
        radius: pixels.
    """

    way: np.ndarray
    turn: np.ndarray
    radius: float


# Pixels to the right and down. A circle's angle grows clockwise, as y points down.
MOTIONS: dict[str, Callable[[Draw], tuple[Any, Any]]] = {
    "right": lambda draw: (draw.way, 0),
    "left": lambda draw: (-draw.way, 0),
    "down": lambda draw: (0, draw.way),
    "up": lambda draw: (0, -draw.way),
    "clockwise": lambda draw: (draw.radius * np.cos(draw.turn), draw.radius * np.sin(draw.turn)),
    "anticlockwise": lambda draw: (
        draw.radius * np.cos(draw.turn),
        -draw.radius * np.sin(draw.turn),
    ),
    "to and fro": lambda draw: (draw.radius * np.cos(draw.turn), 0),
    "up and down": lambda draw: (0, draw.radius * np.cos(draw.turn)),
}


class Builder(tfds.core.GeneratorBasedBuilder):
    """A handwritten digit moves over a black canvas of 32x32 pixels; the class is how, not which.

    12 grey frames: right, left, down, up, clockwise, anticlockwise, to and fro, up and down. What
    leaves the canvas comes in on the other side. Digit, start, speed and the radius of what turns
    are random. The start is uniform, so the digit's place in any one frame is so too, whatever the
    motion: a single frame tells nothing of the class. A clip that is mirrored, or played backwards,
    may be one of another class. The digits of "test" are none of those of "train".
    """

    name = "moving_digits"
    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "First version."}

    def _info(self) -> tfds.core.DatasetInfo:
        shape = (FRAMES, SIDE, SIDE, 1)
        features = {
            "clip": tfds.features.Tensor(shape=shape, dtype=np.uint8, encoding="zlib"),
            "label": tfds.features.ClassLabel(names=list(MOTIONS)),
        }
        return tfds.core.DatasetInfo(
            builder=self,
            description=self.__class__.__doc__,
            features=tfds.features.FeaturesDict(features),
            metadata=tfds.core.MetadataDict({"kind": "video", "shape": list(shape)}),
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        from sklearn.datasets import load_digits  # slow to import, needed only to prepare

        del dl_manager
        images = np.round(load_digits().images * (255 / 16)).astype(np.uint8)
        order = np.random.default_rng(0).permutation(len(images))  # as in `digits`
        parts = {"train": order[:NUM_TRAIN], "test": order[NUM_TRAIN:]}
        return {split: self._generate_examples(split, images[parts[split]]) for split in SIZES}

    def _generate_examples(
        self, split: str, images: np.ndarray
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        rng = np.random.default_rng(list(SIZES).index(split))
        for i in range(SIZES[split]):
            motion = list(MOTIONS)[i % len(MOTIONS)]
            image = rng.choice(images).repeat(LARGER, 0).repeat(LARGER, 1)
            yield i, {"clip": draw_video(rng, motion, image), "label": motion}


def draw_video(rng: np.random.Generator, motion: str, image: np.ndarray) -> np.ndarray:
    """A picture that moves over a black canvas from a uniform start, round its edges.

    Args:
        rng: gives the same random numbers to every motion.
        motion: of `MOTIONS`.
        image: [h, w] uint8, h and w at most `SIDE`.

    Returns:
        [`FRAMES`, `SIDE`, `SIDE`, 1] uint8.
    """
    start = rng.integers(SIDE, size=2)
    speed, radius = rng.uniform(*SPEED), rng.uniform(*RADIUS)
    way = speed * np.arange(FRAMES)
    x, y = MOTIONS[motion](Draw(way, way / radius + rng.uniform(0, 2 * np.pi), radius))
    canvas = np.zeros((SIDE, SIDE), np.uint8)
    canvas[: image.shape[0], : image.shape[1]] = image
    path = np.zeros((FRAMES, 2))
    path[:, 0], path[:, 1] = y, x
    steps = np.round(path - path[0]).astype(int) + start
    return np.stack([np.roll(canvas, step, (0, 1)) for step in steps])[..., None]
